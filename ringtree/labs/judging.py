"""Try a learner's function in the simulator: at once, the same every time, under NCCL's rules, and on many numbers of ranks."""

import contextlib
import time
from dataclasses import dataclass
from functools import partial

import torch

from ringtree.labs.comparing import difference, factor, factor_text, given_text, parts
from ringtree.labs.conditions import conditions, one_thread
from ringtree.labs.error_text import error_text
from ringtree.labs.exercise import Answer, Case, CheckFailed, Run
from ringtree.labs.forbidding import Forbidden, without
from ringtree.labs.in_place import explain
from ringtree.labs.patches import put_back
from ringtree.simulated import ProgramError, simulate
from ringtree.simulated.deadline import Deadline, TimeIsUp
from ringtree.units import count_text

OF_A_LINE = "does not support item assignment", "NoneType"  # errors that a repaired line may explain
NOT_OF_NUMBERS = ProgramError, CheckFailed, NotImplementedError, Forbidden, MemoryError  # errors whatever a rank is given


@dataclass
class Verdict:
    """What a check found.

    fault: what is wrong, in words; "" where the answer is right. runs: how many were made. level: 0 where it is right, 1, 2 …
    for the levels above; None where it is wrong. next_level: what the next level asks and what was counted, in words.
    case: the smallest that ended with a fault, and program: the function as it ran there, so that it can be drawn.
    tried: what `judge` takes as `only` to run the same once more.
    """

    fault: str
    runs: int
    level: int | None = None
    next_level: str = ""
    case: Case | None = None
    program: object = None
    tried: object = None


def judge(name, function, exercise, seconds=10.0, only=None):
    """Try `function` on all cases of `exercise`; returns a Verdict. seconds: of real time, for all of it; one run has half of
    that at least, for a right answer on a busy machine. only: one of its cases or questions, to try that alone."""
    with put_back():
        if isinstance(exercise, Answer):
            return _judge_answer(name, function, exercise, seconds, only)
        with one_thread():
            return _judge_program(name, function, exercise, seconds, only)


def _judge_program(name, function, exercise, seconds, only):
    deadline = time.monotonic() + seconds
    runs, cases = [], list(exercise.cases())
    again = next((number for number, case in enumerate(cases) if case.size > 2), 0)
    # One more run finds a function that remembers; and by Gloo's rules a batch gives a list of as many works as it has messages.
    tried = [(case, "nccl") for case in cases]
    tried.insert(again + 1, (cases[again], "gloo"))
    if only is not None:
        tried = [only]
    for case, rules in tried:
        program, where = program_of(function, case, exercise), f"{name}, {case}{', run once more' if rules == 'gloo' else ''}"
        is_right = partial(_is_right, exercise=exercise, case=case, rules=rules)
        try:
            run = _run(program, exercise, case, rules, round(max(seconds / 2, deadline - time.monotonic()), 1))
        except TimeIsUp:  # between two steps, where the simulator cannot say which rank was running
            wrong = f"{where}: it had not ended when its time was up: does it loop?"
            return Verdict(wrong, len(runs), tried=(case, rules))
        except KeyboardInterrupt:  # the learner's own
            raise
        except BaseException as error:
            given = "" if isinstance(error, NOT_OF_NUMBERS) else f"\n  {given_text(case.given)}"
            if isinstance(error, TypeError | AttributeError) and any(words in str(error) for words in OF_A_LINE):
                given = _on_a_line(explain(function, is_right)) + given
            return Verdict(f"{where}: {error_text(name, error)}{given}", len(runs), tried=(case, rules))
        if wrong := _mistake(run, exercise):
            first, *others = _with_a_stop(wrong).split("\n")
            wrong = "\n".join([f"{first}{_on_a_line(explain(function, is_right))}", *others])
        elif wrong := exercise.also and exercise.also(run) or _from_nowhere(run, exercise):
            wrong = _with_a_stop(wrong)
        if wrong:
            return Verdict(f"{where}: {wrong}", len(runs), case=case, program=program, tried=(case, rules))
        runs.append(run)
    level, more = _level(exercise, runs) if only is None else (None, "")
    return Verdict("", len(runs), level, more)


def _run(program, exercise, case, rules, seconds):
    """The `Run` of a program on a case; raises whatever the program does."""
    kept, returned = [None] * case.size, [None] * case.size
    with conditions(exercise):
        simulation = simulate(
            _keeping(program, kept, returned),
            list(case.given),
            case.machine,
            checked=True,
            rules=rules,
            seconds=seconds,
            autograd=exercise.harness is not None,
        )
    return Run(case, program, simulation, kept, returned, exercise.harness is not None)


def _is_right(function, exercise, case, rules):
    """Return whether another function than the learner's is right on a case."""
    try:
        with contextlib.redirect_stdout(None):
            return _mistake(_run(program_of(function, case, exercise), exercise, case, rules, 1.0), exercise) is None
    except KeyboardInterrupt:
        raise
    except BaseException:  # TimeIsUp is one
        return False


def _on_a_line(text):
    return text and f"\n  {text}"


def _with_a_stop(sentence):
    """The sentence with its full stop; what follows on lines of its own has none."""
    first, *others = sentence.split("\n")
    return "\n".join([f"{first}.", *others])


def program_of(function, case, exercise):
    """The function, in its exercise's harness, with a case's options.

    Each rank has options of its own: what one does to a list is nothing to the others.
    """
    called = partial(exercise.harness, function) if exercise.harness else function

    def program(*arguments):
        return called(*arguments, **_anew(case.options))

    program.of = function  # the learner's own, for an exercise that looks at it by itself
    if not exercise.harness:
        program.__wrapped__ = function  # whose arguments have names
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
        reason = _reason(run, exercise, wanted, rank, place) if place else None
        also = f"; {count_text(len(others), 'other rank')} wrong too" if others else ""
        if exercise.keeps and _has_changed(run, rank):
            also += "; it has also changed what it was given"
        return f"rank {rank} {said}{f': {reason}' if reason else ''}{also}\n  {given_text(case.given)}"
    if exercise.keeps:
        for rank in range(case.size):
            if _has_changed(run, rank):
                return f"rank {rank} has changed what it was given: the caller still needs that"
    return None


def _has_changed(run, rank):
    """Tell whether a rank's arguments are no longer what it was given, or were never seen."""
    given, kept = run.case.given[rank], run.kept[rank]
    return kept is None or difference(list(kept), list(given if isinstance(given, tuple) else [given])) is not None


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


def _reason(run, exercise, wanted, rank, place):
    """Return why an element of a rank's answer is wrong, in words: by a factor, as its exercise tells, or by the parts of a sum; or None."""
    size, (way, element) = run.case.size, place
    said = []
    if found := factor(run.outputs, wanted, size):
        said.append(factor_text(found, size))
    elif found := factor([run.outputs[rank]], [wanted[rank]], size):
        said.append(factor_text(found, size, f"all that rank {rank} returned is"))
    if exercise.tells and (told_of := _told_by(exercise, run, rank, element)):
        said.append(told_of)
    if said:
        return ": ".join(said)
    answer, other = run.outputs[rank], wanted[rank]
    for each in way:
        answer, other = answer[each], other[each]
    if found := factor([answer], [other], size):
        return factor_text(found, size, "this is")
    return _parts(run, exercise, rank, place) if exercise.adds and not exercise.tells else None


def _told_by(exercise, run, rank, element):
    try:
        with contextlib.redirect_stdout(None):
            return exercise.tells(run, rank, element)
    except Exception:  # it may have run the function on other numbers, where it may do anything
        return None


def _parts(run, exercise, rank, place):
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


def _judge_answer(name, function, exercise, seconds, only):
    deadline, levels = time.monotonic() + seconds, len(exercise.levels)
    runs, reached, more = 0, levels, ""
    questions = [only] if only is not None else exercise.questions()
    for question in sorted(questions, key=lambda each: each.level):
        if question.level > reached:
            break
        try:
            with Deadline(max(seconds / 2, deadline - time.monotonic())), put_back(), without(exercise.without):
                answer = function(*_anew(question.arguments))
            wrong = question.wrong(answer)
        except Forbidden:
            names = " or ".join(each.__name__ for each in exercise.without)
            wrong = f"it calls {names}: here you have to do without."
        except TimeIsUp:
            wrong = "had not ended when its time was up: does it loop?"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            wrong = error_text(name, error)
        if wrong and (question.level == 0 or only is not None):
            return Verdict(f"{name}, {question.says}: {wrong}", runs, tried=question)
        if wrong:
            reached, more = question.level - 1, f"Not yet {exercise.levels[question.level - 1].name}: {question.says}: {wrong}"
        runs += 1
    return Verdict("", runs, reached, more)
