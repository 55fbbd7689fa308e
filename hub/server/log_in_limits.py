"""How many log-ins are tried at once and after one another, for a name and from an address.

PAM takes seconds for a wrong password. Each name has its own few tries, so guesses at one name keep nobody else waiting. Names that
no account has are counted like others: the answer does not tell them apart.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from contextlib import contextmanager

AT_ONCE = 2  # tries for one name from one address
AT_ONCE_FOR_A_NAME = 6  # from all addresses
WRONG = 5  # tries for a name from an address, and then one in PAUSE seconds
WRONG_FROM_AN_ADDRESS = 60  # over all names, and then WRONG is FEW
FEW = 2
PAUSE = 60
FORGOTTEN = 600  # seconds after the last wrong try
MOST = 20_000  # names and addresses in memory


class Counts(OrderedDict):
    """{key: [tries that run, wrong tries, when the last was wrong]}; the oldest that nothing runs for go first."""

    def of(self, key, now):
        found = self.setdefault(key, [0, 0, -math.inf])
        if now - found[2] > FORGOTTEN:
            found[1] = 0
        self.move_to_end(key)
        return found

    def drop_oldest(self):
        for key in list(self)[: max(0, len(self) - MOST)]:
            if not self[key][0]:
                del self[key]


def network_of(address):
    """Return what counts as one address: of IPv6 a network of 2^64, since one host has as many."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a user's number
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))


class Limits:
    """`seconds_to_wait` before a try, and `with trying(…) as tried` around it."""

    def __init__(self, clock=time.monotonic):
        self.clock = clock
        self.pairs, self.names, self.addresses = Counts(), Counts(), Counts()

    def _of(self, name, address):
        now, name, address = self.clock(), name[:64], network_of(address)
        for counts in (self.pairs, self.names, self.addresses):
            counts.drop_oldest()
        return now, self.pairs.of((name, address), now), self.names.of(name, now), self.addresses.of(address, now)

    def seconds_to_wait(self, name, address):
        """0 if a try may begin, or else whole seconds."""
        now, (running, wrong, last), (running_anywhere, *_), (_, wrong_from_there, _) = self._of(name, address)
        if running >= AT_ONCE or running_anywhere >= AT_ONCE_FOR_A_NAME:
            return 5
        if wrong >= (WRONG if wrong_from_there < WRONG_FROM_AN_ADDRESS else FEW):
            return max(0, math.ceil(last + PAUSE - now))
        return 0

    @contextmanager
    def trying(self, name, address):
        """Count a try. It is a wrong one unless `succeeded()` is called."""
        _, *counts = self._of(name, address)
        for each in counts:
            each[0] += 1
        tried = _Try()
        try:
            yield tried
        finally:
            pair, *others = counts
            for each in counts:
                each[0] -= 1
            if tried.right:
                pair[1] = 0
            else:
                for each in (pair, *others):
                    each[1], each[2] = each[1] + 1, self.clock()


class _Try:
    right = False

    def succeeded(self):
        self.right = True
