"""Steps that cannot be judged: each fails in its own way."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

from ringtree.prove import Step

not_callable = 3


def weight(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def one(mesh, w=None, **options):
    w = weight(4, 3) if w is None else w
    options = {"loss": 1.0, "norm": None, "gradients": {"w": w}, "parameters": {"w": w}} | options
    return Step(**options)


def hangs(mesh):
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()
    yield one(mesh)


def raises(mesh):
    if dist.get_rank() == 1:
        raise ValueError("12 rows for 5 ranks")
    dist.all_reduce(weight(2))
    yield one(mesh)


def killed(mesh):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(weight(2))
    yield one(mesh)


def leaves(mesh):
    if dist.get_rank() == 1:
        os._exit(7)
    dist.all_reduce(weight(2))
    yield one(mesh)


def not_a_generator(mesh):
    return one(mesh)


def nothing(mesh):
    yield from ()


def not_a_step(mesh):
    yield 3


def unequal_counts(mesh):
    for _ in range(2 + dist.get_rank()):
        yield one(mesh)


def unknown_words(mesh):
    yield one(mesh, loss_is="the mean")


def unknown_axis(mesh):
    yield one(mesh, loss_is="mean over model")


def layout_axis(mesh):
    yield one(mesh, layout={"w": {"model": Shard(0)}})


def layout_name(mesh):
    yield one(mesh, layout={"*.qkv": {"data": Shard(0)}})


def layout_placement(mesh):
    yield one(mesh, layout={"w": {"data": 0}})


def layout_is_no_dictionary(mesh):
    yield one(mesh, layout={"w": Shard(0)})


def no_entry(mesh):
    yield one(mesh, weight(4, 3).tensor_split(mesh.size())[0])


def even_cut_without_entry(mesh):
    yield one(mesh, weight(12, 3).chunk(mesh.size())[0])


def wrong_dimension(mesh):
    yield one(mesh, weight(4, 6).chunk(mesh.size())[0], layout={"w": {"data": Shard(1)}})


def function_fails(mesh):
    yield one(mesh, layout={"w": {"data": lambda parts: parts[9]}})


def other_name(mesh):
    yield one(mesh, parameters={f"w{mesh.size()}": weight(4, 3)}, gradients={})


def stray_gradient(mesh):
    yield one(mesh, gradients={"v": weight(4, 3)})


def a_list_of_tensors(mesh):
    yield one(mesh, gradients=[weight(2)])


def loss_of_many(mesh):
    yield one(mesh, loss=weight(3))


def not_finite_in_one_process(mesh):
    yield one(mesh, weight(4, 3) * float("nan"))


def right(mesh):
    print("what a step prints is not the report")
    yield one(mesh)
    yield one(mesh)
