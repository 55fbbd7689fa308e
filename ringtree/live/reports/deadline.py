"""Wait for ranks with a deadline, and name who waits for whom when it passes.

`finish` waits for one piece of work on every rank and returns how it ended. Where not all ranks have finished,
`describe` tells each rank's state: finished, raised, died, or stuck at which line, waiting for which rank.
"""

import re
import signal
import time
from dataclasses import dataclass, field

from ringtree.waits import FINISHED, collective_wait, describe_circle, describe_place, message_wait, name_ranks
from ringtree.watching import without_colors

GRACE = 1.0  # seconds that the other ranks get to finish by themselves when one is in trouble
LOOK = 0.05  # seconds between two looks at processes


class RankError(Exception):
    """A rank raised. The others finished, and all variables are as the cell left them."""

    def __init__(self, report, details=()):
        super().__init__(report)
        self.report = report
        self.details = list(details)

    def _render_traceback_(self):
        name = type(self).__name__
        return [f"{name}: {self.report}", *(["", *self.details] if self.details else [])]


class RanksStuck(RankError):
    """Ranks waited for what never came. All ranks were restarted."""


class RankDied(RanksStuck):
    """A rank's process ended. All ranks were restarted."""


@dataclass
class Outcome:
    """How one piece of work ended on each rank.

    results: by rank, of those that finished. errors: by rank, ipyparallel's RemoteError.
    died: ranks whose process is gone, with their exit code (or None).
    stuck: by rank, where it is (see `ringtree.live.reports.diagnosis.Diagnosis.where`).
    reason: why the wait ended before all had finished, None if they all had.
    broken: what has ended that all ranks need (see `ringtree.live.processes.started.Started.broken`), or None.
    """

    results: dict = field(default_factory=dict)
    errors: dict = field(default_factory=dict)
    died: dict = field(default_factory=dict)
    stuck: dict = field(default_factory=dict)
    reason: str | None = None
    broken: tuple | None = None

    @property
    def lost(self):
        """Return whether ranks are stuck or gone, so that all must be started afresh."""
        return bool(self.died or self.stuck or self.broken)

    @property
    def error(self):
        """The kind of error that this is, or None where all ranks have finished."""
        if self.died or self.broken:
            return RankDied
        return RanksStuck if self.stuck else RankError if self.errors else None


def finish(looking, result, ids, seconds, tell=None):
    """Wait until every rank has finished, or it is plain that some never will. Returns an `Outcome`.

    looking: a `ringtree.live.reports.diagnosis.Diagnosis`. result: an ipyparallel AsyncResult, one child a rank in `ids`.
    seconds: the deadline. tell(done ids, seconds waited): called now and then while waiting.
    """
    children = dict(zip(ids, result._children))
    began = time.monotonic()
    look_again = None  # once a rank is in trouble: when to ask where the others are
    reason = None
    try:
        while waiting := [i for i in ids if not children[i].done()]:
            now = time.monotonic()
            if now - began >= seconds:
                reason = f"after {seconds:g} s"
                break
            if looking.broken():
                break
            dead = looking.dead()
            if look_again is None and (dead or _failed(children)):
                look_again = now + GRACE
            elif look_again is not None and now >= look_again:
                alive = [i for i in waiting if i not in dead]
                if all(_waits(place) for place in looking.where(alive).values()):
                    reason = "left waiting"
                    break
                look_again = now + GRACE
            if tell:
                tell([i for i in ids if children[i].done()], now - began)
            result.wait(LOOK)
    except KeyboardInterrupt:
        reason = "interrupted"
    outcome = Outcome(reason=reason, broken=looking.broken(finished=reason is None))
    if outcome.broken:
        return outcome
    dead = looking.dead()
    unfinished = [i for i in ids if i not in dead and not children[i].done()]
    try:
        places = looking.where(unfinished)
    except KeyboardInterrupt:
        places = dict.fromkeys(unfinished, {"unknown": "it got no time to answer"})
    dead = looking.dead()  # anew, for one may have died while it was asked
    outcome.died = {i: looking.exit_code(i) for i in ids if i in dead}
    for i, child in children.items():
        if i in dead:
            continue
        if not child.done():
            outcome.stuck[i] = places[i]
        elif isinstance(value := child.result(), Exception):
            outcome.errors[i] = value
        else:  # perhaps while the others were asked where they are
            outcome.results[i] = value
    return outcome


def _failed(children):
    return any(child.done() and isinstance(child.result(), Exception) for child in children.values())


def _waits(place):
    """Return whether a rank waits in torch.distributed, or is silent and idle, rather than computing something that may end."""
    return not place["computes"] if "silent" in place else bool(place.get("call"))


# ---------------------------------------------------------------- the report


def describe(looking, outcome):
    """The report (the same text on every run of the same program) and its details."""
    if outcome.broken:
        return f"{describe_broken(outcome.broken)}.", []
    told, details, alike = {}, [], {}  # told: by whether it is the cause of the rest, and the first rank it is about
    for i, error in outcome.errors.items():
        alike.setdefault(_raised(outcome, error), []).append(i)
    told.update({(what == LOST, same[0]): f"{name_ranks(same)} {what}" for what, same in alike.items()})
    if outcome.errors and not outcome.died:
        first, error = next(iter(outcome.errors.items()))
        details += [f"rank {first}:", *(_no_addresses(line) for line in error.traceback.splitlines())]
    for i in {*outcome.died, *outcome.stuck, *outcome.results} if outcome.died or outcome.stuck else ():
        if i in outcome.died:
            words = looking.last_words(i)
            told[True, i] = f"rank {i} died{_cause(outcome.died[i], words)}{_stack(looking, i, fatal=True)}"
            if words and not SIZES_DIFFER.search(words):
                details.append(f"the last words of rank {i}: {words}")
        elif i in outcome.stuck:
            told[True, i] = f"rank {i} {_state(looking, outcome, i)}"
        else:
            told[True, i] = f"rank {i} finished"
    lines = [told[i] for i in sorted(told)]
    if outcome.died or outcome.stuck:
        lines.insert(0, _headline(outcome))
    if circle := describe_circle(_message_waits(outcome.stuck)):
        lines.append(circle)
    elif any(NO_GROUP.search(error.evalue) for error in outcome.errors.values()):
        lines.append("the ranks are no longer connected: ranks.restart() starts them afresh, without their variables")
    return "\n  ".join(lines), details


def describe_broken(broken):
    (what, why), code = broken
    return f"{what}, {why}, died{_cause(code, None)}"


def _raised(outcome, error):
    if outcome.died and LOST_PEER.search(error.evalue):
        return LOST
    said = _no_addresses(error.evalue).rstrip()
    return f"raised {error.ename}: {said}" if said else f"raised {error.ename}"


def _headline(outcome):
    stuck = list(outcome.stuck)
    if outcome.reason == "interrupted":
        return "interrupted." if not stuck else f"interrupted while {name_ranks(stuck)} had not finished."
    if outcome.died or (outcome.errors and outcome.reason == "left waiting") or not stuck:
        troubled = f"{name_ranks(list(outcome.died))} died" if outcome.died else f"{name_ranks(list(outcome.errors))} raised"
        if not stuck:
            return f"{troubled}."
        return f"{troubled}, and {name_ranks(stuck)} {'was' if len(stuck) == 1 else 'were'} left waiting."
    return f"{outcome.reason} {name_ranks(stuck)} had not finished."


def _cause(code, words):
    if code is None:
        return ""
    if sizes := SIZES_DIFFER.search(words or ""):
        return f": {sizes[1]} bytes came where {sizes[2]} were expected, and Gloo ended the process"
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (killed by hand, or by the system when memory ran out)" if name == "SIGKILL" else ""
        return f": ended by {name}{hint}"
    return f": its process exited with code {code}"


def _state(looking, outcome, i):
    place = outcome.stuck[i]
    if "silent" in place:
        return _silence(place, _stack(looking, i))
    if "unknown" in place:
        return f"could not say where it is: {place['unknown']}"
    if place["idle"]:
        return "has not started the cell: it is still busy with an earlier one, or between cells"
    at = describe_place(place["steps"])
    if not place["call"]:
        return f"is still running  [{at}]"
    return f"{_waits_for(outcome, place, i)}  [{at}]"


def _silence(place, stack):
    match place["silent"]:
        case "stopped":
            return "does not answer: its process is stopped (SIGSTOP)"
        case "gone":
            return "does not answer: it is no longer connected to this notebook"
        case "held":
            doing = "computes" if place["computes"] else "waits"
            return f"does not answer: it {doing} inside a call that holds the interpreter{stack}"
    return f"has not answered within {place['seconds']:g} s" + (stack and f"; its last lines:{stack}")


def _stack(looking, i, fatal=False):
    lines = looking.ranks[i].stack_lines(fatal)
    steps = [f"line {n}" if function == "<module>" else f"{function}, line {n}" for function, n in lines]
    return f"  [{'  →  '.join(steps)}]" if steps else ""


def _waits_for(outcome, place, i):
    call, direction, peers = place["call"], place["direction"], place["peers"]
    if direction in ("send", "recv"):
        peer = peers[0] if peers else None
        return message_wait(direction == "send", peer, _what_it_does(outcome, peer))
    if direction == "collective":
        others = {peer: outcome.stuck.get(peer) or {} for peer in peers if peer != i}
        absent = [peer for peer, its in others.items() if (its.get("call"), its.get("group")) != (call, place["group"])]
        if not absent:
            sizes = {place["elements"], *(its["elements"] for its in others.values())}
            # Which rank has which size is chance: some get past a first mismatch on some runs.
            return f"waits in {call}, where all its ranks are" + (", with different sizes" if len(sizes) > 1 else "")
        return collective_wait(call, {peer: _what_it_does(outcome, peer, call) for peer in absent})
    if direction == "exchange":
        return f"waits in {call} for {name_ranks(peers)}"
    return f"waits in {call}"


def _message_waits(stuck):
    return {
        i: where["peers"][0]
        for i, where in stuck.items()
        if where and where.get("peers") and where.get("direction") in ("send", "recv")
    }


def _what_it_does(outcome, peer, call=None):
    if peer in outcome.results:
        return FINISHED
    if peer in outcome.errors:
        return ", which raised"
    if peer in outcome.died:
        return ", which died"
    place = outcome.stuck.get(peer)
    if place and place.get("direction") == "collective":
        return f", which waits in {'another group' if place['call'] == call else place['call']}"
    return ""


LOST = "lost the connection"
LOST_PEER = re.compile("Connection (reset|closed)|Broken pipe|(Read|Write) error|aborted", re.IGNORECASE)
NO_GROUP = re.compile("Connection closed by peer|caused pair closure|process group has not been initialized")
SIZES_DIFFER = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")
ADDRESS = re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\]?:\d+|\[[0-9a-f:]+\]:\d+")
CELL_NAME = re.compile(r"\(\d+\.py, (?=line)")
LIBRARY_LINE = re.compile(r"(?:\[rank\d+\]:)?\[(?:[FEWI]\d{4} [\d:.]+ )?[^\]\s]*\.(?:cc|cpp|h|cu):\d+\] ?")


def _no_addresses(text):
    """Leave out colours, ports, file names of cells and places in a library's source: they differ from run to run."""
    return CELL_NAME.sub("(", LIBRARY_LINE.sub("", ADDRESS.sub("a peer", without_colors(text))))
