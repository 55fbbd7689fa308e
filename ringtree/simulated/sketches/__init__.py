"""Training steps as rank programs: the messages of each technique of `ringtree.parallel`, and how long it computes.

    run = simulate(partial(data_parallel.step, overlapped=True), [model] * 8, machine)

They run on `ringtree.Sketch`es, for any number of ranks and any machine; tests hold their calls against those of the
technique itself.
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
