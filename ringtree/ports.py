"""Ports that carry one message at a time: when is the next one free?

A port is a list of the stretches of time for which it is taken, (start, end), in order; bookings that
meet end to end make one stretch, and a port that was never used is an empty list. The simulator's clock
and the emulated link book by the same rule: a message takes all its ports at once, at the first moment
at which all are free for as long as it lasts, and so an earlier gap that it fits into.
"""

from bisect import bisect
from math import inf


def book(ports, ready, duration, memory=0.0):
    """Take all `ports` for `duration` at the first moment from `ready` on; returns that moment.

    What ended more than `memory` seconds before `ready` is forgotten, to keep the lists short: give more
    than 0 where the next booking may be ready earlier than this one.
    """
    start, past, gaps = ready, ready - memory, False
    for port in ports:
        while port and port[0][1] < past:
            del port[0]
        if port:
            if port[-1][1] > start:
                start = port[-1][1]  # from here on all are free, for good
            if port[-1][0] > ready:
                gaps = True
    if gaps:
        start = _first_fit(ports, ready, duration)
    end = start + duration
    if end > start:
        for port in ports:
            if not port or port[-1][1] < start:
                port.append((start, end))
            elif port[-1][1] == start:
                port[-1] = port[-1][0], end
            else:
                _fit_in(port, start, end)
    return start


def _first_fit(ports, ready, duration):
    """The first moment from `ready` on at which every port is free for `duration`."""
    start, before = ready, None
    while start != before:
        before = start
        for port in ports:
            for begin, end in port[max(0, bisect(port, (start, inf)) - 1) :]:
                if begin > start and begin >= start + duration:
                    break
                if end > start:
                    start = end
    return start


def _fit_in(port, start, end):
    """Note a booking in a gap."""
    at = bisect(port, (start, end))
    if at and port[at - 1][1] == start:
        at -= 1
        start = port.pop(at)[0]
    if at < len(port) and port[at][0] == end:
        end = port.pop(at)[1]
    port.insert(at, (start, end))
