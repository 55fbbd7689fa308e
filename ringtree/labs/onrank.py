"""What runs on a rank while a lab is checked: the learner's function, on the live ranks."""

import importlib
import linecache

import torch
import torch.distributed as dist


def run_case(sources, imports, values, name, given, options):
    """Run the learner's function `name` on this rank; returns its answer, on the CPU.

    sources: {name: text} of the learner's functions and classes. imports: {name: (module, name there or None)}.
    values: {name: value} that they use. given: by rank, the arguments before `dist`. options: named arguments.
    """
    from IPython import get_ipython

    user = get_ipython().user_ns
    namespace = {**user, **values, "dist": dist, "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    for alias, (module, attribute) in imports.items():
        found = importlib.import_module(module)
        namespace[alias] = getattr(found, attribute) if attribute else found
    for each, text in sources.items():
        _define(each, text, namespace)
    arguments = given[dist.get_rank()]
    arguments = _on(arguments if isinstance(arguments, tuple) else (arguments,), user["device"])
    answer = namespace[name](*arguments, dist, **options)
    return _on(arguments[0] if answer is None and arguments else answer, "cpu")


def _define(name, text, namespace):
    filename = f"{name}.py"  # a script's, not this package's: hang reports then show its lines
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), namespace)


def _on(value, device):
    if isinstance(value, list | tuple):
        return type(value)(_on(each, device) for each in value)
    return value.detach().to(device, copy=True) if isinstance(value, torch.Tensor) else value
