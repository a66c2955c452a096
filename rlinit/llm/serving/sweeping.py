"""A beam search that lays spans from the first layer to the last, for a rate that is to be passed.

A state is a front: the layer at which flow waits for devices, how much of it in which network, and the flow that
devices behind the front pass until their spans end. One step puts a device there. Flow that ends at one layer is
divided anew among the devices that begin there; between networks no more goes than the links of those devices let
through. Rates and flows are whole numbers of steps, rates rounded down.

States are ranked by what the rest must cost: for prices of the kinds, each layer needs devices that pass what is
missing there, which `least_covers` prices, and what is left of the devices is what there is to pay. A state whose rest
costs more than is left, at any of the prices, leads nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import MOST_CELLS, SAFETY, FloatArray, IntArray
from rlinit.kernels.compiled import njit

_PRIME = np.uint64(1099511628211)
"""Multiplier of the hashes of states, that of Fowler, Noll and Vo."""


class Sweep(NamedTuple):
    """What a sweep goes by, in steps of the rate.

    Parameters
    ----------
    weights
        (K, L, J) steps that a kind passes from a first layer on, with j + 1 layers.
    counts, networks
        (K,) devices of a kind, and the network they are in.
    crossing
        (n + 1, n) steps from a device that ends in a network to one that begins; the last row is that of the source.
    prices
        (M, K) of a device, in several ways; all devices cost 1 together.
    covers
        (M, C, G + 1) least cost of so many steps in a layer of a class.
    classes
        (L,) class of each layer.
    balance
        What states are ranked behind others by, for each layer's flow that a network lacks devices for.
    """

    weights: IntArray
    counts: IntArray
    networks: IntArray
    crossing: IntArray
    prices: FloatArray
    covers: FloatArray
    classes: IntArray
    balance: float


class _Front(NamedTuple):
    """States at one layer, at most W.

    Of n networks, for each of the next layers: the flow in each network, then the devices that end before it; the pools
    that wait at the front, that of the source last; devices left of each kind.
    """

    states: NDArray[np.int32]
    costs: FloatArray
    scores: FloatArray
    nodes: IntArray
    hashes: NDArray[np.uint64]
    held: IntArray


@njit(cache=True, nogil=True)
def _lower(prices: FloatArray, others: FloatArray, more: float) -> bool:
    """Set prices to others and so much more where that is less; return whether it is anywhere.

    Its indices are those of the loop alone, so that it compiles to vector instructions.
    """
    better = False
    for g in range(len(prices)):
        price = others[g] + more
        better |= price < prices[g]
        prices[g] = min(prices[g], price)
    return better


@njit(cache=True, nogil=True)
def least_covers(
    starts: IntArray, weights: IntArray, units: FloatArray, counts: IntArray, prices: FloatArray, table: FloatArray
) -> None:
    """Set the least price of devices that pass g steps together, for each g.

    Parameters
    ----------
    starts
        (K + 1,) where the ways of a kind to hold a layer start.
    weights, units
        Steps that each way passes, and the share of the device's price that it costs.
    counts, prices
        (K,) of the kinds.
    table
        (D + K + 1, G + 1) receives a row of prices for each kind of devices of those before it, then one for each
        number of devices of it with these; at last that of all kinds. inf where the devices do not pass as much.
    """
    size, row = table.shape[1], 0
    table[:] = np.inf
    table[0, 0] = 0.0
    for k in range(len(counts)):
        least = table[row + counts[k] + 1]
        least[:] = table[row]
        for n in range(row, row + counts[k]):
            before, after = table[n], table[n + 1]
            for at in range(starts[k], starts[k + 1]):
                weight, cost = weights[at], prices[k] * units[at]
                lowest = before[0] + cost
                for g in range(weight):
                    after[g] = min(after[g], lowest)
                _lower(after[weight:], before[: size - weight], cost)
            better = _lower(least, after, 0.0)
            if not better:
                break
        row += counts[k] + 1


@njit(cache=True, nogil=True)
def used_units(
    starts: IntArray, weights: IntArray, units: FloatArray, counts: IntArray, prices: FloatArray, table: FloatArray,
    goal: int,
) -> FloatArray:  # fmt: skip
    """Return (K,) units of each kind in the choice of `least_covers` for a number of steps.

    Parameters
    ----------
    starts, weights, units, counts, prices, table
        As there.
    goal
        Steps that have a price.
    """
    used, last = np.zeros(len(counts)), len(table) - 1
    for k in range(len(counts) - 1, -1, -1):
        row = last - counts[k] - 1
        for n in range(row, last):
            if table[n, goal] == table[last, goal]:
                break
        for before in range(n - 1, row - 1, -1):
            for at in range(starts[k], starts[k + 1]):
                rest = max(0, goal - weights[at])
                if table[before, rest] + prices[k] * units[at] == table[before + 1, goal]:
                    used[k] += units[at]
                    goal = rest
                    break
        last = row
    return used


@njit(cache=True, nogil=True)
def _put(front: _Front, state: NDArray[np.int32], costs: FloatArray, score: float, node: int) -> bool:
    """Keep a state where it is new and among the best."""
    code = np.uint64(0)
    for value in state.flat:
        code = (code ^ np.uint64(value + 1)) * _PRIME
        code ^= code >> np.uint64(29)
    at = front.held[0]
    for q in range(at):
        if front.hashes[q] == code:
            return False
    if at == len(front.scores):
        at = int(np.argmax(front.scores))
        if front.scores[at] <= score:
            return False
    else:
        front.held[0] += 1
    front.states[at] = state
    front.costs[at] = costs
    front.scores[at], front.nodes[at], front.hashes[at] = score, node, code
    return True


@njit(cache=True, nogil=True)
def _draw(state: NDArray[np.int32], weight: int, network: int, crossing: IntArray, taken: IntArray) -> int:
    """Return what a device draws from the pools, of its own network first, and set how much from each."""
    n = crossing.shape[1]
    total = 0
    for turn in range(n + 1):
        q = network if turn == 0 else turn - 1 if turn <= network else turn
        most = crossing[q, network] * (state[n + q, 0] if q < n else 1)
        taken[q] = min(weight - total, state[2 * n, q], most)
        total += taken[q]
    return total


@njit(cache=True, nogil=True)
def _place(state: NDArray[np.int32], kind: int, network: int, span: int, flow: int, taken: IntArray, n: int) -> int:
    """Put a device at the front, and return how many layers the front moves on: 0 while flow waits."""
    state[network, :span] += flow
    state[n + network, span] += 1
    state[2 * n + 1, kind] -= 1
    waits = 0
    for q in range(n + 1):
        state[2 * n, q] -= taken[q]
        waits += state[2 * n, q]
    if waits:
        return 0
    step = 1
    while (state[:n, step - 1] == state[:n, step]).all():
        step += 1
    state[2 * n, :n] = state[:n, step - 1] - state[:n, step]
    for o in range(state.shape[1]):
        for a in range(2 * n):
            state[a, o] = state[a, o + step] if o + step < state.shape[1] else 0
    return step


@njit(cache=True, nogil=True)
def _lacking(sweep: Sweep, state: NDArray[np.int32], layer: int) -> float:
    """Return the price of devices that networks lack to keep the flow that they have to the last layer."""
    n, num_layers, goal = sweep.crossing.shape[1], len(sweep.classes), sweep.covers.shape[2] - 1
    total = 0.0
    for a in range(n):
        need = (state[a, 0] + state[2 * n, a]) * (num_layers - layer) - state[a].sum()
        have = 0.0
        for k in range(len(sweep.counts)):
            if sweep.networks[k] == a:
                have += sweep.prices[0, k] * state[2 * n + 1, k]
        total += max(0.0, need / (num_layers * goal) - have)
    return total


@njit(cache=True, nogil=True)
def _expand(
    sweep: Sweep, layer: int, state: NDArray[np.int32], costs: FloatArray, node: int, fronts: list[_Front],
    here: _Front, nodes: IntArray, used: int,
) -> int:  # fmt: skip
    """Put each device with each span at the front of a state; return how many nodes there are then."""
    n, num_layers, goal = sweep.crossing.shape[1], len(sweep.classes), sweep.covers.shape[2] - 1
    taken, child, cost = np.zeros(n + 1, np.int64), np.empty_like(state), np.empty_like(costs)
    missing = goal - state[:n].sum(axis=0)
    missed = np.zeros((len(costs), len(missing) + 1))
    for m in range(len(costs)):
        for o in range(min(len(missing), num_layers - layer)):
            missed[m, o + 1] = missed[m, o] + sweep.covers[m, sweep.classes[layer + o], missing[o]]
    waits = int(state[2 * n, : n + 1].sum())
    for k in range(len(sweep.counts)):
        closed = False
        for span in range(min(sweep.weights.shape[2], num_layers - layer), 0, -1):
            weight = sweep.weights[k, layer, span - 1]
            if state[2 * n + 1, k] == 0 or weight == 0:
                continue
            flow = _draw(state, weight, sweep.networks[k], sweep.crossing, taken)
            if flow == waits:  # of spans that take all, the longest, and those that end where others do
                if closed and missing[span] == missing[span - 1]:
                    continue
                closed = True
            if flow == 0:
                continue
            score = -np.inf
            for m in range(len(costs)):
                cost[m] = costs[m] + sweep.prices[m, k]
                cost[m] -= missed[m, span]
                for o in range(span):
                    cost[m] += sweep.covers[m, sweep.classes[layer + o], missing[o] - flow]
                score = max(score, cost[m])
                if score > SAFETY:
                    break
            if score > SAFETY:
                continue
            child[:] = state
            step = _place(child, k, sweep.networks[k], span, flow, taken, n)
            if n > 1:
                score += sweep.balance * _lacking(sweep, child, layer + step)
            if layer + step < num_layers and not _put(fronts[layer + step] if step else here, child, cost, score, used):
                continue
            nodes[used] = node, k, layer, span
            used += 1
            if layer + step >= num_layers or used == len(nodes):
                return -used
    return used


@njit(cache=True, nogil=True)
def _new_front(width: int, shape: tuple[int, int], ways: int) -> _Front:
    return _Front(
        np.zeros((width, *shape), np.int32), np.zeros((width, ways)), np.zeros(width), np.zeros(width, np.int64),
        np.zeros(width, np.uint64), np.zeros(1, np.int64),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def sweep_spans(sweep: Sweep, width: int) -> IntArray:
    """Return (q, 3) kind, first layer and number of layers of devices that pass all steps; none where none were found.

    Parameters
    ----------
    sweep
        Devices, their rates, and prices.
    width
        States that are kept for each front.
    """
    kinds, num_layers, most = sweep.weights.shape
    n, ways, goal = sweep.crossing.shape[1], len(sweep.prices), sweep.covers.shape[2] - 1
    shape = (2 * n + 2, max(most + 1, n + 1, kinds))
    fronts = [_new_front(width, shape, ways) for _ in range(num_layers)]
    nodes, used = np.empty((MOST_CELLS // 4, 4), np.int64), 0
    first, costs = np.zeros(shape, np.int32), np.zeros(ways)
    first[2 * n, n] = goal
    first[2 * n + 1, :kinds] = sweep.counts
    for m in range(ways):
        costs[m] = -(sweep.prices[m] * sweep.counts).sum()
        for layer in range(num_layers):
            costs[m] += sweep.covers[m, sweep.classes[layer], goal]
    _put(fronts[0], first, costs, 0.0, -1)
    for layer in range(num_layers):
        front = fronts[layer]
        while front.held[0]:
            here = _new_front(width, shape, ways)
            for q in range(front.held[0]):
                used = _expand(sweep, layer, front.states[q], front.costs[q], front.nodes[q], fronts, here, nodes, used)
                if used < 0:
                    return _path(nodes, -used - 1) if -used < len(nodes) else np.empty((0, 3), np.int64)
            front = here
    return np.empty((0, 3), np.int64)


@njit(cache=True, nogil=True)
def _path(nodes: IntArray, node: int) -> IntArray:
    count, at = 0, node
    while at >= 0:
        count, at = count + 1, nodes[at, 0]
    path = np.empty((count, 3), np.int64)
    while node >= 0:
        count -= 1
        path[count] = nodes[node, 1:]
        node = nodes[node, 0]
    return path
