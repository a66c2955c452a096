"""Levels of searches over lines: states of what is placed from one end and which devices are used for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


class States(NamedTuple):
    """States of one level, w at most.

    Parameters
    ----------
    bits
        (w, words) ops that are placed.
    used
        (w, c) stages used of each class.
    parent, last
        (w,) state of the level before, and class of the last stage.
    sign
        (w,) hash of the state.
    rank, penalty
        (w,) for a beam: what is left against what the devices left can take, small is good, and what the tensors that
        are cut add to it.
    table
        (2^x,) open addressing by `sign`: index of a state, or -1.
    now
        (2,) number of states, and the one that has placed everything, or -1.
    """

    bits: NDArray[np.uint64]
    used: NDArray[np.int16]
    parent: IntArray
    last: IntArray
    sign: NDArray[np.uint64]
    rank: FloatArray
    penalty: FloatArray
    table: NDArray[np.int32]
    now: IntArray


def new_states(width: int, num_nodes: int, num_classes: int) -> States:
    """Return room for `width` states, none of them there yet.

    Parameters
    ----------
    width
        How many.
    num_nodes, num_classes
        Sizes of the problem.
    """
    return States(
        np.zeros((width, (num_nodes + 63) // 64), np.uint64),
        np.zeros((width, num_classes), np.int16),
        np.full(width, -1, np.int64),
        np.full(width, -1, np.int64),
        np.zeros(width, np.uint64),
        np.zeros(width),
        np.zeros(width),
        np.full(1 << (2 * width - 1).bit_length(), -1, np.int32),
        np.array([0, -1]),
    )


def chosen_states(states: States, rows: IntArray) -> States:
    """Return copies of some states, without a table.

    Parameters
    ----------
    states
        Where they are.
    rows
        Which, in the order they get.
    """
    return States(
        states.bits[rows],
        states.used[rows],
        states.parent[rows],
        states.last[rows],
        states.sign[rows],
        states.rank[rows],
        states.penalty[rows],
        np.zeros(0, np.int32),
        np.array([len(rows), -1]),
    )


@njit(cache=True, nogil=True)
def _slot(states: States, sign: np.uint64, bits: NDArray[np.uint64], used: NDArray[np.int16]) -> int:
    """Return the slot of a state that is there, or the free one that it belongs to, as -1 - slot."""
    mask = len(states.table) - 1
    at = np.int64((sign ^ (sign >> np.uint64(29))) & np.uint64(mask))
    while states.table[at] >= 0:
        i = states.table[at]
        if states.sign[i] == sign:
            same = True
            for w in range(len(bits)):
                same &= states.bits[i, w] == bits[w]
            for c in range(len(used)):
                same &= states.used[i, c] == used[c]
            if same:
                return int(at)
        at = (at + 1) & mask
    return int(-1 - at)


@njit(cache=True, nogil=True)
def remember(
    states: States, sign: np.uint64, bits: NDArray[np.uint64], used: NDArray[np.int16], parent: int, last: int
) -> int:
    """Append a state unless it is there already, and return its index, or -1 where it was there.

    Parameters
    ----------
    states
        The level; has room for another one.
    sign, bits, used
        The state.
    parent, last
        Where it came from, and the class of its last stage.
    """
    slot = _slot(states, sign, bits, used)
    if slot >= 0:
        return -1
    i = states.now[0]
    states.table[-1 - slot] = i
    states.bits[i] = bits
    states.used[i] = used
    states.sign[i] = sign
    states.parent[i] = parent
    states.last[i] = last
    states.now[0] += 1
    return int(i)
