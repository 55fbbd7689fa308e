"""Every listing of the book handed in as an answer to every exercise, as by a learner who copies and renames.

python trials/listings.py [LAB …]      # prints who gets how far; exits with 1 where a listing gets the top mark
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import sys
import time
import types
from pathlib import Path

import nbformat
import torch
from verdicts import EXERCISES, NAMES, ROOT, judge, learners_cells, module_of, release_of, top

from ringtree.labs.exercise import Program
from ringtree.labs.patches import put_back

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"))
LIBRARY = "ringtree.algorithms", "ringtree.parallel"
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
HARMLESS = {"Link", "Link.of", "Machine", "range", "list", "dict", "tuple", "float", "int", "partial"}  # in a constant
FILLED = {"outputs", "yours", "received", "got"}  # parameters of a listing that it fills: they are made, and returned
SECONDS = 5.0


# ---------------------------------------------------------------- what is printed


@functools.cache
def listings():
    """{"where: name": function or class} of all that the book prints, each text once.

    They live in modules of their own in which the book's algorithms are copies too, as nobody may call the originals.
    """
    pages = {name: _page(name, [path.read_text(encoding="utf-8")]) for name, path in _library()}
    pages |= {path.stem: _page(path.stem, _texts(path)) for path in CHAPTERS}
    wanted = {name: None for name in pages}
    for room, names in _shown(pages).items():
        path = Path(importlib.import_module(room).__file__)
        pages[room], wanted[room] = _page(room, [path.read_text(encoding="utf-8")]), names
    for page in pages.values():
        _copies_for_originals(page, pages)
    found, seen = {}, set()
    for name, only in wanted.items():
        for key, text in pages[name].texts.items():
            if text not in seen and (only is None or key in only):
                seen.add(text)
                found[f"{name}: {key}"] = vars(pages[name])[key]
    return found


def _library():
    for room in LIBRARY:
        for path in sorted(Path(importlib.import_module(room).__file__).parent.glob("[!_]*.py")):
            yield f"{room}.{path.stem}", path


def _texts(path):
    """The code of a chapter's cells, and what its text prints: fragments, folded answers, whole scripts."""
    for cell in nbformat.read(path, as_version=4).cells:
        yield from [cell.source] if cell.cell_type == "code" else FENCED.findall(cell.source)


def _page(name, texts):
    """A module with the imports, constants, functions and classes of these texts; nothing else of them is run."""
    page = types.ModuleType(name)
    vars(page).update(torch=torch, dist=None, rank=0, world_size=1, device=torch.device("cpu"), texts={})
    for text in texts:
        for node in _parsed(text).body:
            if _is_kept(node):
                _run(node, page)
    return page


def _parsed(text):
    try:
        return ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.split("\n")))
    except SyntaxError:  # a fragment
        return ast.parse("")


def _is_kept(node):
    if isinstance(node, ast.Assign):
        return all(ast.unparse(each.func) in HARMLESS for each in ast.walk(node.value) if isinstance(each, ast.Call))
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


def _run(node, page):
    text = ast.unparse(node)
    with contextlib.suppress(Exception):  # a name of a cell that was not run
        exec(compile(text, f"{page.__name__}, pasted", "exec"), vars(page))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            page.texts[node.name] = text


def _shown(pages):
    """{module: names} of what chapters print by `draw.source` and that is not of the two rooms."""
    found = {}
    for path in CHAPTERS:
        for call in (node for text in _texts(path) for node in ast.walk(_parsed(text)) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "draw.source":
                with contextlib.suppress(Exception):  # `getattr(…, part)` in a loop: it is of the library
                    value = eval(ast.unparse(call.args[0]), vars(pages[path.stem]))
                    if value.__module__.startswith("ringtree.") and value.__module__ not in pages:
                        found.setdefault(value.__module__, set()).add(value.__name__)
    return found


def _copies_for_originals(page, pages):
    for name, value in list(vars(page).items()):
        if isinstance(value, types.ModuleType):
            setattr(page, name, pages.get(value.__name__, value))
        elif isinstance(value, types.FunctionType | type) and (home := pages.get(value.__module__)):
            setattr(page, name, vars(home).get(value.__name__, value))


# ---------------------------------------------------------------- how it is handed in


def handed_in(listing, names):
    """{how: function}: each way in which a listing can stand as the function of an exercise with these parameters.

    What has one name goes there and the rest in order; a parameter of the exercise may be left over, none of the listing.
    """
    function = _function_of(listing)
    try:
        has = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a class that nobody can read
        return {}
    source = {each.name: each.name for each in has if each.name in names or each.name in {*FILLED, "group"}}
    left = [each for each in names if each not in source and each != "dist"]
    for each in sorted(has, key=lambda each: each.default is not each.empty):
        if each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in (*source, "op"):
            if left:
                source[each.name] = left.pop(0)
            elif each.default is each.empty:
                return {}
    talks = "dist" in source or "dist" in getattr(getattr(function, "__code__", None), "co_names", ())
    if not set(source) - {"group"} or "dist" in names and not talks or "dist" not in names and left:
        return {}
    ways = (as_it_is, in_place, one_shard, into_room) if "dist" in names and not FILLED & set(source) else (as_it_is,)
    return {way.__name__.replace("_", " "): _answer(function, source, names, way) for way in ways}


def _function_of(listing):
    """A class of autograd's is called by `apply`, and any other makes the function that it has for the end of a step."""
    if not isinstance(listing, type):
        return listing
    autograd = issubclass(listing, torch.autograd.Function)

    def function(**given):
        if autograd:
            return listing.apply(*given.values())
        made = listing(**given)
        return next((getattr(made, name) for name in ("step", "finish") if hasattr(made, name)), made)

    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(listing.forward if autograd else listing)
        function.__signature__ = signature.replace(parameters=list(signature.parameters.values())[autograd:])  # without ctx
    return function


def _answer(function, source, names, way):
    def answer(*given, **options):
        known = {"group": None, **dict(zip(names, given)), **options}
        dist = known.get("dist")
        first = known[names[0]]
        for each in FILLED & set(source):
            known[each] = torch.empty_like(first) if torch.is_tensor(first) else [torch.empty_like(one) for one in first]
        order = [each for each in inspect.signature(function).parameters if each in source]
        return way(_on_this_rank(function, dist), {each: known[source[each]] for each in order}, dist)

    return answer


def _on_this_rank(function, dist):
    """The function among the names that a cell has on every rank."""
    if dist is None or not isinstance(function, types.FunctionType):
        return function
    there = {**function.__globals__, "dist": dist, "rank": dist.get_rank(), "world_size": dist.get_world_size()}
    here = types.FunctionType(function.__code__, there, function.__name__, function.__defaults__, function.__closure__)
    here.__kwdefaults__ = function.__kwdefaults__
    return here


def as_it_is(function, given, dist):
    returned = function(**given)
    return next((given[each] for each in FILLED & set(given)), None) if returned is None else returned


def in_place(function, given, dist):
    """On a copy, which is returned."""
    name, first = _first_tensor(given)
    copy = first.clone()
    function(**{**given, name: copy})
    return copy


def one_shard(function, given, dist):
    """On a copy, of which the rank's own shard is returned."""
    return in_place(function, given, dist).tensor_split(dist.get_world_size())[dist.get_rank()]


def into_room(function, given, dist):
    """On room for all ranks, with one's own in its place."""
    name, first = _first_tensor(given)
    room = first.new_zeros(dist.get_world_size() * len(first))
    room.tensor_split(dist.get_world_size())[dist.get_rank()].copy_(first)
    function(**{**given, name: room})
    return room


def _first_tensor(given):
    return next((name, value) for name, value in given.items() if isinstance(value, torch.Tensor))


# ---------------------------------------------------------------- what comes of it


def parameters_of(lab, name):
    return list(inspect.signature(learners_cells(lab, release_of)[name]).parameters)


def right(lab, name):
    """{listing and how it is handed in: level} of those that an exercise's check takes for right."""
    names, exercise = parameters_of(lab, name), module_of(lab).EXERCISES[name]
    first = _first_of(exercise)
    found = {}
    with put_back(), contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        for where, how, answer in _fitting(names):
            if not judge(name, answer, first, seconds=SECONDS).fault:
                found[f"{where} ({how})"] = judge(name, answer, exercise, seconds=SECONDS).level
    return {each: level for each, level in found.items() if level is not None}


def _fitting(names):
    for where, listing in listings().items():
        for how, answer in handed_in(listing, names).items():
            yield where, how, answer


def _first_of(exercise):
    """The exercise with its two smallest cases alone, made once: hardly any listing gets further."""
    if isinstance(exercise, Program):
        cases = list(itertools.islice(exercise.cases(), 2))
        return dataclasses.replace(exercise, cases=lambda: cases)
    questions = list(itertools.islice(exercise.questions(), 2))
    return dataclasses.replace(exercise, questions=lambda: questions)


def at_the_top(lab, name):
    """The listings that get the top mark of an exercise."""
    return [each for each, level in right(lab, name).items() if level == top(lab, name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labs", nargs="*", metavar="LAB", help="left out: all")
    asked = parser.parse_args().labs or NAMES
    bad = False
    for lab, name in EXERCISES:
        if lab in asked:
            began, found = time.process_time(), right(lab, name)
            bad |= top(lab, name) in found.values()
            print(f"{lab} {name}: top is {top(lab, name)}, {time.process_time() - began:.1f} s")
            for each, level in found.items():
                print(f"    level {level}: {each}", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
