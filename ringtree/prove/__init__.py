"""Is my parallel step the step I meant?

    ringtree prove train.py:step --axes data,tensor --ranks 4

`step(mesh)` is a generator of yours: it trains on a DeviceMesh with these axes and yields a `Step` when the gradients of
a batch are final. It is run in one process and on each factorization of three and of four ranks (Gloo, on this machine).
Each gradient, the norm, the loss, the weights and their copies are compared with those of one process. In Python:

    report = prove.prove("train.py:step", axes="data,tensor")
    print(report)
    prove.assert_equal_to_one(step, axes="data,tensor")         # in a test of pytest
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
