"""How a model is split over ranks, by hand: each file imports torch alone and can be read, or taken away, alone.

    model            a small GPT, its loss and its batches
    data_parallel    the whole model on every rank, a part of the batch each
    sharded          the same, but each rank keeps a part of the state, the gradients, the parameters (ZeRO)
    tensor_parallel  every rank has a part of each matrix, and all of the batch
    counting         what a step holds and calls, also where it is torch's own
    pipeline         every rank has some of the layers, and batches pass through in micro-batches
    experts          many feed-forwards shared out over the ranks; each token travels to the few that a router picks
    context          the sequence is cut: keys and values go round a ring of ranks
    around_attention the same by heads or by a gather, and what a model needs whose sequence is cut
    uneven           data parallel where a step may leave a rank without rows
    checkpoint       what a training needs to go on after a rank was lost

`python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel data_parallel` trains as a script.
"""

import sys

from ringtree import late

if sys.argv[:1] != ["-m"]:  # `python -m ringtree.parallel` is being looked up, and says it itself
    late.need(__name__, "torch")
