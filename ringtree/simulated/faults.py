"""What is wrong with a rank program, in words: which ranks, which lines, what to do."""

import linecache
import os
import sys
import traceback

from ringtree.collectives import call_names
from ringtree.errors import UsageError
from ringtree.speaks import no_other_rank
from ringtree.waits import describe_circle, describe_place, message_wait, name_ranks

HERE = os.path.dirname(__file__)
GROUND = os.path.dirname(HERE)  # the files in it, not those in its rooms
COMPUTING = os.path.join(os.path.dirname(HERE), "computing.py")
STANDARD = os.path.dirname(os.__file__) + os.sep
CHECKING = os.path.join(os.path.dirname(HERE), "labs")  # what calls a learner's function is no part of it
SPEAKS = os.path.join(os.path.dirname(HERE), "speaks.py")
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
    """Where the function that asks was called: the code and the instruction. above: how many calls up that stands."""
    frame = sys._getframe(above)
    return frame.f_code, frame.f_lasti


def _at(work):
    return line_text(*work.place)


def line_text(code, instruction):
    """Where a call stands: `caller`'s code and instruction, in words."""
    # a line is worked out only where it is told: that takes longer than a message
    number = next(line for start, end, line in code.co_lines() if start <= instruction < end)
    return describe_place([(code.co_name, number, linecache.getline(code.co_filename, number).strip())])


def _here():
    """The line of the program that runs now."""
    return describe_place(program_steps(sys._getframe())[-1:])


# -- a run that cannot go on ---------------------------------------------------


def deadlock(ranks, streams):
    """Of all `ranks`, and the streams beside them, some wait for ever."""
    beside = {stream.number: stream for stream in streams if stream.current is not None}
    stuck = [rank for rank in ranks if not rank.greenlet.dead or rank.number in beside]
    waits = {rank.number: _held_by(rank, beside).peer for rank in stuck}
    lines = ["deadlock." if len(stuck) == len(ranks) else f"deadlock: {name_ranks(waits)} can never finish."]
    for rank in stuck:
        work = _held_by(rank, beside)
        message = message_wait(work.sends, work.peer, "" if work.peer in waits else ", which has finished")
        if rank.number in beside and (rank.greenlet.dead or work is not rank.waiting):
            lines.append(f"rank {rank.number} {_beside(rank, beside[rank.number], message)}")
        else:
            lines.append(f"rank {rank.number} {message}  [{describe_place(program_steps(rank.greenlet.gr_frame))}]")
    if circle := describe_circle(waits):
        lines.append(circle)
    return Deadlock("\n  ".join(lines), waits)


def _held_by(rank, beside):
    """The half of a message that a rank waits for: its own, or that of a collective beside it."""
    stream = beside.get(rank.number)
    return stream.waiting if stream and (rank.greenlet.dead or hasattr(rank.waiting, "stream")) else rank.waiting


def _beside(rank, stream, message):
    """What a rank waits for where that is a collective on a stream, or where it has ended before such a one."""
    holds = f"its {stream.current.asked.function} {message}  [{_at(stream.current)}]"
    if rank.greenlet.dead:
        return f"has ended, and {holds}"
    where = describe_place(program_steps(rank.greenlet.gr_frame))
    if rank.waiting is stream.current:
        return f"waits  [{where}] for a collective: {holds}"
    return f"waits  [{where}] for its {rank.waiting.asked.function}, which comes behind another one: {holds}"


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
    return TypeError(f"rank {work.rank.number} wants to {verb} a {type(work.tensor).__name__}  [{_at(work)}]: give a tensor")


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


def never_waited(work):
    """The program has ended, and nobody has asked whether this is done."""
    if hasattr(work, "asked"):
        what = work.asked.function
    else:
        what = f"{'isend to' if work.sends else 'irecv from'} rank {work.peer}"
    return ProgramError(f"rank {work.rank.number} never waited for its {what}  [{_at(work)}]: wait() for it before the end")


# -- collectives that cannot meet ----------------------------------------------


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
        "a rank has one thread; make the call there, and use isend, irecv or async_op=True for what is to go on beside it"
    )


def no_tensor_given(rank, operations):
    given = next(tensor for _, tensor, _, _ in operations if not hasattr(tensor, "nbytes"))
    return misuse(rank, f"gives a message a {type(given).__name__}: give it one tensor (torch.cat makes one of several)")


def misuse(rank, what):
    return ProgramError(f"rank {rank} {what}  [{_here()}]")


def lacks(name):
    return (
        f"the simulator has no {name!r}: rank programs use get_rank, get_world_size, send, recv, isend, irecv, "
        f"P2POp, batch_isend_irecv, new_group and the collectives {', '.join(call_names())}"
    )
