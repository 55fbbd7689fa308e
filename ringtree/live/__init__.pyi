from ringtree.live.cluster import Ranks as Ranks, current as current, start as start
from ringtree.live.reports.deadline import RankDied as RankDied, RankError as RankError, RanksStuck as RanksStuck
from ringtree.live.link.emulated import emulate as emulate
from ringtree.live.link.tracing import shortest as shortest, traced as traced
