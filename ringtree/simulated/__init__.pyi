from ringtree.simulated import sketches as sketches
from ringtree.simulated.faults import Deadlock as Deadlock, ProgramError as ProgramError
from ringtree.simulated.following import Followed as Followed, follow as follow
from ringtree.simulated.simulation import Simulation as Simulation, simulate as simulate
from ringtree.simulated.sketch import Sketch as Sketch
