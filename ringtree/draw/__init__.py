"""Pictures of costs, of traces and of who holds what. Every function returns a `Picture`, or a `Player`.

draw.timeline(trace)                     # ranks over time
draw.player(follow(program, inputs))     # a run, step by step
draw.curves({"ring": time_of}, 8, 1e9)   # time over size
draw.before_after(before, after, by="all_gather")      # who held what, and who gave it to whom
"""

import lazy_loader

# Late, so that a notebook depends only on the drawings that it shows.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "costs": ["compare", "curves", "model", "ratios", "residuals", "shares", "times"],
        "machines": ["link_speeds", "model_memory", "node_links", "ranks_on_nodes", "topology_matrix"],
        "picture": ["Picture", "picture"],
        "pipelines": ["pipeline"],
        "player": ["Player", "player"],
        "ranks": ["before_after", "holdings"],
        "source": ["source"],
        "style": ["INK", "RANK_COLOURS", "figure", "narrow", "rank_colour", "styled"],
        "timeline": ["timeline"],
        "traffic": ["traffic"],
    },
)
