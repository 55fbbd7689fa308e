from ringtree.draw.costs import (
    compare as compare,
    curves as curves,
    model as model,
    ratios as ratios,
    residuals as residuals,
    shares as shares,
    times as times,
)
from ringtree.draw.machines import (
    link_speeds as link_speeds,
    model_memory as model_memory,
    node_links as node_links,
    ranks_on_nodes as ranks_on_nodes,
    topology_matrix as topology_matrix,
)
from ringtree.draw.picture import Picture as Picture, picture as picture
from ringtree.draw.pipelines import pipeline as pipeline
from ringtree.draw.player import Player as Player, player as player
from ringtree.draw.ranks import before_after as before_after, holdings as holdings
from ringtree.draw.source import source as source
from ringtree.draw.style import (
    INK as INK,
    RANK_COLOURS as RANK_COLOURS,
    figure as figure,
    narrow as narrow,
    rank_colour as rank_colour,
    styled as styled,
)
from ringtree.draw.timeline import timeline as timeline
from ringtree.draw.traffic import traffic as traffic
