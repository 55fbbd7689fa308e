"""Data parallel: every rank has the whole model and a part of the batch; gradients are averaged.

Three ways to the same gradients: an all-reduce for each tensor (`average_each`), for each
bucket of tensors (`average_buckets`), and for each bucket as soon as the backward pass has
filled it (`Overlapped`). Method: Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", 2020.

`dist` is torch.distributed, or anything that speaks like it.
"""

from functools import partial

import torch


def same_start(model, dist):
    """Every rank takes over rank 0's weights."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_each(model, dist):
    """After the backward pass: one all-reduce for each tensor."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def buckets_of(parameters, nbytes):
    """Parameters in buckets of at most `nbytes`, the last parameters first.

    A parameter larger than that stands alone. The backward pass is done with the last
    layers first: their bucket is full while it still works on the others.
    """
    buckets, room = [], 0
    for parameter in reversed(list(parameters)):
        size = parameter.numel() * parameter.element_size()
        if not buckets or size > room:
            buckets.append([])
            room = nbytes
        buckets[-1].append(parameter)
        room -= size
    return buckets


def send_bucket(bucket, dist, dtype=None):
    """Start the all-reduce of a bucket's gradients, laid one after another.

    dtype: in which the gradients travel, and are added; left out, their own.
    Returns what `put_back` wants.
    """
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    flat = flat.to(dtype or flat.dtype)
    return bucket, flat, dist.all_reduce(flat, async_op=True)


def put_back(bucket, flat, work, size):
    """Wait for a bucket's sum, and write the mean over `size` ranks to its parameters."""
    work.wait()
    parts = flat.split([parameter.numel() for parameter in bucket])
    for parameter, part in zip(bucket, parts):
        parameter.grad.copy_(part.view_as(parameter.grad)).div_(size)


def average_buckets(model, dist, nbytes, dtype=None):
    """After the backward pass: one all-reduce for each bucket."""
    for bucket in buckets_of(model.parameters(), nbytes):
        put_back(*send_bucket(bucket, dist, dtype), dist.get_world_size())


class Overlapped:
    """During the backward pass: a bucket's all-reduce starts when it is full.

        averaging = Overlapped(model, dist, nbytes)
        loss.backward()         # all-reduces start in here
        averaging.finish()      # and end in here

    Every rank must fill its buckets in the same order. A parameter that gets no gradient
    leaves its bucket unfilled: `finish` then says so, on the rank where it happens.
    """

    def __init__(self, model, dist, nbytes, dtype=None):
        self.dist, self.dtype = dist, dtype
        self.on = True  # False while gradients are only added up (accumulation)
        self.missing, self.under_way = {}, []
        for number, bucket in enumerate(buckets_of(model.parameters(), nbytes)):
            filled = partial(self._filled, number, bucket)
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(filled)

    def _filled(self, number, bucket, parameter):
        if self.on:
            missing = self.missing.setdefault(number, set(bucket))
            missing.remove(parameter)
            if not missing:
                self.under_way.append(send_bucket(bucket, self.dist, self.dtype))

    def finish(self):
        """Wait for all buckets; afterwards every gradient is the mean over ranks."""
        if any(self.missing.values()):
            raise RuntimeError(
                "a bucket was never filled: a parameter has received no gradient in this backward pass"
            )
        for sent in self.under_way:
            put_back(*sent, self.dist.get_world_size())
        self.missing, self.under_way = {}, []
