"""Stands for a learner's function in the judge: called like it, while the function itself runs in processes of its own.

Nothing that such a process says is a verdict. It says which call of `dist` comes next, and with what; the call is carried
out here, by the simulator, which counts. Its answer goes back, and so on until the function returns.
"""

import importlib
import itertools
import linecache
import re
import types
from dataclasses import dataclass
from functools import cache, partial

import torch

from ringtree import computing
from ringtree.calls import OPERATIONS
from ringtree.labs.exercise import CheckFailed, Program, tensors
from ringtree.labs.forbidding import Forbidden
from ringtree.labs.marking.dist import FORWARDED
from ringtree.labs.marking.encoding import DTYPES, Decoder, Encoder, NotUnderstood
from ringtree.labs.marking.mirrors import Mirrors
from ringtree.labs.marking.pipe import Ended, Garbled
from ringtree.simulated import ProgramError
from ringtree.simulated.dist import Group

ENDED = "the process that ran it has ended: it left Python, or took more memory, files or time than it may"
GARBLED = "the process that ran it said what has no meaning here"
REDUCTIONS = {str(each).rpartition(".")[2]: each for each in OPERATIONS}
VALUE = torch.zeros(1)

_serial = itertools.count(1)


class StandIn:
    """A learner's function, as `ringtree.labs.judging.judge` calls it.

    ranks: the `Ranks` in whose processes it runs. cells: {number: text} of the notebook, for the lines that a report shows.
    records: classes whose objects an answer may be made of.
    """

    def __init__(self, name, exercise, ranks, cells, records=()):
        self._name, self._exercise, self._ranks = name, exercise, ranks
        self._records = {(each.__module__, each.__qualname__): each for each in records}
        serial = next(_serial)
        self._files = {}
        for number, text in cells.items():
            filename = f"<cell {number} of answer {serial}>"
            linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
            self._files[number] = filename

    def __call__(self, *arguments, **options):
        given, dist = (arguments[:-1], arguments[-1]) if isinstance(self._exercise, Program) else (arguments, None)
        try:
            rank = self._ranks.idle(dist.get_rank() if dist else 0)
            rank.busy = True
            conversation = Conversation(rank.pipe, dist, self._files, self._records)
            answer = conversation.hold(self._start(dist), given, options, getattr(self._exercise, "without", ()))
            rank.busy = False
            return answer
        except _Raised as raised:
            rank.busy = False
            raise raised.error from None
        except Ended:
            raise ProgramError(ENDED) from None
        except (NotUnderstood, Garbled, LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ProgramError(GARBLED) from error

    def _start(self, dist):
        size = dist.get_world_size() if dist else 0
        forbids = dist is not None and not self._exercise.builtin
        harness = getattr(self._exercise, "harness", None)
        named = [harness.__module__, harness.__qualname__] if harness else None
        return {"name": self._name, "rank": dist.get_rank() if dist else 0, "size": size, "forbids": forbids, "harness": named}


class _Raised(Exception):
    """The learner's function has raised `error`."""

    def __init__(self, error):
        super().__init__()
        self.error = error


class Conversation:
    """One run of the function on one rank."""

    def __init__(self, pipe, dist, files, records):
        self._pipe, self.dist, self._files = pipe, dist, files
        self._decoder = CallDecoder(self, records)
        self.mirrors, self.regions = Mirrors(), []
        self.works, self.groups, self.objects, self._errors = [], [], [], []

    def hold(self, message, given, options, without):
        encoder = GivenEncoder(self.objects)
        trees = {
            "arguments": encoder.encode(list(given)),
            "options": encoder.encode(options),
            "without": encoder.encode(without),
        }
        self._pipe.send(message | trees, encoder.blocks)
        while True:
            message, blocks = self._pipe.receive()
            kind = message["kind"]
            if kind == "returned":
                after = self._decoder.unpack(message["after"], blocks)
                for original, now in zip(given, after, strict=True):
                    leave(original, now)
                self._decoder.given = list(tensors(given))
                return self._decoder.unpack(message["value"], blocks)
            if kind == "raised":
                raise _Raised(self._error(message))
            self._answer(message, blocks)

    # -- what a message asks for

    def _answer(self, message, blocks):
        if message["looked"]:
            VALUE.item()  # by NCCL's rules a rank that looks at a value holds; the simulator sees that such operations come
        carry_out = {
            "call": self._call,
            "wait": self._wait,
            "done": self._wait,
            "touch": self._touch,
            "method": self._method,
            "compute": self._compute,
        }[message["kind"]]
        self.regions = []
        encoder = GivenEncoder(self.objects)
        try:
            value, put = carry_out(message, blocks, partial(self._at, message["at"]))
        except NotUnderstood:
            raise
        except Exception as error:  # the learner's function may catch it, as where `dist` is its own
            self._errors.append(error)
            told = {"error": len(self._errors) - 1, "type": type(error).__name__, "text": str(error)}
            self._pipe.send(told)
            return
        answer = {"value": self._encoded(value, encoder), "put": []}
        for storage, begin, data in put:
            encoder.blocks.append(data)
            answer["put"].append([storage, begin, len(encoder.blocks) - 1])
        self.mirrors.forget()
        self._pipe.send(answer, encoder.blocks)

    def _call(self, message, blocks, at):
        name = message["name"]
        if name not in FORWARDED or self.dist is None:
            raise NotUnderstood(f"a call of {name!r}")
        self.regions = self.mirrors.take(message["regions"], blocks)
        unpack = partial(self._decoder.unpack, blocks=blocks)
        args = [self._entries(unpack(each), at) for each in message["args"]]
        kwargs = {key: self._entries(unpack(each), at) for key, each in message["kwargs"].items()}
        value = at(partial(getattr(self.dist, name), *args, **kwargs))
        works = value if isinstance(value, list) and value and is_work(value[0]) else [value] if is_work(value) else []
        if not works:
            return value, [*self.mirrors.changed(self.regions)]
        for number, work in enumerate(works):
            self.works.append(work)
            mine = [self.regions[number]] if len(works) == len(self.regions) else self.regions
            self.mirrors.under_way[len(self.works) - 1] = mine
        return value, []

    def _entries(self, value, at):
        """Entries of a batch are made by the simulator's own P2POp, which may find fault with them."""
        if isinstance(value, list):
            return [self._entries(each, at) for each in value]
        return at(partial(self.dist.P2POp, value.op, value.tensor, *value.to)) if isinstance(value, Entry) else value

    def _wait(self, message, blocks, at):
        number = message["work"]
        work = self.works[number] if type(number) is int else None
        value = at(work.wait if message["kind"] == "wait" else work.is_completed)
        return value, [*self.mirrors.changed(self.mirrors.under_way.pop(number, ()))] if value else []

    def _touch(self, message, blocks, at):
        """The rank uses a buffer that is in flight: the same is done to the copy here, and the simulator says what it thinks."""
        tensor = self.mirrors.bytes_of(message["storage"], message["begin"], message["end"])
        at(partial(tensor.add_, 0) if message["written"] else tensor.clone)
        return None, []

    def _compute(self, message, blocks, at):
        at(partial(computing.compute, message["seconds"], message["label"]))
        return None, []

    def _method(self, message, blocks, at):
        named, number = message["name"], message["object"]
        if type(number) is not int or named not in methods_of(self.objects[number]):
            raise NotUnderstood(f"a call of {named!r}")
        args = self._decoder.unpack(message["args"], blocks)
        return at(partial(getattr(self.objects[number], named), *args)), []

    def _encoded(self, value, encoder):
        if isinstance(value, Group):
            self.groups.append(value)
            return ["group", len(self.groups) - 1, list(value.ranks)]
        if is_work(value) or isinstance(value, list) and value and is_work(value[0]):
            count = len(value) if isinstance(value, list) else 1
            return ["works", list(range(len(self.works) - count, len(self.works))), not isinstance(value, list)]
        return encoder.encode(value)

    def _error(self, message):
        number = message["error"]
        if type(number) is int and 0 <= number < len(self._errors):
            return self._errors[number]
        if message["unwritten"]:
            return NotImplementedError()
        if message["forbidden"]:
            return Forbidden()
        if message["complaint"]:
            return CheckFailed(str(message["text"])[:2000])
        name = re.sub(r"\W", "", str(message["type"])[:80]) or "Exception"
        return self._raised_at(message["at"], type(name, (Exception,), {})(str(message["text"])[:2000]))

    def _raised_at(self, steps, error):
        """The error, with the learner's line in its traceback."""
        try:
            self._at(steps, partial(_raise, error))
        except Exception as raised:
            return raised

    # -- where in the learner's text

    def _at(self, steps, call):
        """Call it from a frame that stands in the learner's lines, so that reports name those."""
        if not isinstance(steps, list) or len(steps) > 2:
            raise NotUnderstood("more than two places")
        for cell, function, line in reversed(steps):
            if type(cell) is not int or type(line) is not int or not 1 <= line < 10**6 or not isinstance(function, str):
                raise NotUnderstood("a place that is none")
            call = partial(_frame(self._files.get(cell, "<elsewhere>"), re.sub(r"[^\w<>]", "", function)[:80], line), call)
        return call()


def _raise(error):
    raise error


def _template(call):
    return call()


@cache
def _frame(filename, function, line):
    code = _template.__code__.replace(co_filename=filename, co_name=function, co_qualname=function, co_firstlineno=line)
    return types.FunctionType(code, {})


def is_work(value):
    return hasattr(value, "is_completed")


def methods_of(thing):
    """The public methods of an object that is handed over by reference; a function has its call."""
    if isinstance(thing, types.FunctionType | types.BuiltinFunctionType | types.MethodType | partial):
        return ["__call__"]
    members = {name: member for kind in reversed(type(thing).__mro__[:-1]) for name, member in vars(kind).items()}
    return [name for name, member in members.items() if isinstance(member, types.FunctionType) and name[0] != "_"]


def leave(original, now):
    """Leave in what a rank was given what its function has left there."""
    if isinstance(original, torch.Tensor):
        if isinstance(now, torch.Tensor) and now.dtype is original.dtype and now.shape == original.shape:
            original.copy_(now)
        else:
            original.data = now if isinstance(now, torch.Tensor) else torch.empty(0, dtype=original.dtype)
    elif isinstance(original, list):
        original[:] = now if isinstance(now, list) else []
    elif isinstance(original, tuple) and isinstance(now, tuple):
        for one, other in zip(original, now):
            leave(one, other)


class GivenEncoder(Encoder):
    """What a case gives: functions of this package by name; what has a behaviour stays here, and is called here."""

    def __init__(self, objects):
        super().__init__()
        self.objects = objects

    def other(self, value):
        if isinstance(value, types.FunctionType) and value.__module__.startswith("ringtree."):
            if getattr(importlib.import_module(value.__module__), value.__qualname__, None) is value:
                return ["function", value.__module__, value.__qualname__]
        self.objects.append(value)
        return ["reference", len(self.objects) - 1, type(value).__name__, methods_of(value)]


@dataclass
class Entry:
    """What the rank gave P2POp."""

    op: object
    tensor: object
    to: tuple


class CallDecoder(Decoder):
    """What a call of `dist` was given: tensors are views of the copies here."""

    def __init__(self, conversation, records):
        super().__init__(records)
        self.conversation = conversation
        self.given = []

    def read_given(self, number, shape, strides, offset):
        whole = self.given[number]
        if min([number, offset, *shape, *strides]) < 0 or not whole.is_contiguous():
            raise NotUnderstood(f"a view {shape}, {strides}, {offset}")
        return whole.as_strided(shape, strides, offset)  # beyond its storage it raises

    def read_view(self, number, dtype, shape, strides, offset):
        here = self.conversation
        return here.mirrors.view(here.regions[number], DTYPES[dtype], shape, strides, offset)

    def read_p2pop(self, op, tensor, to):
        op = getattr(self.conversation.dist, op) if op in ("isend", "irecv") else self.decode(op)
        return Entry(op, self.decode(tensor), tuple(self.decode(each) for each in to))

    def read_group(self, number):
        return self.conversation.groups[number]

    def read_reduceop(self, name):
        return REDUCTIONS[name]
