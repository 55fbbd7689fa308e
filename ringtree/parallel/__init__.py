"""How a model is split over ranks, by hand: each file imports torch alone and can be read, or taken away, alone.

    model            a small GPT, its loss and its batches
    data_parallel    the whole model on every rank, a part of the batch each

`python -m torch.distributed.run --nproc-per-node 4 -m ringtree.parallel data_parallel` trains as a script.
"""
