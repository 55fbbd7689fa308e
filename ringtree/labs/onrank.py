"""What runs on a rank while a lab is checked: the learner's function, on the live ranks."""

import linecache
from functools import partial

import cloudpickle
import torch
import torch.distributed as dist


def run_case(packed, cells, given, options, harness=None):
    """Run a learner's function on this rank; returns its answer, on the CPU.

    packed: the function, by cloudpickle. cells: the texts that it was written in, as `linecache` keeps them, so that reports
    show its lines. given: by rank, the arguments before `dist`. options: named arguments. harness: of the exercise.
    """
    from IPython import get_ipython

    linecache.cache.update(cells)
    arguments = given[dist.get_rank()]
    arguments = _on(arguments if isinstance(arguments, tuple) else (arguments,), get_ipython().user_ns["device"])
    function = cloudpickle.loads(packed)
    return _on((partial(harness, function) if harness else function)(*arguments, dist, **options), "cpu")


def _on(value, device):
    if isinstance(value, list | tuple):
        return type(value)(_on(each, device) for each in value)
    if isinstance(value, dict):
        return {key: _on(each, device) for key, each in value.items()}
    return value.detach().to(device, copy=True) if isinstance(value, torch.Tensor) else value
