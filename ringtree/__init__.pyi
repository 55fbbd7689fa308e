from ringtree import (
    algorithms as algorithms,
    data as data,
    doctor as doctor,
    draw as draw,
    explain as explain,
    labs as labs,
    live as live,
    measure as measure,
    parallel as parallel,
    prove as prove,
    simulated as simulated,
    theory as theory,
)
from ringtree.computing import compute as compute
from ringtree.cost import Link as Link, Machine as Machine
from ringtree.live.cluster import start as start
from ringtree.live.reports.deadline import RankDied as RankDied, RankError as RankError, RanksStuck as RanksStuck
from ringtree.live.link.emulated import emulate as emulate
from ringtree.live.link.tracing import shortest as shortest, traced as traced
from ringtree.measure.timing import timed as timed
from ringtree.simulated.faults import Deadlock as Deadlock, ProgramError as ProgramError
from ringtree.simulated.following import follow as follow
from ringtree.simulated.simulation import simulate as simulate
from ringtree.simulated.sketch import Sketch as Sketch
from ringtree.theory.costs import cost_of as cost_of, lower_bound as lower_bound
from ringtree.trace import Trace as Trace
from ringtree.units import binary_text as binary_text, bytes_text as bytes_text, seconds_text as seconds_text
