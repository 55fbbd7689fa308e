"""Cells of notebooks that time two programs or more beside each other without a race over the table of algorithms."""

from __future__ import annotations

import ast

import nbformat

from ringtree.theory import ALGORITHMS

TIMES = ("cost_of", "simulate", "cost_table")
"""What times a program."""
PROGRAMS = {row.name for row in ALGORITHMS}


def beside_each_other(path) -> dict[str, list[str]]:
    """By the id of a code cell that calls one of TIMES on two programs or more and no race: the programs' names.

    A program is an algorithm of the table, by its function or its name, or a function of the notebook with a parameter
    `dist` that calls two of them or more; one that calls a single one stands for it. What an earlier cell put into a variable, or called in a function, counts where a later cell uses it.
    """
    found: dict[str, list[str]] = {}
    held: dict[str, set[str]] = {name: {name} for name in PROGRAMS}  # what a name stands for
    timing, racing = set(TIMES), {"race"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code" or (tree := _parsed(cell.source)) is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):  # under another name
                for alias in node.names:
                    held |= {alias.asname: held[alias.name]} if alias.asname and alias.name in held else {}
            elif isinstance(node, (ast.FunctionDef, ast.Assign)):
                _note(node, held, timing, racing)
        names = _names(tree)
        programs = set().union(*(held.get(name, set()) for name in names))
        if timing & names and not racing & names and len(programs) > 1:
            found[cell.id] = sorted(programs)
    return found


def _parsed(source):
    """Its Python, without magics; None for a cell in which there is none, or that runs on ranks."""
    if source.lstrip().startswith("%%"):
        return None
    return ast.parse("\n".join("pass" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()))


def _note(node, held, timing, racing):
    """What a definition or an assignment makes of its name."""
    if isinstance(node, ast.FunctionDef):
        inside = _names(node)
        if _is_program(node):
            calls = set().union(*(held.get(name, set()) for name in inside))
            held[node.name] = {node.name} if len(calls) > 1 else calls
            return
        if inside & racing:
            racing.add(node.name)
        elif inside & timing:
            timing.add(node.name)
        held[node.name] = set().union(*(held.get(name, set()) for name in inside))
        return
    inside = _names(node.value)
    stands_for = set().union(*(held.get(name, set()) for name in inside - timing))
    for target in node.targets:
        for name in (each.id for each in ast.walk(target) if isinstance(each, ast.Name)):
            if not inside & timing:  # a result is no program
                held[name] = stands_for


def _is_program(function) -> bool:
    return any(argument.arg == "dist" for argument in function.args.args)


def _names(tree) -> set[str]:
    """The names that are used, and texts that are the name of a program; not those in rank programs that are defined here."""
    names, left = set(), [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef) and node is not tree and _is_program(node):
            continue
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and node.value in PROGRAMS:
            names.add(node.value)
        left += ast.iter_child_nodes(node)
    return names
