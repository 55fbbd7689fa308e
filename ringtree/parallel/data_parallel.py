"""Data parallel: every rank has the whole model and a part of the batch; gradients are averaged.

Three ways to the same gradients: an all-reduce for each tensor (`average_each`), for each
bucket of tensors (`average_buckets`), and for each bucket as soon as the backward pass has
filled it (`Overlapped`). Method: Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", 2020.

Parameters are invariant over the group (equal on its ranks, and so are their gradients once
averaged); gradients of one rank's loss are varying. Afterwards each is the mean over the group:
the gradient of the mean loss, where ranks have equally many rows. Frozen parameters are left
alone. A parameter without a gradient on this rank counts as zeros, so that all ranks send the
same; where no rank uses it, it ends with zeros, which an optimizer with weight decay moves.

`dist` is torch.distributed, or anything that speaks like it; group: of ranks, left out all.
Runs on torch 2.1 and later.
"""

import torch


def same_start(model, dist, group=None):
    """Every rank takes over the weights and buffers of the group's first rank."""
    first = 0 if group is None else dist.get_process_group_ranks(group)[0]
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=first, group=group)


def gradient_of(parameter):
    """Its gradient; zeros take the place of one that is missing."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def trained(model):
    """Its parameters that are not frozen, a shared one once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def average_each(model, dist, group=None):
    """After the last backward pass of a step: one all-reduce for each tensor."""
    for parameter in trained(model):
        dist.all_reduce(gradient_of(parameter), group=group)
        parameter.grad /= dist.get_world_size(group)


def buckets_of(parameters, nbytes):
    """Parameters in buckets of at most `nbytes`, the last parameters first.

    A parameter larger than that stands alone. The backward pass is done with the last
    layers first: their bucket is full while it still works on the others.
    """
    buckets, room = [], 0
    for parameter in reversed(list(parameters)):
        size = parameter.numel() * parameter.element_size()
        if not buckets or size > room or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            room = nbytes
        buckets[-1].append(parameter)
        room -= size
    return buckets


def send_bucket(bucket, dist, dtype=None, group=None):
    """Start the all-reduce of a bucket's gradients, laid one after another.

    dtype: in which the gradients travel, and are added; left out, their own.
    Returns what `put_back` wants.
    """
    flat = torch.cat([gradient_of(parameter).flatten() for parameter in bucket])
    flat = flat.to(dtype or flat.dtype)
    return bucket, flat, dist.all_reduce(flat, group=group, async_op=True)


def put_back(bucket, flat, work, size):
    """Wait for a bucket's sum, and write the mean over `size` ranks to its parameters."""
    work.wait()
    parts = flat.split([parameter.numel() for parameter in bucket])
    for parameter, part in zip(bucket, parts):
        parameter.grad.copy_(part.view_as(parameter.grad)).div_(size)


def average_buckets(model, dist, nbytes, dtype=None, group=None):
    """After the last backward pass of a step: one all-reduce for each bucket."""
    for bucket in buckets_of(trained(model), nbytes):
        put_back(*send_bucket(bucket, dist, dtype, group), dist.get_world_size(group))


class Overlapped:
    """During the backward pass: a bucket's all-reduce starts when it, and all before it, are full.

        averaging = Overlapped(model, dist, nbytes)
        loss.backward()         # all-reduces start in here
        averaging.finish()      # and end in here

    Over several backward passes a step, set `on = False` for all but the last. Buckets are sent
    in one order on every rank; what is not full at the end is sent by `finish`.
    """

    def __init__(self, model, dist, nbytes, dtype=None, group=None):
        self.dist, self.dtype, self.group = dist, dtype, group
        self.on = True  # False while gradients are only added up (accumulation)
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.trained = set(trained(model))
        self.buckets = buckets_of(trained(model), nbytes)
        self.ready, self.under_way = set(), []
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._filled)

    def _filled(self, parameter):
        if parameter in self.ready:
            raise RuntimeError(
                f"{self.names[parameter]} has received a second gradient before finish(): "
                "set `on = False` for all backward passes of a step but the last"
            )
        if self.on:
            self.ready.add(parameter)
            self._send(lambda bucket: self.ready.issuperset(bucket))

    def _send(self, full):
        """Send the next buckets, as long as they are full."""
        for bucket in self.buckets[len(self.under_way) :]:
            if not full(bucket):
                break
            self.under_way.append(send_bucket(bucket, self.dist, self.dtype, self.group))

    def finish(self):
        """Send what is left and wait for all buckets; afterwards every gradient is the mean over ranks."""
        for parameter, name in self.names.items():
            if parameter.requires_grad != (parameter in self.trained):
                raise RuntimeError(
                    f"{name} was frozen or thawed after Overlapped(…) was made: make it anew"
                )
        self._send(lambda bucket: True)
        for sent in self.under_way:
            put_back(*sent, self.dist.get_world_size(self.group))
        self.ready, self.under_way = set(), []
