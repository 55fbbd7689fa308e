"""Try a learner's function in the simulator: at once, the same every time, under NCCL's rules, and on many numbers of ranks."""

import contextlib
import time
from dataclasses import dataclass
from functools import partial

import torch

from ringtree.labs.comparing import difference, parts
from ringtree.labs.conditions import conditions, one_thread
from ringtree.labs.error_text import error_text
from ringtree.labs.exercise import Answer, Case, Run
from ringtree.labs.forbidding import Forbidden, without
from ringtree.labs.patches import put_back
from ringtree.simulated import simulate
from ringtree.simulated.deadline import Deadline, TimeIsUp
from ringtree.units import count_text


@dataclass
class Verdict:
    """What a check found.

    fault: what is wrong, in words; "" where the answer is right. runs: how many were made. level: 0 where it is right, 1, 2 …
    for the levels above; None where it is wrong. next_level: what the next level asks and what was counted, in words.
    case: the smallest that ended with a fault, and program: the function as it ran there, so that it can be drawn.
    """

    fault: str
    runs: int
    level: int | None = None
    next_level: str = ""
    case: Case | None = None
    program: object = None


def judge(name, function, exercise, seconds=10.0):
    """Try `function` on all cases of `exercise`; returns a Verdict. seconds: of real time, for all of it; one run has half of
    that at least, for a right answer on a busy machine."""
    with put_back():
        if isinstance(exercise, Answer):
            return _judge_answer(name, function, exercise, seconds)
        with one_thread():
            return _judge_program(name, function, exercise, seconds)


def _judge_program(name, function, exercise, seconds):
    deadline = time.monotonic() + seconds
    runs, cases = [], list(exercise.cases())
    again = next((number for number, case in enumerate(cases) if case.size > 2), 0)
    # One more run finds a function that remembers; and by Gloo's rules a batch gives a list of as many works as it has messages.
    tried = [(case, "nccl") for case in cases]
    tried.insert(again + 1, (cases[again], "gloo"))
    for case, rules in tried:
        program, where = program_of(function, case, exercise), f"{name}, {case}{', run once more' if rules == 'gloo' else ''}"
        kept, returned = [None] * case.size, [None] * case.size
        try:
            with conditions(exercise):
                simulation = simulate(
                    _keeping(program, kept, returned),
                    list(case.given),
                    case.machine,
                    checked=True,
                    rules=rules,
                    seconds=round(max(seconds / 2, deadline - time.monotonic()), 1),
                    autograd=exercise.harness is not None,
                )
        except TimeIsUp:  # between two steps, where the simulator cannot say which rank was running
            wrong = f"{where}: it had not ended when its time was up: does it loop?"
            return Verdict(wrong, len(runs))
        except KeyboardInterrupt:  # the learner's own
            raise
        except BaseException as error:
            return Verdict(f"{where}: {error_text(name, error)}", len(runs))
        run = Run(case, program, simulation, kept, returned, exercise.harness is not None)
        if wrong := _mistake(run, exercise) or exercise.also and exercise.also(run) or _from_nowhere(run, exercise):
            return Verdict(f"{where}: {wrong}.", len(runs), case=case, program=program)
        runs.append(run)
    level, more = _level(exercise, runs)
    return Verdict("", len(runs), level, more)


def program_of(function, case, exercise):
    """The function, in its exercise's harness, with a case's options.

    Each rank has options of its own: what one does to a list is nothing to the others.
    """
    called = partial(exercise.harness, function) if exercise.harness else function

    def program(*arguments):
        return called(*arguments, **_anew(case.options))

    return program


def _anew(value):
    """The same value in new lists and dicts: whoever is given them may change them."""
    if isinstance(value, dict):
        return {key: _anew(each) for key, each in value.items()}
    return type(value)(map(_anew, value)) if type(value) in (list, tuple) else value


def _keeping(program, kept, returned):
    """The program; the arguments of each rank are kept, as it leaves them, and what it returned, also where that is nothing."""

    def keeping(*arguments):
        rank = arguments[-1].get_rank()
        kept[rank] = arguments[:-1]
        returned[rank] = program(*arguments)

    return keeping


def _mistake(run, exercise):
    case = run.case
    wanted = case.wanted(case.given)
    for rank in range(case.size):
        if wanted[rank] is None or (found := difference(run.outputs[rank], wanted[rank])) is None:
            continue
        said, place = found
        later = [other for other in range(rank + 1, case.size) if wanted[other] is not None]
        others = [other for other in later if difference(run.outputs[other], wanted[other])]
        reason = _reason(run, exercise, rank, place) if place else None
        also = f"; {count_text(len(others), 'other rank')} wrong too" if others else ""
        return f"rank {rank} {said}{f': {reason}' if reason else ''}{also}"
    if exercise.keeps:
        for rank, given in enumerate(case.given):
            if difference(list(run.kept[rank]), list(given if isinstance(given, tuple) else [given])):
                return f"rank {rank} has changed what it was given: the caller still needs that"
    return None


def _from_nowhere(run, exercise):
    """Complains of a rank that knows what others were given, and has received nothing. In the simulator all are one process."""
    given, wanted = run.case.given, run.case.wanted(run.case.given)
    for rank in () if exercise.harness else range(run.case.size):
        if wanted[rank] is None or run.trace.bytes_received[rank]:
            continue
        try:
            others = run.case.wanted(tuple(each if other == rank else _changed(each) for other, each in enumerate(given)))
        except Exception:  # these numbers fit no others
            continue
        if difference(others[rank], wanted[rank]):
            return f"rank {rank} knows what others were given and has received no byte: ranks share neither memory nor files"
    return None


def _changed(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_changed, value))
    return 2 * value + 1 if isinstance(value, torch.Tensor) and value.dtype is not torch.bool else value


def _reason(run, exercise, rank, place):
    if exercise.tells:
        return exercise.tells(run, rank, place[1])
    if not exercise.adds:
        return None

    def outputs(given):
        with conditions(exercise), contextlib.redirect_stdout(None):  # on other numbers than those that are shown
            machine, autograd = run.case.machine, exercise.harness is not None
            return simulate(run._program, list(given), machine, trace=False, seconds=2.0, autograd=autograd).outputs

    try:
        return parts(outputs, run.case, rank, place)
    except Exception:  # on other numbers it may do anything
        return None


def _level(exercise, runs):
    """(how many levels hold, in all runs; what the next one asks)."""
    for number, level in enumerate(exercise.levels):
        for limit in level.limits:
            for run in runs:
                most = limit.most(run.case)
                if most is None:
                    continue
                with conditions(exercise):
                    count = limit.count(run)  # it may have to run the function again
                if count > most:
                    enough = f"{limit.show(most)} {'is' if most == 1 else 'are'} enough"
                    asked = f"{run.case}: {limit.show(count)} {limit.what}, where {enough}"
                    return number, f"Not yet {level.name}: {asked}."
    return len(exercise.levels), ""


def _judge_answer(name, function, exercise, seconds):
    deadline, levels = time.monotonic() + seconds, len(exercise.levels)
    runs, reached, more = 0, levels, ""
    for question in sorted(exercise.questions(), key=lambda each: each.level):
        if question.level > reached:
            break
        try:
            with Deadline(max(seconds / 2, deadline - time.monotonic())), put_back(), without(exercise.without):
                answer = function(*_anew(question.arguments))
            wrong = question.wrong(answer)
        except Forbidden:
            names = " or ".join(each.__name__ for each in exercise.without)
            wrong = f"it calls {names}: here you are to do without."
        except TimeIsUp:
            wrong = "had not ended when its time was up: does it loop?"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            wrong = error_text(name, error)
        if wrong and question.level == 0:
            return Verdict(f"{name}, {question.says}: {wrong}", runs)
        if wrong:
            reached, more = question.level - 1, f"Not yet {exercise.levels[question.level - 1].name}: {question.says}: {wrong}"
        runs += 1
    return Verdict("", runs, reached, more)
