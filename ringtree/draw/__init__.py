"""Pictures of costs, of traces and of who holds what. Every function returns a `Picture`."""

from .costs import compare, curves, model, ratios, residuals, shares, times
from .machines import link_speeds, model_memory, node_links, ranks_on_nodes, topology_matrix
from .picture import Picture, picture
from .player import Player, player
from .ranks import before_after, holdings
from .source import source
from .style import INK, RANK_COLOURS, figure, rank_colour, styled
from .timeline import timeline
from .traffic import traffic

__all__ = [
    "Picture",
    "picture",
    "INK",
    "RANK_COLOURS",
    "figure",
    "styled",
    "rank_colour",
    "before_after",
    "holdings",
    "source",
    "shares",
    "model",
    "times",
    "residuals",
    "ratios",
    "compare",
    "ranks_on_nodes",
    "node_links",
    "topology_matrix",
    "link_speeds",
    "model_memory",
    "timeline",
    "traffic",
    "curves",
    "player",
    "Player",
]
