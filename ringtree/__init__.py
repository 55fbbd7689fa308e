"""Rings and Trees: multi-GPU communication you can run.

    import ringtree
    ranks = ringtree.start(4)              # live ranks; from now on `%%px` cells run on every one

    ringtree.simulate(program, inputs, ringtree.Link(10e-6, 1 / 450e9))      # the same program on a virtual clock
    ringtree.cost_of(program, 8, 1 << 20, ringtree.Link(10e-6, 1 / 450e9))   # and its exact cost

What is used everywhere is here: `dir(ringtree)` lists it. The rest stands in rooms:

    algorithms   every collective as rank programs, one collective a file
    live         ranks: started, watched, traced, with an emulated link between them
    simulated    ranks on a virtual clock
    parallel     how a model is split over ranks: each file can be copied alone
    theory       exact costs, bounds, fits, predictions, NCCL's own model
    measure      time a collective honestly, read others' logs, record what a GPU shows
    data         published figures and recordings
    draw         pictures of traces and costs, and the step player
    labs         exercises that check themselves
    doctor       what stands in the way of ranks on this machine
    explain      your cluster on one page, from a log
    prove        is a parallel training step the step of one process
    collectives, calls, computing, cost, trace, units, waits, errors      the words and plain data that all rooms share
"""

from ringtree import late, watching

__getattr__, __dir__, __all__ = late.names(__name__)


if watching.readers_shell() is not None:
    from ringtree.live import cells

    cells.load(watching.readers_shell())
    del cells
