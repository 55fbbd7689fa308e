"""The names of `ringtree` that cells ask a reader to know, and what each of them does."""

import ast
import importlib
import inspect
import itertools
import pathlib
import pkgutil
import re

# What notebooks call the things that they get from `ringtree.start` and `labs.open`, and rooms that a cell before may have imported.
GIVEN = {
    "ringtree": ("ringtree", ""),
    "ranks": ("ringtree.live.cluster", "Ranks"),
    "lab": ("ringtree.labs.lab", "Lab"),
    **{room: (f"ringtree.{room}", "") for room in ("draw", "labs", "measure", "theory", "data")},
}


def used(cells):
    """Return {name: (module, name in it)} of what code cells import of `ringtree`, and of the attributes of what they import."""
    found, bases = {}, dict(GIVEN)
    trees = [ast.parse(python_of(cell.source)) for cell in cells]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "ringtree":
            for each in node.names:
                found[each.name] = bases[each.asname or each.name] = node.module, each.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bases:
            module, inside = bases[node.value.id]
            found[f"{node.value.id}.{node.attr}"] = module, f"{inside}.{node.attr}".lstrip(".")
    return found


def python_of(source):
    return "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))


def what_it_does(module, name):
    """Return the first sentence of a docstring, on one line and fit for a table."""
    found = pkgutil.resolve_name(f"{module}.{name}")  # imports the modules on the way that nobody has imported yet
    doc = inspect.getdoc(found) or ""
    if not callable(found) and doc == inspect.getdoc(type(found)):
        doc = below_assignment(module, name.rpartition(".")[2])
    first = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", first)[0].replace("|", "\\|")


def below_assignment(module, name):
    """Return the string below the assignment of a constant: a dict or a number has no docstring of its own."""
    folder = pathlib.Path(importlib.import_module(module).__file__).parent
    for file in sorted(folder.rglob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for assignment, below in itertools.pairwise(body):
            if (
                isinstance(assignment, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == name for target in assignment.targets)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                return inspect.cleandoc(below.value.value)
    return ""
