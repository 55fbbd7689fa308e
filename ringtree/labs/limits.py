"""Limits that many exercises share: rounds, messages, bytes through a port, and time beside a program of the book."""

from ringtree.labs.exercise import Limit
from ringtree.theory import cost_of
from ringtree.units import binary_text, seconds_text


def rounds(most) -> Limit:
    """most(case): how many rounds a right answer may take, or None where the case does not matter. So in all of these."""
    return Limit("rounds", lambda run: run.rounds, most)


def messages(most) -> Limit:
    return Limit("messages", lambda run: run.messages, most)


def port_bytes(most) -> Limit:
    return Limit("through the busier port of the busiest rank", lambda run: run.busiest_port, most, binary_text)


def seconds(where, part, program, large, options=lambda case: {}) -> Limit:
    """So much of the time that one of the book's programs takes on the case's machine.

    where: the machine, in words. large: bytes of a rank from which on a case counts. options(case): of the program, and of `cost_of`.
    """

    def most(case):
        if case.nbytes < large:
            return None
        return part * cost_of(program, case.size, case.nbytes, case.machine, **options(case)).time

    return Limit(where, lambda run: run.makespan, most, seconds_text)
