"""Find the line of a learner's function that makes a new tensor where the one that was there should change.

    mine = mine + got           # a new tensor; the chunk that mine named is unchanged
    mine = chunks[i].clone()    # a copy; what is added to it does not reach the chunk
    mine.add(got)               # a new tensor that is dropped
    mine = dist.recv(got, left)  # not a tensor: what arrived is in got

Such a line is not guessed: it is repaired, and the case that failed is run again. Only a line whose repair makes the case
right is reported.
"""

import ast
import itertools
import linecache
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType

import torch

from ringtree.collectives import call_names

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
COPIES = {"clone", "copy", "deepcopy"}
# Of `dist`: they fill their first argument and do not return it.
FILLS = {"recv", *call_names()} - {"gather", "barrier"}
# What a repaired line calls
INTO, ITEM, KEEP, FILLED = "__ringtree_into", "__ringtree_item", "__ringtree_keep", "__ringtree_filled"
UNSEEN = "so the check sees no change"
MOST_SECONDS = 3.0
# What is reported first: of `x = x.clone()` the copy, not the new name.
ORDER = ast.Expr, ast.Call, ast.Assign, ast.AugAssign


@dataclass(frozen=True)
class Site:
    """A line that may be to blame. function: its name. line: its number. repair(statement): the statement to put in its place.
    says: what the line does. write: what to write instead. kind: of the statement or call."""

    function: str
    line: int
    number: int  # of the statement, in the order in which ast.walk comes by
    repair: Callable
    source: str
    says: str
    write: str
    kind: type

    def place(self):
        return f"[{self.function}, line {self.line}]"


def explain(function, is_right) -> str:
    """Say in sentences which line of a learner's function makes a new tensor where one should change; "" where none does.

    is_right(function): whether the case that failed is right with this function in the place of the learner's.
    """
    sources = _sources(function)
    sites = [site for name in sources for site in _sites(name, sources[name])]
    sites.sort(key=lambda site: ORDER.index(site.kind))
    until = time.process_time() + MOST_SECONDS  # of this process, whatever else the machine does
    useful = []
    for some in itertools.chain(((site,) for site in sites), _pairs(useful)):
        if time.process_time() > until:
            break
        changed = []  # what the repaired lines have changed in place
        right = is_right(_repaired(function, sources, some, changed))
        if changed or any(site.kind is ast.Call for site in some):
            if right:
                return _sentences(some)
            useful += some if len(some) == 1 else ()
    return ""


def _pairs(sites):
    """Each two of the sites, which are known only when the first pair is asked for; of one statement only one."""
    for one, other in itertools.combinations(sites, 2):
        if (one.function, one.number) != (other.function, other.number):
            yield one, other


def _sentences(sites):
    first, *others = sites
    said = [f"`{first.source}`  {first.place()} {first.says}. {first.write}."]
    said += [f"Likewise `{site.source}`  {site.place()}: {site.write[0].lower()}{site.write[1:]}." for site in others]
    return " ".join(said)


# -- the learner's functions ---------------------------------------------------


def _sources(function):
    """By name, (text, first line, file) of the function, and of those of the same notebook that it calls; {} where unknown."""
    found, ahead = {}, [function]
    while ahead:
        each = ahead.pop()
        if not isinstance(each, FunctionType) or each.__closure__ or each.__name__ in found:
            continue
        if each.__globals__ is not function.__globals__ or (definition := _definition(each)) is None:
            continue
        found[each.__name__] = definition
        ahead += [each.__globals__[name] for name in _names(each.__code__) if name in each.__globals__]
    return found if getattr(function, "__name__", None) in found else {}


def _names(code):
    """The names that a function, or one inside it, looks up outside."""
    return {*code.co_names, *(name for inner in code.co_consts if hasattr(inner, "co_names") for name in _names(inner))}


def _definition(function):
    """The tree of a plain function with the lines that it has in its cell, and its file."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    text = textwrap.dedent("".join(lines[:1] + list(itertools.takewhile(_inside(lines), lines[1:]))))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].decorator_list:
        return None
    return text, code.co_firstlineno, code.co_filename


def _inside(lines):
    """Return whether a line belongs to the function that begins with the first of these: it stands further in, or is empty."""
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return lambda line: not line.strip() or line.lstrip()[0] in ")#" or len(line) - len(line.lstrip()) > margin


def _repaired(function, sources, sites, changed):
    """The function, and those that it calls, with these statements repaired. changed: gets what they change in place."""
    into = partial(_into, changed)
    names = {**function.__globals__, INTO: into, ITEM: partial(_item, into), KEEP: partial(_keep, changed, into)}
    names[FILLED] = lambda result, filled: filled if result is None or type(result) is int else result
    for name, (text, first, file) in sources.items():
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        chosen = {id(nodes[site.number]): site for site in sites if site.function == name}
        tree = ast.fix_missing_locations(ast.increment_lineno(_Repairing(chosen).visit(tree), first - 1))
        exec(compile(tree, file, "exec"), names)
    return names[function.__name__]


class _Repairing(ast.NodeTransformer):
    def __init__(self, chosen):
        self.chosen = chosen

    def visit(self, node):
        site = self.chosen.get(id(node))
        return self.generic_visit(node) if site is None else ast.copy_location(site.repair(node), node)


def _into(changed, old, new):
    """Put a new tensor's contents into the one that was there, where they are of one form; return what has the name then."""
    fits = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    if not fits or old is new or old.shape != new.shape or old.dtype != new.dtype:
        return new
    with torch.no_grad():
        old.copy_(new)
    changed.append(old)
    return old


def _keep(changed, into, old, new):
    """Return what nothing has kept: a tensor goes into the old one, or gets its name; anything else stays without one."""
    if not isinstance(new, torch.Tensor):
        return old
    changed.append(new)
    return into(old, new)


def _item(into, items, place, new):
    if isinstance(items, list | tuple):
        into(items[place], new)
    else:
        items[place] = new


# -- the lines that may be to blame ----------------------------------------------


def _sites(name, definition):
    text, first, _ = definition
    tree = ast.parse(text)
    returned = [node.value.id for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)]
    parameters = [each.arg for each in tree.body[0].args.args[:-1]]  # the last is dist
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in alone:
            continue
        for repair, source, says, write in _ways(node, list(dict.fromkeys(returned + parameters)), parameters):
            yield Site(name, first + node.lineno - 1, number, repair, source, says, write, type(node))


def _ways(node, names, parameters):
    """(repair, source, says, write) of the ways to repair a node."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=method), args=[*args]) if _copied(value, method, args) is not None:
            copied = ast.unparse(_copied(value, method, args))
            says = f"makes a copy. What you do to the copy does not change {copied}, {UNSEEN}"
            yield (
                lambda node: _copied(node.func.value, node.func.attr, node.args),
                ast.unparse(node),
                says,
                f"Use `{copied}` itself",
            )
        case ast.Call(func=ast.Attribute(value=ast.Name(id="dist"), attr=method), args=[filled, *_]) if method in FILLS:
            filled = ast.unparse(filled)
            returns = "the sender's number" if method == "recv" else "None"
            says = f"returns {returns}, and its result is in {filled}"
            yield _filled, ast.unparse(node), says, f"Write it on a line of its own, and then use `{filled}`"
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            says = (
                f"makes a new tensor and gives it the name {name}. The tensor that {name} named before is unchanged, {UNSEEN}"
            )
            yield _rebind(name), ast.unparse(node), says, f"Write `{_in_place(name, value)}`, which changes it in place"
        case ast.Assign(targets=[ast.Subscript(slice=index)], value=value) if not isinstance(index, ast.Slice | ast.Tuple):
            target = ast.unparse(node.targets[0])
            says = (
                f"replaces a tensor of a list (a tuple does not allow that). The tensor that was there is unchanged, {UNSEEN}"
            )
            yield _put(lambda node: node.value), ast.unparse(node), says, f"Write `{target}.copy_({ast.unparse(value)})`"
        case ast.AugAssign(target=ast.Subscript(slice=index)) if not isinstance(index, ast.Slice | ast.Tuple):
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            instead = (
                f"{target}.add_({value})" if isinstance(node.op, ast.Add) else f"mine = {target}, and change mine in place"
            )
            says = "also assigns to a place of a tuple, which Python does not allow"
            yield _put(_sum), ast.unparse(node), says, f"Write `{instead}`"
        case ast.Expr(value=ast.Call() | ast.BinOp() as value):
            yield from _dropped(node, value, names, parameters)


def _copied(value, method, args):
    """Return what `value.method(args)` copies: x of x.clone(), torch.clone(x), copy.copy(x); None where it makes no copy."""
    if method not in COPIES:
        return None
    if isinstance(value, ast.Name) and value.id in ("torch", "copy"):
        return args[0] if len(args) == 1 else None
    return value if method == "clone" and not args else None


def _call(function, *args):
    return ast.Call(ast.Name(function, ast.Load()), list(args), [])


def _named(name):
    """The value that a name has, or None."""
    return ast.parse(f"locals().get({name!r})", mode="eval").body


def _rebind(name, function=INTO):
    return lambda node: ast.Assign([ast.Name(name, ast.Store())], _call(function, _named(name), node.value))


def _filled(node):
    return _call(FILLED, node, node.args[0])


def _put(new):
    def repair(node):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.Expr(_call(ITEM, target.value, target.slice, new(node)))

    return repair


def _sum(node):
    return ast.BinOp(ast.Subscript(node.target.value, node.target.slice, ast.Load()), node.op, node.value)


def _in_place(name, value):
    """`mine += got`, or `mine.copy_(…)`."""
    if isinstance(value, ast.BinOp) and type(value.op) in SIGNS:
        sides = [value.left, value.right]
        if isinstance(value.op, ast.Add | ast.Mult) and ast.unparse(value.right) == name:
            sides.reverse()
        if ast.unparse(sides[0]) == name:
            return f"{name} {SIGNS[type(value.op)]}= {ast.unparse(sides[1])}"
    return f"{name}.copy_({ast.unparse(value)})"


def _dropped(node, value, names, parameters):
    """Of a statement whose result nothing keeps: into what it works on, or into what is returned or was given."""
    source, says = ast.unparse(value), "makes a new tensor, and nothing keeps it"
    on = _works_on(value)
    if on is not None:
        text = ast.unparse(on)
        method = value.func.attr if isinstance(value, ast.Call) and value.func.value is on else None
        if method and hasattr(torch.Tensor, f"{method}_"):
            write = f"{text}.{method}_({', '.join(map(ast.unparse, value.args))})"
        else:
            write = _in_place(text, value)
        repair = lambda node: ast.Expr(_call(INTO, _works_on(node.value), node.value))  # noqa: E731
        yield repair, source, f"{says}: {text} is unchanged", f"Write `{write}`"
    for name in names:
        write = f"{name}.copy_({source})" if name in parameters else f"{name} = {source}"
        yield _rebind(name, KEEP), source, says, f"Write `{write}`"


def _works_on(value):
    """x of x.add(y), torch.add(x, y) and x + y; None where that is no single thing."""
    if isinstance(value, ast.BinOp):
        return value.left
    if not isinstance(value.func, ast.Attribute):
        return None
    if isinstance(value.func.value, ast.Name) and value.func.value.id == "torch":
        return value.args[0] if value.args else None
    return value.func.value
