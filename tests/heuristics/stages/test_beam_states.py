"""Levels of states hold each state once."""

from __future__ import annotations

import numpy as np

from rlinit.heuristics.stages.beam.states import chosen_states, new_states, remember


def test_a_state_is_remembered_once() -> None:
    """States of one hash are told apart by their ops and devices; chosen ones stay what they are."""
    rng = np.random.default_rng(0)
    states = new_states(50, 70, 3)
    known: list[tuple[bytes, bytes]] = []
    for _ in range(200):
        bits, used = rng.integers(0, 2, 2).astype(np.uint64), rng.integers(0, 2, 3).astype(np.int16)
        state = (bits.tobytes(), used.tobytes())
        at = remember(states, np.uint64(7), bits, used, 3, 1)
        assert (at < 0) == (state in known)
        if at >= 0:
            assert at == len(known)
            known.append(state)
    assert len(known) == states.now[0] == 32
    rows = np.array([5, 2, 9])
    few = chosen_states(states, rows)
    assert [(few.bits[i].tobytes(), few.used[i].tobytes()) for i in range(3)] == [known[i] for i in rows.tolist()]
