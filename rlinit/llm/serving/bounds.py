"""Bounds on what any layout serves, with the numbers that prove them.

*Coverage.* See `rlinit.llm.serving.coverage`.

*Prices.* Devices are whole: those that hold a layer pass F only if their c(S) add up to it. Let a device cost p >= 0,
and each of the layers that it holds the share w / w(S) of that. Then every layout that serves F has

    sum over layers of K(F)  <=  sum over devices of p,

with K(F) the least cost of devices, one span each, whose rates add up to F: a knapsack, solved on a grid onto which
rates are rounded up. The prices are a linear program's, whose rows are the knapsacks so far (Gilmore and Gomory).

*Networks.* A request that is served inside one network is bounded by that network; the others go over links between
networks: F <= sum over networks of their bounds + sum of the rates of links between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, SAFETY, FloatArray, IntArray
from rlinit.errors import SolverFailure
from rlinit.exact.effort import ROUNDS
from rlinit.llm.serving.coverage import by_passes, by_sizes, span_sizes
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet, Kinds
from rlinit.llm.serving.sweeping import least_covers, used_units
from rlinit.plan import OPTIMALITY_TOLERANCE

_STEPS, _FINE_STEPS = 1000, 10_000
"""Steps of the grid while prices are looked for, and for the bound that they prove."""


@dataclass(frozen=True, slots=True)
class ServingBound:
    """A rate, the least that no layout serves by some proof, and the numbers of the proof.

    Parameters
    ----------
    tokens_per_s
        So much and more is refuted.
    numbers
        Of the proof, as JSON can say them.
    """

    tokens_per_s: float
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as what JSON can say."""
        return {"kind": "coverage", "bound": self.tokens_per_s} | dict(self.numbers)


class Ways(NamedTuple):
    """How the devices can hold a layer of one class.

    Parameters
    ----------
    starts
        (K + 1,) where the ways of a kind start.
    rates, units
        Tokens a second, and share of the device's price. None passes less than another of its kind that costs as much.
    layers
        How many there are of the class.
    """

    starts: IntArray
    rates: FloatArray
    units: FloatArray
    layers: int


def best_bound(
    fleet: Fleet, kinds: Kinds, *, fine: bool = True, passes_s: float = math.inf
) -> tuple[ServingBound, FloatArray]:
    """Return the least of the bounds above, and (K,) prices of the kinds, which sum to 1 over all devices.

    Parameters
    ----------
    fleet, kinds
        Devices, rates and links.
    fine
        Whether prices prove what they can, rather than what a search may go by, within a step of the coarse grid.
    passes_s
        See `coverage_bound`.
    """
    found, prices = priced_bound(fleet, kinds, coverage_bound(fleet, passes_s=passes_s), fine=fine)
    networks = fleet.networks()
    at = dict(zip(fleet.devices, networks.tolist(), strict=True)) | {SOURCE: None, SINK: None}
    crossing = sum(rate for (a, b), rate in fleet.links.items() if None not in (at[a], at[b]) and at[a] != at[b])
    if networks.max() > 0 and crossing < found.tokens_per_s:
        parts = []
        for number in range(int(networks.max()) + 1):
            part = fleet.part([int(one) for one in np.flatnonzero(networks == number)])
            parts.append((part.devices, priced_bound(part, part.kinds(), coverage_bound(part), fine=fine)[0]))
        total = (sum(proof.tokens_per_s for _, proof in parts) + crossing) * (1 + ROUNDING)
        said = [{"devices": list(names)} | proof.to_dict() for names, proof in parts]
        found = min(found, ServingBound(total, {"kind": "networks", "parts": said}), key=_rate)
    return found, prices


def _rate(bound: ServingBound) -> float:
    return bound.tokens_per_s


def coverage_bound(fleet: Fleet, *, passes_s: float = 0.0) -> ServingBound:
    """Return the bound by coverage, rounded up.

    Parameters
    ----------
    fleet
        Devices, rates and links.
    passes_s
        Seconds for classes of passes to prove what they can, where it is known how devices can be run; 0: none.
    """
    kinds = fleet.kinds()
    rate = by_sizes(kinds, fleet.sizes)
    found, passes = by_passes(fleet, kinds, rate, passes_s) if passes_s > 0 else (rate, {})
    return ServingBound(found, {"passes": passes} if passes else {"sizes": fleet.sizes.tolist()})


def ways_of(kinds: Kinds, sizes: FloatArray) -> tuple[list[Ways], IntArray]:
    """Return how layers of each class can be held, and the class of each layer: those of one size are alike.

    Parameters
    ----------
    kinds
        Devices and rates.
    sizes
        (L,) of the layers.
    """
    _, classes = np.unique(sizes, return_inverse=True)
    held, layers = span_sizes(sizes), len(sizes)
    start, count = np.arange(layers)[:, None], np.arange(layers + 1)
    found = []
    for one in range(int(classes.max()) + 1):
        of_class = np.concatenate([[0], np.cumsum(classes == one)])
        ends = np.minimum(start + count, layers)
        has = (of_class[ends] > of_class[:-1, None]) & (start + count <= layers)
        size = float(sizes[classes == one][0])
        starts, rates, units = [0], [], []
        for table in kinds.rates:
            passed, cost = table[has & (table > 0)], size / held[has & (table > 0)]
            order = np.lexsort((-passed, cost))
            best = np.maximum.accumulate(passed[order])
            kept = order[np.concatenate([[True], best[1:] > best[:-1]])] if len(order) else order
            rates += passed[kept].tolist()
            units += cost[kept].tolist()
            starts.append(len(rates))
        found.append(Ways(np.array(starts), np.array(rates), np.array(units), int((classes == one).sum())))
    return found, classes


def covers_of(ways: Ways, counts: IntArray, prices: FloatArray, weights: IntArray, steps: int) -> FloatArray:
    """Return the table of `least_covers` of a class of layers, whose last row is the least cost of so many steps.

    Parameters
    ----------
    ways, counts, prices
        Of a class of layers; devices of each kind, and the price of one.
    weights
        Steps that each way passes.
    steps
        Of the grid.
    """
    table = np.empty((int(counts.sum()) + len(counts) + 1, steps + 1))
    least_covers(ways.starts, weights, ways.units, counts, prices, table)
    return table


def priced_bound(
    fleet: Fleet, kinds: Kinds, other: ServingBound, *, fine: bool = True
) -> tuple[ServingBound, FloatArray]:
    """Return the bound by prices or another one, and (K,) prices of the kinds, which sum to 1 over all devices.

    Parameters
    ----------
    fleet, kinds, fine
        As for `best_bound`.
    other
        Returned where prices prove no less.
    """
    counts, highest = kinds.counts, other.tokens_per_s
    prices = np.full(len(counts), 1.0 / counts.sum())
    if highest <= 0:
        return ServingBound(0.0), prices
    all_ways, _ = ways_of(kinds, fleet.sizes)
    best, proving, rows = _STEPS, prices, []
    weights = [steps_of(ways.rates, highest / _STEPS, _STEPS) for ways in all_ways]
    for _ in range(ROUNDS):
        tables = [covers_of(ways, counts, prices, steps, _STEPS) for ways, steps in zip(all_ways, weights, strict=True)]
        costs = np.sum([ways.layers * table[-1] for ways, table in zip(all_ways, tables, strict=True)], axis=0)
        reached = int(np.flatnonzero(costs <= 1 + SAFETY).max())
        if reached < best:
            best, proving = reached, prices
        if best == 0:
            break
        row = np.zeros(len(counts))
        for ways, steps, table in zip(all_ways, weights, tables, strict=True):
            row += ways.layers * used_units(ways.starts, steps, ways.units, counts, prices, table, best)
        rows.append(row)
        cost, prices = _best_prices(np.array(rows), counts)
        if cost <= 1 + SAFETY:
            break
    if not fine:
        return ServingBound(min(highest, (best + 1) * highest / _STEPS)), proving
    low = best * highest / _STEPS
    return (other if best == _STEPS else _refined(kinds, fleet, all_ways, proving, low, other)), proving


def steps_of(rates: FloatArray, unit: float, steps: int) -> IntArray:
    """Return rates in units, rounded up, cut to the grid.

    Parameters
    ----------
    rates, unit
        Tokens a second.
    steps
        Of the grid.
    """
    return np.minimum(np.ceil(rates * (1 + ROUNDING) / unit), steps).astype(np.int64)


def _best_prices(rows: FloatArray, counts: IntArray) -> tuple[float, FloatArray]:
    """Return the prices of all devices, 1 together, at which the cheapest of some uses costs most, and that cost."""
    from scipy.optimize import linprog

    most = len(counts)
    found = linprog(
        np.append(np.zeros(most), -1.0),
        A_ub=np.column_stack([-rows, np.ones(len(rows))]), b_ub=np.zeros(len(rows)),
        A_eq=[[*counts.tolist(), 0.0]], b_eq=[1.0], bounds=[(0, None)] * most + [(None, None)],
    )  # fmt: skip
    if found.x is None:
        raise SolverFailure(f"the linear program of prices ended with {found.message!r}")
    prices = np.maximum(found.x[:-1], 0.0)
    return float(found.x[-1]), prices / (prices @ counts)


def _refined(
    kinds: Kinds, fleet: Fleet, all_ways: list[Ways], prices: FloatArray, low: float, other: ServingBound
) -> ServingBound:
    """Return the least rate above one that prices refute on the fine grid, or another bound that is no more."""
    high = other.tokens_per_s
    rate = min(high, low + 2 * high / _STEPS)
    while high - low > OPTIMALITY_TOLERANCE * other.tokens_per_s:
        costs = 0.0
        for ways in all_ways:
            weights = steps_of(ways.rates, rate / _FINE_STEPS, _FINE_STEPS)
            costs += ways.layers * covers_of(ways, kinds.counts, prices, weights, _FINE_STEPS)[-1, -1]
        low, high = (low, rate) if costs > 1 + SAFETY else (rate, high)
        rate = 0.5 * (low + high)
    if high == other.tokens_per_s:
        return other
    named = {fleet.devices[at]: float(p) for p, members in zip(prices, kinds.members, strict=True) for at in members}
    said = {"kind": "prices", "steps": _FINE_STEPS, "prices": named, "sizes": fleet.sizes.tolist()}
    return ServingBound(high, said)
