"""The judge's own copies of the tensors that a rank sends from and receives into, for as long as a message needs them."""

from dataclasses import dataclass

import numpy as np
import torch

from ringtree.labs.marking.encoding import NotUnderstood

MOST = 2**29  # bytes of all copies of one rank


@dataclass(frozen=True)
class Region:
    """Bytes begin to end of a storage, and what the rank said that they were; None where it receives into them."""

    storage: int
    begin: int
    end: int
    sent: bytes | None


class Mirror:
    """A storage, byte by byte. Tensors that are views of one storage there are views of one here."""

    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes, np.uint8)
        self._typed = {}

    def view(self, dtype, shape, strides, offset):
        if dtype not in self._typed:
            whole = len(self.bytes) // dtype.itemsize * dtype.itemsize
            self._typed[dtype] = torch.from_numpy(self.bytes)[:whole].view(dtype)
        return self._typed[dtype].as_strided(shape, strides, offset)


class Mirrors:
    """All of one rank, by the numbers that the rank has given them."""

    def __init__(self):
        self._found = {}
        self.under_way = {}  # by work, its regions

    def take(self, told, blocks):
        """The regions of a call, whose bytes are now here. told: (storage, its bytes, begin, end, number of a block or None).

        What a message has brought and the rank has not yet waited for stays: the rank cannot know it.
        """
        regions = []
        for storage, nbytes, begin, end, block in told:
            numbers = (storage, nbytes, begin, end)
            if not all(type(each) is int and each >= 0 for each in numbers) or not begin <= end <= nbytes:
                raise NotUnderstood(f"a region {numbers}")
            mirror = self._of(storage, nbytes)
            sent = None if block is None else bytes(blocks[block])
            if sent is not None:
                if len(sent) != end - begin:
                    raise NotUnderstood(f"{len(sent)} bytes for a region {numbers}")
                kept = [(each, mirror.bytes[each.begin : each.end].copy()) for each in self._coming(storage)]
                mirror.bytes[begin:end] = np.frombuffer(sent, np.uint8)
                for each, before in kept:
                    mirror.bytes[each.begin : each.end] = before
            regions.append(Region(storage, begin, end, sent))
        return regions

    def view(self, region, dtype, shape, strides, offset):
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        return self._found[region.storage].view(dtype, shape, strides, offset)

    def changed(self, regions):
        """(storage, begin, bytes) of those regions that hold something else than the rank has."""
        for each in regions:
            now = self._found[each.storage].bytes[each.begin : each.end].tobytes()
            if now != each.sent:
                yield each.storage, each.begin, now

    def bytes_of(self, storage, begin, end):
        """These bytes as a tensor, for an operation on them."""
        return self._found[storage].view(torch.uint8, (end - begin,), (1,), begin)

    def forget(self):
        """What no work needs any more."""
        needed = {each.storage for regions in self.under_way.values() for each in regions}
        self._found = {number: mirror for number, mirror in self._found.items() if number in needed}

    def _of(self, storage, nbytes):
        if storage not in self._found:
            if nbytes + sum(len(each.bytes) for each in self._found.values()) > MOST:
                raise NotUnderstood(f"a storage of {nbytes} bytes")
            self._found[storage] = Mirror(nbytes)
        if len(self._found[storage].bytes) != nbytes:
            raise NotUnderstood("a storage of two sizes")
        return self._found[storage]

    def _coming(self, storage):
        return [
            each for regions in self.under_way.values() for each in regions if each.storage == storage and each.sent is None
        ]
