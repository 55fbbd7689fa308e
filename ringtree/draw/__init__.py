"""Pictures of costs, of traces and of who holds what. Every function returns a `Picture`, or a `Player`.

draw.timeline(trace)                     # ranks over time
draw.player(follow(program, inputs))     # a run, step by step
draw.curves({"ring": time_of}, 8, 1e9)   # time over size
draw.before_after(before, after, by="all_gather")      # who held what, and who gave it to whom
"""

from ringtree import late

# A notebook depends only on the drawings that it shows.
__getattr__, __dir__, __all__ = late.names(__name__)
