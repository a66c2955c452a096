"""What a tensor group of one kind of devices takes to exchange something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.tables import MeasuredTables
from rlinit.hardware import Hardware
from rlinit.stages.groups.lowering import Links, links_of


class Group(NamedTuple):
    """A group of t devices, the links between them, and measured tables where there are some."""

    t: int
    links: Links
    tables: MeasuredTables | None

    def all_reduce(self, size: float) -> float:
        """Return the seconds in which all get the sum of so many bytes: measured, else those of a ring."""
        return self._measured("all_reduce", size, 2.0)

    def all_gather(self, size: float) -> float:
        """Return the seconds in which all get so many bytes, of which each has a t-th: measured, else a ring's."""
        return self._measured("all_gather", size, 1.0)

    def seconds(self, all_reduce: FloatArray, all_gather: FloatArray) -> FloatArray:
        """Return (n,) seconds of all-reduces and gathers.

        Parameters
        ----------
        all_reduce, all_gather
            (n,) bytes of each.
        """
        pairs = zip(all_reduce.tolist(), all_gather.tolist(), strict=True)
        return np.array([self.all_reduce(added) + self.all_gather(size) for added, size in pairs])

    def all_to_all(self, size: float) -> float:
        """Return the seconds in which each sends the others so many bytes in all."""
        return (self.t - 1) * (self.links.inside_s + size / self.t / self.links.inside)

    def _measured(self, kind: Literal["all_reduce", "all_gather"], size: float, rounds: float) -> float:
        if self.t == 1 or size <= 0.0:
            return 0.0
        found = None if self.tables is None else self.tables.collective(kind, self.t, size)
        return rounds * self.all_to_all(size) if found is None else float(found.seconds[0])


def groups_of(of_kind: Hardware, tables: MeasuredTables | None, degrees: Sequence[int] | None) -> list[Group]:
    """Return the groups that devices of a kind may form.

    Parameters
    ----------
    of_kind
        Devices of one kind.
    tables
        Measured on them.
    degrees
        By default 1, 2, 4, ... as long as they divide a node.
    """
    links, room = links_of(of_kind), math.gcd(*map(len, of_kind.nodes.values()))
    powers = [t for t in (1 << i for i in range(room.bit_length())) if room % t == 0]
    return [Group(t, links, tables) for t in (powers if degrees is None else degrees)]
