"""Which stages a dynamic program has filled, as numbered states: counted by class, or in their order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray

LABEL_CAP = 60_000_000
"""Most labels (states times ideals, or prefixes of an order) to keep, 14 bytes each; and most transitions between
labels that are looked at for one set of weights of devices, some 0.1 s."""

MOST_STEPS = 10_000_000
"""States times classes, or ideals gone through in plain Python, to make at most; 24 to 32 bytes each."""


@dataclass(frozen=True, slots=True)
class StageStates:
    """Which stages are filled, as S states. State 0: none.

    Parameters
    ----------
    step
        (S, c) state after one more stage of class c, -1 where there is none.
    fewer
        (S, c) state with one stage of class c less, -1 where there is none. Unused where ordered.
    left
        (S, c) stages of each class that are left.
    ordered
        Whether stages come in one order and any of them may stay empty.
    """

    step: IntArray
    fewer: IntArray
    left: IntArray
    ordered: bool

    @staticmethod
    def counted(class_count: IntArray, most: int) -> StageStates:
        """Return states that count the stages filled of each class: any class may come at any time.

        Parameters
        ----------
        class_count
            (c,) stages of each class.
        most
            Stages that may be filled at all: no more than there are nodes.

        Notes
        -----
        As many as `num_counted` says: ask before, and hold them times the classes against `MOST_STEPS`.
        """
        possible = np.minimum(class_count, most)
        used = _counts(possible, most)
        if possible.sum() <= most:
            radix = np.concatenate([[1], np.cumprod(possible[:-1] + 1)]).astype(np.int64)
            numbers = np.arange(len(used))[:, None]
            step = np.where(used < possible, numbers + radix, -1)
        else:
            step = _steps(used, possible, most)
        fewer = np.full(used.shape, -1, np.int64)
        for c in range(len(class_count)):
            more = np.flatnonzero(step[:, c] >= 0)
            fewer[step[more, c], c] = more
        return StageStates(step, fewer, class_count - used, False)

    @staticmethod
    def in_order(stage_class: IntArray, num_classes: int) -> StageStates:
        """Return states that say how many of the stages, in their order, are done.

        Parameters
        ----------
        stage_class
            (k,) class of each stage.
        num_classes
            Number of classes c.
        """
        k = len(stage_class)
        step = np.full((k + 1, num_classes), -1, np.int64)
        step[np.arange(k), stage_class] = np.arange(1, k + 1)
        left = np.zeros((k + 1, num_classes), np.int64)
        for j in range(k - 1, -1, -1):
            left[j] = left[j + 1]
            left[j, stage_class[j]] += 1
        return StageStates(step, np.full_like(step, -1), left, True)

    def trace(
        self, state: int, at: int, back: NDArray[np.integer], via: NDArray[np.integer]
    ) -> tuple[list[int], list[int]]:
        """Return where the stages that led to a label end, and their classes, the first stage first.

        Parameters
        ----------
        state, at
            The label.
        back, via
            (S, p) where the last stage of each label begins, and its class.
        """
        ends, classes = [], []
        while state > 0:
            c = int(via[state, at])
            ends.append(at)
            classes.append(c)
            at, state = int(back[state, at]), state - 1 if self.ordered else int(self.fewer[state, c])
        return ends[::-1], classes[::-1]

    @property
    def num_states(self) -> int:
        """Number of states S."""
        return len(self.step)


def num_counted(class_count: IntArray, most: int) -> int:
    """Return how many states `StageStates.counted` has, without making them.

    Parameters
    ----------
    class_count
        (c,) stages of each class.
    most
        Stages that may be filled at all.
    """
    ways = [1] + [0] * most
    for count in class_count.tolist():
        sums = [0]
        for way in ways:
            sums.append(sums[-1] + way)
        ways = [sums[r + 1] - sums[max(0, r - count)] for r in range(most + 1)]
    return sum(ways)


def _counts(class_count: IntArray, most: int) -> IntArray:
    """Return (S, c) all counts of at most `most` stages, by the last class, then the one before it, and so on."""
    rows = np.zeros((1, 0), np.int64)
    for count in class_count[::-1].tolist():
        room = np.minimum(count, most - rows.sum(axis=1)) + 1
        ends = np.cumsum(room)
        column = np.arange(ends[-1]) - np.repeat(ends - room, room)
        rows = np.column_stack([column, np.repeat(rows, room, axis=0)])
    return rows


def _steps(used: IntArray, class_count: IntArray, most: int) -> IntArray:
    """Return (S, c) the state after one more stage of each class, for rows (S, c) that are all different."""
    whole = np.dtype((np.void, used.itemsize * used.shape[1]))
    rows = np.ascontiguousarray(used).view(whole).ravel()
    by_bytes = np.argsort(rows, kind="stable")
    total = used.sum(axis=1)
    step = np.full(used.shape, -1, np.int64)
    for c in range(len(class_count)):
        more = np.flatnonzero((used[:, c] < class_count[c]) & (total < most))
        one = used[more].copy()
        one[:, c] += 1
        step[more, c] = by_bytes[np.searchsorted(rows, one.view(whole).ravel(), sorter=by_bytes)]
    return step
