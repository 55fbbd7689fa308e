"""What is wrong with a rank program, in words: which ranks, which lines, what to do."""

import linecache
import os
import sys
import traceback

from ringtree.collectives import call_names
from ringtree.errors import UsageError, a_kind
from ringtree.speaks import no_other_rank
from ringtree.waits import FINISHED, collective_wait, describe_circle, describe_place, join_words, message_wait, name_ranks

HERE = os.path.dirname(__file__)
GROUND = os.path.dirname(HERE)  # the files in it, not those in its rooms
COMPUTING = os.path.join(os.path.dirname(HERE), "computing.py")
STANDARD = os.path.dirname(os.__file__) + os.sep
CHECKING = os.path.join(os.path.dirname(HERE), "labs")  # what calls a learner's function is no part of it
SPEAKS = os.path.join(os.path.dirname(HERE), "speaks.py")
DIST = os.path.join(HERE, "dist.py")
NOT_THEIRS = HERE, CHECKING, *(os.path.join(CHECKING, each) for each in ("marking", "harnesses"))


class ProgramError(Exception):
    """A rank program is wrong; the message names ranks and lines."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class BadCall(ProgramError, UsageError):
    """A rank program calls one of our functions, or `dist`, with something that it does not take."""


class Deadlock(ProgramError):
    """Ranks wait for what never comes. waits: from each waiting rank to the rank it waits for. rules: the names of
    NCCL's rules that hold them, where it is a deadlock by those."""

    rules = ()

    def __init__(self, text, waits):
        super().__init__(text)
        self.waits = waits


# -- where in the program ------------------------------------------------------


def program_steps(frame):
    """The program's own frames, outermost first, as (function, line number, source)."""
    places = []
    # Nothing here may wait, not even for a file: the program would run on, and a frame that it leaves has no caller.
    while frame:
        if frame.f_code.co_name == "_call" and frame.f_code.co_filename == DIST:
            places.clear()  # the algorithm of a collective is ours
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return [
        (code.co_name, line, linecache.getline(code.co_filename, line).strip())
        for code, line in reversed(places)
        if not _hidden(code.co_filename)
    ]


def _hidden(file):
    if os.path.dirname(file) in NOT_THEIRS or file in (COMPUTING, SPEAKS) or os.sep + "torch" + os.sep in file:
        return True
    return file.startswith(STANDARD) and "site-packages" not in file


def caller(above=2):
    """Return where the function that asks was called: the code and the instruction. above: how many calls up that stands."""
    frame = sys._getframe(above)
    return frame.f_code, frame.f_lasti


def _at(work):
    return line_text(*work.place)


def line_text(code, instruction):
    """Return where a call stands: `caller`'s code and instruction, in words."""
    # a line is worked out only where it is told: that takes longer than a message
    number = next(line for start, end, line in code.co_lines() if start <= instruction < end)
    return describe_place([(code.co_name, number, linecache.getline(code.co_filename, number).strip())])


def _here():
    """The line of the program that runs now."""
    return describe_place(program_steps(sys._getframe())[-1:])


# -- a run that cannot go on ---------------------------------------------------


def deadlock(ranks, streams, rules):
    """Of all `ranks`, and the streams beside them, some wait forever. rules: which were asked for."""
    beside = {}  # by rank, the first of its streams that cannot go on
    for stream in streams:
        if stream.current is not None:
            beside.setdefault(stream.number, stream)
    stuck = [_Stuck(rank, beside.get(rank.number)) for rank in ranks if not rank.greenlet.dead or rank.number in beside]
    for each in stuck:
        each.find_missing(ranks, stuck)
    waits = {each.rank.number: each.waits_for for each in stuck}
    lines = ["deadlock." if len(stuck) == len(ranks) else f"deadlock: {name_ranks(waits)} can never finish."]
    lines += [f"rank {each.rank.number} {each.text()}" for each in stuck]
    if circle := describe_circle(waits):
        lines.append(circle)
    if rules == "nccl":
        lines.append("this run follows Gloo's rules. NCCL's allow less at once, so there a rank may hang at an earlier call")
    return Deadlock("\n  ".join(lines), waits)


class _Stuck:
    """What one rank waits for: a message, a collective that it is in, or one beside it.

    holder: the rank, or its stream, that stands in this. inside: the collective, or None. missing: from each of its ranks
    that has not called it to what that rank does instead. doing: likewise, of the rank that a message waits for.
    """

    def __init__(self, rank, stream):
        self.rank = rank
        asked = None if rank.greenlet.dead else rank.waiting
        self.stream = asked.stream if hasattr(asked, "stream") else stream if rank.greenlet.dead else None
        self.holder = self.stream or rank
        self.inside = self.holder.inside
        self.missing, self.doing = {}, ""

    def find_missing(self, ranks, stuck):
        if self.inside is not None:
            group, count = self.inside.group, self.inside.count
            missing = [each for each in self.inside.ranks if (ranks[each].called or {}).get(group, 0) < count]
            self.missing = {each: self._what_it_does(each, stuck) for each in missing}
        if self.missing:
            self.waits_for = min(self.missing, key=lambda each: not ranks[each].greenlet.dead)
            return
        self.waits_for = self.holder.waiting.peer
        self.doing = self._what_it_does(self.waits_for, stuck)

    def _what_it_does(self, peer, stuck):
        other = next((each for each in stuck if each.rank.number == peer), None)
        if other is None or other.rank.greenlet.dead:
            return FINISHED
        if other.inside is None:
            return ""
        call = other.inside.asked.function
        if self.inside is None or self.inside.asked.function != call:
            return f", which waits in {call}"
        return (
            ", which waits in another group"
            if self.inside.group != other.inside.group
            else f", which waits in an earlier {call}"
        )

    def text(self):
        rank, stream = self.rank, self.stream
        if self.missing:
            message = collective_wait(self.inside.asked.function, self.missing)
        else:
            work = self.holder.waiting
            message = message_wait(work.sends, work.peer, self.doing)
        if rank.greenlet.dead:
            return f"has ended, and still {message}  [{_at(stream.current)}]"
        where = describe_place(program_steps(rank.greenlet.gr_frame))
        if stream is None:
            return f"{message}  [{where}]"
        called = _at(stream.current)
        if rank.waiting is stream.current:
            return f"{message}  [{where}]" + (f", called at  [{called}]" if called != where else "")
        return f"{message}  [{called}], and behind it for its {rank.waiting.asked.function}  [{where}]"


def endless(rank, deadline):
    place = describe_place(deadline.steps) if deadline.steps else "its program"
    return ProgramError(
        f"the program had not ended after {deadline.seconds:g} s of real time; rank {rank} was running  [{place}]"
    )


def never_met(works):
    """Halves of messages are left whose other halves nobody asked for: the first of them is told."""
    work = min(works, key=lambda work: (work.rank.number, work.peer) if work.sends else (work.peer, work.rank.number))
    rank, peer = work.rank.number, work.peer
    if work.sends:
        return ProgramError(
            f"rank {rank} sent {work.tensor.nbytes} bytes to rank {peer}, which never received them  [{_at(work)}]"
        )
    return ProgramError(f"rank {rank} asked for a message from rank {peer}, which never sent it  [{_at(work)}]")


# -- two halves of a message ---------------------------------------------------


def mismatch(send, receive):
    return ProgramError(
        f"rank {send.rank.number} sends {send.tensor.nbytes} bytes of {send.tensor.dtype} to rank {send.peer}  [{_at(send)}], "
        f"which expects {receive.tensor.nbytes} bytes of {receive.tensor.dtype}  [{_at(receive)}]: give both tensors one "
        "size and dtype"
    )


def with_gaps(work):
    way = f"sends rank {work.peer}" if work.sends else f"receives from rank {work.peer} into"
    return ProgramError(
        f"rank {work.rank.number} {way} a tensor with gaps in memory, which torch.distributed refuses  [{_at(work)}]: "
        "give a contiguous one (x.contiguous() makes a copy)"
    )


def no_tensor(work):
    verb = "send" if work.sends else "receive into"
    return TypeError(f"rank {work.rank.number} wants to {verb} {a_kind(work.tensor)}  [{_at(work)}]: give a tensor")


def touched(work, written, is_written):
    """The running rank uses a buffer of a message, or of a collective, that may still be on its way."""
    rank = work.rank.number
    verb = "changes" if written else "reads"
    if hasattr(work, "asked"):
        return ProgramError(
            f"rank {rank} {verb} a buffer of its {work.asked.function}, which may still be running  [{_here()}]: "
            f"wait() for it first  [{_at(work)}]"
        )
    if not is_written:
        return ProgramError(
            f"rank {rank} changes the buffer that it is sending to rank {work.peer}  [{_here()}]: "
            f"wait() for the send first  [{_at(work)}]"
        )
    return ProgramError(
        f"rank {rank} {verb} the buffer for a message from rank {work.peer} "
        f"that may not have arrived  [{_here()}]: wait() for it first  [{_at(work)}]"
    )


def both_ways(work):
    """One batch sends from memory into which it also receives."""
    return ProgramError(
        f"rank {work.rank.number} sends from and receives into the same memory in one batch  [{_at(work)}]: "
        "give each a tensor of its own"
    )


def never_waited(work):
    """The program has ended, and nobody has asked whether this is done."""
    if hasattr(work, "asked"):
        what = work.asked.function
    else:
        what = f"{'isend to' if work.sends else 'irecv from'} rank {work.peer}"
    return ProgramError(f"rank {work.rank.number} never waited for its {what}  [{_at(work)}]: wait() for it before the end")


# -- collectives that cannot meet ----------------------------------------------


def differ(send, receive, turns):
    """Ranks that are in one collective gave it tensors that do not fit: the halves of a message show it.

    turns: ranks and streams, some of which are in that collective.
    """
    inside = send.rank.inside
    call, row = inside.asked.function, inside.asked.row
    if row.before == "blocks":
        given, taken = _size_texts([send.tensor, receive.tensor])
        source, target = send.rank.number, receive.rank.number
        lines = _lines([send.rank, receive.rank])
        return ProgramError(
            f"in {call} rank {source} gives {given} to rank {target}, which takes {taken} from it{lines}: the ranks' "
            "tensors or split sizes do not fit"
        )
    same = [each for each in turns if each.inside and (each.inside.group, each.inside.count) == (inside.group, inside.count)]
    texts = _size_texts([_share(each.inside.asked) for each in same])
    found = {}
    for each, text in zip(same, texts):
        found.setdefault(text, []).append(each)
    told = join_words(f"{text} on {name_ranks(sorted(each.number for each in some))}" for text, some in found.items())
    lines = _lines([some[0] for some in found.values()])
    return ProgramError(f"{call} has {told}{lines}: give all ranks of the group tensors of the same size and dtype")


def _share(asked):
    """The tensor that has one size and dtype on all ranks: the full vector, or this rank's shard where it is cut."""
    return min((each for each in asked.tensors if hasattr(each, "numel")), key=lambda each: each.numel())


def _size_texts(tensors):
    """`8 numbers` each; with the type where the types differ, and the type alone where only they do."""
    sizes = [f"{each.numel()} number{'' if each.numel() == 1 else 's'}" for each in tensors]
    types = [str(each.dtype).removeprefix("torch.") for each in tensors]
    if len(set(types)) == 1:
        return sizes
    return types if len(set(sizes)) == 1 else [f"{size} ({dtype})" for size, dtype in zip(sizes, types)]


def _lines(turns):
    """Return where in the program these ranks or streams called the collective that they are in: one line where it is the same."""
    places = [
        _at(turn.current) if hasattr(turn, "current") else describe_place(program_steps(turn.greenlet.gr_frame))
        for turn in turns
    ]
    if len(set(places)) == 1:
        return f"  [{places[0]}]"
    return "".join(f"  [rank {turn.number}: {place}]" for turn, place in zip(turns, places))


def other_collective(count, first, second):
    """The k-th collectives that two ranks called in one group are not the same. first, second: (asked, rank, place)."""
    (one, rank, place), (other, another, there) = first, second
    return ProgramError(
        f"collective {count + 1} of the group is {_call_text(one)} on rank {rank}  [{line_text(*place)}] and "
        f"{_call_text(other)} on rank {another}  [{line_text(*there)}]: all ranks of a group must call the same collectives in the same order"
    )


def _call_text(asked):
    details = [] if asked.root is None else [f"root {asked.root}"]
    details += [] if asked.op is None else [str(asked.op).rpartition(".")[2]]
    return asked.function + (f" ({', '.join(details)})" if details else "")


# -- a call that cannot be meant -----------------------------------------------


def bad_call(rank, error):
    """The BadCall for an error that a rank's program raised; None where the program itself, or torch, raised it."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    refused = isinstance(error, ValueError | TypeError) and os.path.dirname(frames[-1][0].co_filename) in (HERE, GROUND)
    if isinstance(error, ProgramError) or not (refused or isinstance(error, UsageError)):
        return None
    theirs = [
        (code, line) for code, line in frames if not _hidden(code.co_filename) and os.path.dirname(code.co_filename) != GROUND
    ]
    place = [(code.co_name, line, linecache.getline(code.co_filename, line).strip()) for code, line in theirs[-1:]]
    return BadCall(f"rank {rank}: {error}" + (f"  [{describe_place(place)}]" if place else ""))


def wrong_peer(rank, size, peer, sends):
    return misuse(rank, no_other_rank(peer, rank, size, sends))


def own_thread(rank, home):
    """A thread that a program has started calls the simulator. rank: None where unknown. home: the frame of the rank's thread."""
    # Where the thread runs nothing but our call, the line is that at which the rank stands.
    steps = program_steps(sys._getframe()) or (program_steps(home) if home else [])
    who = "a rank" if rank is None else f"rank {rank}"
    return ProgramError(
        f"{who} calls the simulator in a thread that it has started itself  [{describe_place(steps[-1:])}]: on a virtual clock "
        "a rank has one thread; make the call there, and use isend, irecv or async_op=True for work that goes on beside it"
    )


def no_tensor_given(rank, operations):
    given = next(tensor for _, tensor, _, _ in operations if not hasattr(tensor, "nbytes"))
    return misuse(rank, f"gives a message {a_kind(given)}: give it one tensor (torch.cat makes one of several)")


def misuse(rank, what):
    return ProgramError(f"rank {rank} {what}  [{_here()}]")


def lacks(name):
    return (
        f"the simulator has no {name!r}: rank programs use get_rank, get_world_size, send, recv, isend, irecv, "
        f"P2POp, batch_isend_irecv, new_group and the collectives {', '.join(call_names())}"
    )
