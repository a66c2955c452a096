"""States of stages filled, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlinit.stages.states import StageStates, num_counted


@pytest.mark.parametrize("counts", [(1,), (5,), (2, 3), (1, 1, 1, 1), (3, 1, 2), (4, 4)])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 20])
def test_counted_states_are_all_counts(counts: tuple[int, ...], most: int) -> None:
    """Every way to fill at most so many stages is a state; steps lead from each to its neighbours and back."""
    rows = sorted(
        (row for row in itertools.product(*(range(count + 1) for count in counts)) if sum(row) <= most),
        key=lambda row: row[::-1],
    )
    number = {row: at for at, row in enumerate(rows)}
    states = StageStates.counted(np.array(counts), most)
    assert num_counted(np.array(counts), most) == states.num_states == len(rows)
    assert (np.array(counts) - states.left).tolist() == [list(row) for row in rows]
    for at, row in enumerate(rows):
        for c in range(len(counts)):
            more = (*row[:c], row[c] + 1, *row[c + 1 :])
            fewer = (*row[:c], row[c] - 1, *row[c + 1 :])
            assert states.step[at, c] == number.get(more, -1)
            assert states.fewer[at, c] == number.get(fewer, -1)


def test_the_number_of_states_needs_no_states() -> None:
    """Also where they are more than a machine number."""
    assert num_counted(np.ones(200, np.int64), 200) == 2**200
    assert num_counted(np.ones(62, np.int64), 3) == 1 + 62 + 62 * 61 // 2 + 62 * 61 * 60 // 6


def test_states_in_order_leave_the_stages_after_them() -> None:
    """State j is the first j stages, whatever their classes."""
    states = StageStates.in_order(np.array([0, 1, 0]), 2)
    assert states.step.tolist() == [[1, -1], [-1, 2], [3, -1], [-1, -1]]
    assert states.left.tolist() == [[2, 1], [1, 1], [1, 0], [0, 0]]
