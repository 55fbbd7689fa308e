"""One rank in the learner's process: the function runs here, and every call of its `dist` is carried out by the judge."""

import builtins
import contextlib
import ctypes
import os
import sys
import tempfile
import traceback
from functools import partial

import torch

from ringtree import computing
from ringtree.labs.exercise import CheckFailed, tensors
from ringtree.labs.forbidding import Forbidden, without, without_ready_made
from ringtree.labs.judging import unwritten_memory_shows
from ringtree.labs.marking.cells import filename_of, run_cells
from ringtree.labs.marking.dist import MESSAGES, Group, P2POp, RankDist, Work, reference
from ringtree.labs.marking.encoding import NAMES, Encoder, TrustingDecoder
from ringtree.labs.marking.pipe import Ended
from ringtree.simulated import ProgramError
from ringtree.simulated.guard import overlap
from ringtree.simulated.torch_modes import told_of_operations


class CallEncoder(Encoder):
    """What a call of `dist` is given: a tensor goes over as a place in a storage, with its bytes where they are needed."""

    def __init__(self, talk):
        super().__init__()
        self.talk, self.regions, self.touches = talk, [], []
        self.receives = self.collective = False

    def tensor(self, value):
        storage = value.untyped_storage()
        name = NAMES.get(value.dtype)
        if value.layout is not torch.strided or value.device.type != "cpu" or name is None:
            return self.unknown(value)
        number, begin, end = self.talk.place(value, storage)
        block = None
        if not self.receives:
            self.blocks.append(ctypes.string_at(storage.data_ptr() + begin, end - begin))
            block = len(self.blocks) - 1
        self.regions.append([number, storage.nbytes(), begin, end, block])
        self.touches.append((value, self.receives or self.collective))
        shape, strides = list(value.shape), list(value.stride())
        return ["view", len(self.regions) - 1, name, shape, strides, value.storage_offset()]

    def other(self, value):
        if isinstance(value, P2POp):
            self.receives = value.op == "irecv"
            tensor, to = self.encode(value.tensor), {key: self.encode(each) for key, each in value.to.items()}
            self.receives = False
            return ["p2pop", value.op if value.op in ("isend", "irecv") else self.unknown(value.op), tensor, list(to.values())]
        if isinstance(value, Group):
            return ["group", value.number]
        if isinstance(value, torch.distributed.ReduceOp | torch.distributed.ReduceOp.RedOpType):
            return ["reduceop", str(value).rpartition(".")[2]]
        return self.unknown(value)


class ReturnEncoder(Encoder):
    """What a function returns: a tensor that lies in one of its arguments is told as a view of that one."""

    def __init__(self, arguments):
        super().__init__()
        self.given = list(tensors(arguments))

    def tensor(self, value):
        for number, given in enumerate(self.given):
            if (
                isinstance(given, torch.Tensor)
                and value.dtype is given.dtype
                and value.nbytes
                and _in_one_storage(value, given)
            ):
                return ["given", number, list(value.shape), list(value.stride()), value.storage_offset()]
        return super().tensor(value)


def _in_one_storage(one, whole):
    """Whether `one` lies in what `whole`, a tensor that fills its storage, has."""
    try:
        storage = whole.untyped_storage()
        fills = whole.is_contiguous() and storage.nbytes() == whole.nbytes
        return fills and one.untyped_storage().data_ptr() == storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor of a layout without one
        return False


class AnswerDecoder(TrustingDecoder):
    """What the judge sends: works, groups, and references to objects of its own."""

    def __init__(self, talk, touches=()):
        super().__init__()
        self.talk, self.touches = talk, touches

    def read_works(self, numbers, alone):
        each = [[one] for one in self.touches] if len(numbers) == len(self.touches) else [self.touches] * len(numbers)
        works = [Work(self.talk, number, touches) for number, touches in zip(numbers, each)]
        return works[0] if alone else works

    def read_group(self, number, ranks):
        return Group(number, ranks)

    def read_reference(self, number, kind, methods):
        return reference(self.talk, number, kind, methods)


class Talk:
    """The conversation with the judge during one run of the learner's function."""

    def __init__(self, pipe):
        self.pipe, self.over = pipe, False
        self.in_flight = {}  # by work, (tensor, written) of each of its buffers
        self.storages = {}  # by address, (its number, a tensor that keeps it alive), while a work or a call needs it
        self.numbered = 0
        self.looked = False  # whether the function has looked at a value since the last message
        self.speaking = False

    # -- what the function does to its tensors

    def used(self, tensor, written):
        """Where a tensor is in flight, the judge says whether it may be used so."""
        if self.in_flight and not self.speaking:
            for touches in [*self.in_flight.values()]:
                for buffer, is_written in touches:
                    if (written or is_written) and overlap(tensor, buffer):
                        number, begin, end = self.place(buffer, buffer.untyped_storage())
                        self.ask({"kind": "touch", "storage": number, "begin": begin, "end": end, "written": bool(written)})

    def read(self):
        self.looked = True

    def place(self, tensor, storage):
        """(number of its storage, first byte, byte after the last)."""
        address = storage.data_ptr()
        if address not in self.storages:
            self.numbered += 1
            self.storages[address] = self.numbered, tensor
        if not tensor.numel():
            return self.storages[address][0], 0, 0
        begin = tensor.storage_offset() * tensor.element_size()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return self.storages[address][0], begin, begin + (last + 1) * tensor.element_size()

    def landed(self, work):
        self.in_flight.pop(work, None)
        self.forget()

    def forget(self):
        """Storages that no work needs any more: their addresses may soon be others'."""
        needed = {buffer.untyped_storage().data_ptr() for touches in self.in_flight.values() for buffer, _ in touches}
        self.storages = {address: each for address, each in self.storages.items() if address in needed}

    # -- messages

    def call(self, name, args, kwargs):
        encoder = CallEncoder(self)
        encoder.receives, encoder.collective = name in ("recv", "irecv"), name not in MESSAGES
        self.speaking = True
        message = {
            "kind": "call",
            "name": name,
            "args": [encoder.encode(each) for each in args],
            "kwargs": {str(key): encoder.encode(each) for key, each in kwargs.items()},
            "regions": encoder.regions,
        }
        self.speaking = False
        answer = self.ask(message, encoder.blocks, encoder.touches)
        self.forget()
        return answer

    def method(self, number, name, args):
        encoder = Encoder()
        self.speaking = True
        tree, blocks = encoder.pack(list(args))
        self.speaking = False
        return self.ask({"kind": "method", "object": number, "name": name, "args": tree}, blocks)

    def compute(self, seconds, label):
        self.ask({"kind": "compute", "seconds": float(seconds), "label": str(label)[:200]})

    def ask(self, message, blocks=(), touches=()):
        if self.over:
            raise RuntimeError("this dist belongs to a run that is over")
        message |= {"at": _steps(sys._getframe()), "looked": self.looked}
        self.looked = False
        self.pipe.send(message, blocks)
        answer, blocks = self.pipe.receive()
        for number, begin, block in answer.get("put", ()):
            for address, (known, _) in self.storages.items():
                if known == number:
                    ctypes.memmove(address + begin, bytes(blocks[block]), len(blocks[block]))
        if "error" in answer:
            raise _error(answer)
        return AnswerDecoder(self, touches).unpack(answer["value"], blocks)


def _error(answer):
    """What the judge's `dist` raised, as the function may catch it here."""
    known = {"ProgramError": ProgramError, "Deadlock": ProgramError, "Forbidden": Forbidden}
    kind = known.get(answer["type"]) or getattr(builtins, answer["type"], None)
    kind = kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
    error = kind(answer["text"])
    error.judges_number = answer["error"]
    return error


def _steps(frame):
    """The outermost and the innermost line of the learner's cells: [cell, function, line] of each."""
    found = []
    while frame:
        if frame.f_code.co_filename.startswith("<cell "):
            found.append([_cell(frame.f_code.co_filename), frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    return [found[-1], found[0]] if len(found) > 1 else found


def _cell(filename):
    digits = filename.removeprefix(filename_of(0)[:-2]).removesuffix(">")
    return int(digits) if digits.isdecimal() else -1


# ---------------------------------------------------------------- what the process does


def serve(pipe):
    """Run the cells that the judge sends first, then the function that it names, as often as it asks."""
    first, _ = pipe.receive()
    os.chdir(tempfile.mkdtemp())
    cells = {int(number): text for number, text in first["cells"].items()}

    def begins(number):
        pipe.send({"kind": "cell", "number": number})

    names, wrong, late = run_cells(cells, first["skip"], first["seconds"], begins)
    defined = [name for name in first["names"] if callable(names.get(name))]
    pipe.send({"kind": "ready", "defined": defined, "wrong": wrong, "late": late})
    with contextlib.suppress(Ended):
        while True:
            message, blocks = pipe.receive()
            _run(pipe, names, message, blocks)


def _run(pipe, names, message, blocks):
    talk = Talk(pipe)
    decoder = AnswerDecoder(talk)
    arguments = decoder.unpack(message["arguments"], blocks)
    options = decoder.unpack(message["options"], blocks)
    given = [*arguments, RankDist(talk, message["rank"], message["size"])] if message["size"] else arguments
    try:
        with _conditions(talk, message, decoder.unpack(message["without"], blocks)):
            function = names[message["name"]]
            if message["harness"]:
                function = partial(decoder.read_function(*message["harness"]), function)
            answer = function(*given, **options)
    except BaseException as error:
        if isinstance(error, Ended):
            raise
        talk.over = True
        pipe.send(_raised(error))
        return
    talk.over = True
    encoder = ReturnEncoder(arguments)
    value = encoder.encode(answer)
    encoder.given = []  # the arguments themselves go by their contents
    pipe.send({"kind": "returned", "value": value, "after": encoder.encode(arguments)}, encoder.blocks)


@contextlib.contextmanager
def _conditions(talk, message, functions):
    """As where a lab's check runs a function in one process."""
    with contextlib.ExitStack() as stack:
        if message["size"]:
            stack.enter_context(unwritten_memory_shows())
            if message["forbids"]:
                stack.enter_context(without_ready_made())
            stack.enter_context(computing.inside(talk.compute))
            stack.enter_context(told_of_operations(used=talk.used, read=talk.read))
        else:
            stack.enter_context(without(functions))
        yield


def _raised(error):
    own = [each for each in traceback.walk_tb(error.__traceback__) if each[0].f_code.co_filename.startswith("<cell ")]
    try:
        text = str(error)
    except Exception:
        text = ""
    return {
        "kind": "raised",
        "error": getattr(error, "judges_number", None),
        "type": type(error).__name__[:80],
        "text": text[:2000],
        "at": [[_cell(frame.f_code.co_filename), frame.f_code.co_name, line] for frame, line in own[-1:]],
        "unwritten": isinstance(error, NotImplementedError),
        "forbidden": isinstance(error, Forbidden),
        "complaint": isinstance(error, CheckFailed),  # of a harness
    }
