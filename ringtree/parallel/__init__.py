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
    clipping         the norm of all gradients, where ranks have different parts of them
    master_weights   32-bit copies of 16-bit weights, on which the optimizer steps
    padded_experts   the same experts with boxes of a fixed size, so that the host asks the GPU nothing
    uneven           data parallel where a step may leave a rank without rows
    checkpoint       what a training needs to go on after a rank was lost

`ringtree parallel data_parallel --ranks 4` trains as a script. README.md says what a gradient means in each.
"""

import sys

from ringtree import late

if sys.argv[:1] != ["-m"]:  # `python -m ringtree.parallel` is being looked up, and says it itself
    late.need(__name__, "torch")
