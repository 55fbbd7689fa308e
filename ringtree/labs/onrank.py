"""What runs on a rank while a lab is checked: the learner's function, in a process group of its own."""

import importlib
import linecache

import torch
import torch.distributed as real

from ringtree.labs.watched import Watched

_groups = []  # of earlier trials: left open until all ranks are surely out of them


def run_trial(sources, imports, values, name, inputs):
    """Run the learner's function `name` on ranks 0 … len(inputs) − 1, in a process group of their own.

    sources: {name: text} of the learner's functions. imports: {name: (module, name there or None)}.
    values: {name: value} that the functions use. inputs: by rank, the arguments.
    Returns (answer, notes) as plain data; (None, []) on a rank that takes no part.
    """
    from IPython import get_ipython

    while _groups:
        real.destroy_process_group(_groups.pop())
    rank, size = real.get_rank(), len(inputs)
    # Messages that a wrong program leaves behind stay in its group, and meet nobody else's.
    group = real.new_group(list(range(size)))
    if rank >= size:
        return None, []
    _groups.append(group)
    user = get_ipython().user_ns
    watched = Watched(group)
    namespace = {**user, **values, "dist": watched, "rank": rank, "world_size": size}
    for alias, (module, attribute) in imports.items():
        found = importlib.import_module(module)
        namespace[alias] = getattr(found, attribute) if attribute else found
    for each, text in sources.items():
        _define(each, text, namespace)
    arguments = [torch.tensor(value, dtype=torch.float32, device=user["device"]) for value in inputs[rank]]
    # Memory that nobody has written then holds nan, rather than what an earlier run left there.
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        answer = namespace[name](*arguments, watched)
        return _plain(answer), watched.finished()
    finally:
        torch.set_deterministic_debug_mode(mode)


def _define(name, text, namespace):
    filename = f"{name}.py"  # a script's, not this package's: hang reports then show its lines
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), namespace)


def _plain(answer):
    """("tensor", nested lists), or ("other", name of the type)."""
    if isinstance(answer, (list, tuple)) and answer and all(isinstance(each, torch.Tensor) for each in answer):
        if len({each.shape for each in answer}) == 1:
            answer = torch.stack(list(answer))
    if isinstance(answer, torch.Tensor):
        return "tensor", answer.detach().cpu().double().tolist()
    return "other", "None" if answer is None else f"a {type(answer).__name__}"
