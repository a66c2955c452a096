"""Serving on unlike machines: which layers every device holds, so that the most tokens a second pass.

A device that holds j layers passes c(j) tokens a second, which falls with j. Every device holds one span of layers; a
request goes from a device to one whose span begins where the last one ended, over links with capacities. What is
served is the largest flow from the source to the sink.

*Bound.* A flow of F needs every layer on devices that pass F in all, and none passes more of it than F: with c(j) cut
to what a device's links let in and out, L F <= sum over devices of max over j of j min(c(j), F). Divided by F the right
side does not grow with F, so that the largest F that satisfies it bounds every layout. `bound_holds` checks it in exact
fractions.

*Search.* Chains of groups: the devices of a group hold the same span, and groups follow each other. A group passes F
with up to so many layers; which groups the counts of each kind of device allow, to cover most layers, is an integer
program over compositions of groups, and F is bisected. The flow of the layout is computed with its links; where these
hold it back, groups change places, and devices of a kind change groups, as long as the flow grows.

References
----------
Mei et al.: Helix, ASPLOS 2025 (the problem, as a program on a commercial solver). Ford and Fulkerson, 1956.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.errors import InvalidConfig
from rlinit.limits import check_number
from rlinit.plan import OPTIMALITY_TOLERANCE

__all__ = ["Fleet", "ServingPlan", "bound_holds", "load_fleet", "serve"]

SOURCE, SINK = "source", "sink"

Groups = list[tuple[int, list[int]]]
"""(most layers, members) of each group of a chain."""

_STEPS = 50
"""Bisections of the rate: what is left of the interval is below a double's rounding."""

_MOST_COMPOSITIONS = 20_000
"""Compositions of groups up to which those of all kinds are tried; else those of two kinds, then of one."""

_TRIES = 2000
"""Changes of places that are tried at most."""

_PROGRAM_S = 1.0
"""Seconds of a program that covers layers by groups."""

_ROUNDING = 1e-12
"""Relative room of a bound above the root of its inequality."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices that serve a model, by rates.

    Parameters
    ----------
    layers
        Of the model.
    devices
        Their names.
    rates
        (d, L + 1) tokens a second that each passes when it holds j layers, 0 where it cannot.
    links
        (from, to) -> tokens a second; ``source`` and ``sink`` are ends. Without a link nothing passes.

    Raises
    ------
    InvalidConfig
        Names that are taken twice, a rate that grows with the layers held, or a device that holds no layer.
    """

    layers: int
    devices: tuple[str, ...]
    rates: FloatArray
    links: Mapping[tuple[str, str], float] = field(repr=False)

    def __post_init__(self) -> None:
        if len(set(self.devices)) < len(self.devices) or {SOURCE, SINK} & set(self.devices):
            raise InvalidConfig(f"devices: expected different names, none of them {SOURCE!r} or {SINK!r}")
        for name, row in zip(self.devices, self.rates, strict=True):
            if not row[1:].any():
                raise InvalidConfig(f"device {name!r}: it cannot hold one layer; leave it out")
            grows = np.flatnonzero(row[2:] > row[1:-1]) + 2
            if len(grows):
                j = int(grows[0])
                raise InvalidConfig(
                    f"device {name!r}: with {j} layers it passes {row[j]:g} tokens a second, more than with {j - 1}; "
                    "expected rates that do not grow with the layers held"
                )

    @property
    def kinds(self) -> dict[tuple[float, ...], list[int]]:
        """Rates -> the devices that have them, with what their links let through taken off."""
        found: dict[tuple[float, ...], list[int]] = {}
        for at, row in enumerate(self.limited_rates):
            found.setdefault(tuple(row.tolist()), []).append(at)
        return found

    @property
    def limited_rates(self) -> FloatArray:
        """(d, L + 1) rates cut to what the links of each device let in and out."""
        through = [
            min(
                math.fsum(rate for (_, end), rate in self.links.items() if end == name),
                math.fsum(rate for (start, _), rate in self.links.items() if start == name),
            )
            for name in self.devices
        ]
        return np.asarray(np.minimum(self.rates, np.array(through)[:, None]))


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """A layout, the flow it serves, and what none serves more than.

    Parameters
    ----------
    status
        ``optimal``, ``feasible``, or ``infeasible``: the devices together cannot hold the layers, or links are missing.
    tokens_per_s, bound
        Of the flow, and of every layout.
    spans
        Device -> (first layer, the one after its last); devices that are not used are not named.
    flow
        (from, to) -> tokens a second on each link that is used; what a front end deals requests by.
    message
        What is missing where nothing can be served.
    """

    status: Literal["optimal", "feasible", "infeasible"]
    tokens_per_s: float
    bound: float
    spans: Mapping[str, tuple[int, int]]
    flow: Mapping[tuple[str, str], float]
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can say."""
        return {
            "status": self.status,
            "tokens_per_s": self.tokens_per_s,
            "bound": self.bound,
            "spans": {name: list(span) for name, span in self.spans.items()},
            "flow": [{"from": a, "to": b, "tokens_per_s": rate} for (a, b), rate in self.flow.items()],
            "message": self.message,
        }


def load_fleet(source: str | Path | Mapping[str, Any]) -> Fleet:
    """Return a fleet from JSON: ``layers``, ``devices`` with ``tokens_per_s_by_layers_held``, and ``links``.

    Parameters
    ----------
    source
        The file, or what it holds.

    Raises
    ------
    InvalidConfig
        A file that cannot be read, a missing field, or a value that makes no sense; the message names it.
    """
    if isinstance(source, Mapping):
        data: Any = source
    else:
        try:
            data = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as problem:
            raise InvalidConfig(f"cannot read {source}: {problem}") from None
    try:
        layers, rows, links = data["layers"], list(data["devices"]), list(data["links"])
    except (KeyError, TypeError) as problem:
        raise InvalidConfig(f"rates: {problem} is missing; expected layers, devices and links") from None
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise InvalidConfig(f"rates: layers is {layers!r}; expected a whole number >= 1")
    rates = np.zeros((len(rows), layers + 1))
    for at, row in enumerate(rows):
        for text, rate in _field(row, "tokens_per_s_by_layers_held").items():
            what = f"device {_field(row, 'name')!r}: the rate with {text} layers"
            if not str(text).isdecimal() or int(text) < 1:
                raise InvalidConfig(f"{what}: expected a number of layers from 1 on")
            if int(text) <= layers:
                rates[at, int(text)] = check_number(what, rate, InvalidConfig)
    names = tuple(str(_field(row, "name")) for row in rows)
    found: dict[tuple[str, str], float] = {}
    for link in links:
        pair = str(_field(link, "from")), str(_field(link, "to"))
        unknown = next((end for end in pair if end not in (*names, SOURCE, SINK)), None)
        if unknown is not None:
            raise InvalidConfig(f"link {pair[0]} -> {pair[1]}: there is no device {unknown!r}")
        rate = check_number(f"link {pair[0]} -> {pair[1]}: tokens_per_s", _field(link, "tokens_per_s"), InvalidConfig)
        found[pair] = found.get(pair, 0.0) + rate
    return Fleet(layers, names, rates, found)


def _field(row: Any, name: str) -> Any:
    """Return a field of a row of the file."""
    if not isinstance(row, Mapping) or name not in row:
        raise InvalidConfig(f"rates: {name!r} is missing in {row!s:.60}")
    return row[name]


def serve(rates: Fleet | str | Path | Mapping[str, Any], *, time_limit_s: float = 10.0, seed: int = 0) -> ServingPlan:
    """Return a layout that serves much, its flow, and a bound on all layouts.

    Parameters
    ----------
    rates
        A fleet, or what `load_fleet` takes.
    time_limit_s
        Of the search for places where links hold the flow back.
    seed
        Of that search.

    Raises
    ------
    InvalidConfig
        As for `load_fleet`.
    """
    fleet = rates if isinstance(rates, Fleet) else load_fleet(rates)
    bound = coverage_bound(fleet)
    groups = _best_groups(fleet, bound)
    if not groups:
        most = int(sum(np.flatnonzero(row).max(initial=0) for row in fleet.limited_rates))
        said = f"the devices hold {most} layers together, {fleet.layers} are needed"
        said = said if most < fleet.layers else "no chain of groups of devices covers the layers over its links"
        return ServingPlan("infeasible", 0.0, bound if most >= fleet.layers else 0.0, {}, {}, said)
    spans, value, flow = _placed(fleet, groups, bound, Budget(time_limit_s), np.random.default_rng(seed))
    closed = value >= bound * (1 - OPTIMALITY_TOLERANCE)
    return ServingPlan("optimal" if closed else "feasible", value, bound, spans, flow)


def coverage_bound(fleet: Fleet) -> float:
    """Return the rate that no layout exceeds: of the root of the inequality above, rounded up.

    Parameters
    ----------
    fleet
        Devices, rates and links.
    """
    rates, held = fleet.limited_rates[:, 1:], np.arange(1.0, fleet.layers + 1)
    low, high = 0.0, float(rates.max(axis=1).sum())
    for _ in range(4 * _STEPS):
        middle = 0.5 * (low + high)
        covered = (held * np.minimum(rates, middle)).max(axis=1).sum()
        low, high = (middle, high) if covered >= fleet.layers * middle else (low, middle)
        if high - low <= _ROUNDING * high:
            break
    bound = high * (1 + _ROUNDING)
    while not bound_holds(fleet, bound):  # rounding of sums
        bound *= 1 + _ROUNDING
    return bound


def bound_holds(fleet: Fleet, bound: float) -> bool:
    """Return whether a rate is refuted for every layout by coverage, in exact fractions.

    Parameters
    ----------
    fleet
        Devices, rates and links, all taken as the numbers they are.
    bound
        Tokens a second; so much and more is refuted.
    """
    rate, total = Fraction(bound), Fraction(0)
    for name, row in zip(fleet.devices, fleet.rates.tolist(), strict=True):
        into = sum((Fraction(cap) for (_, end), cap in fleet.links.items() if end == name), Fraction(0))
        out = sum((Fraction(cap) for (start, _), cap in fleet.links.items() if start == name), Fraction(0))
        most = min(into, out, rate)
        total += max((j * min(Fraction(c), most) for j, c in enumerate(row) if c > 0), default=Fraction(0))
    return total < fleet.layers * rate


def largest_flow(fleet: Fleet, spans: Mapping[str, tuple[int, int]]) -> tuple[float, dict[tuple[str, str], float]]:
    """Return the largest flow of a layout and what it sends over each link.

    Parameters
    ----------
    fleet
        Rates and links.
    spans
        Device -> (first layer, the one after its last).
    """
    network: nx.DiGraph[Any] = nx.DiGraph()
    network.add_nodes_from([SOURCE, SINK])
    index = {name: at for at, name in enumerate(fleet.devices)}
    for name, (start, end) in spans.items():
        network.add_edge((name, "in"), (name, "out"), capacity=float(fleet.rates[index[name], end - start]))
    for (a, b), rate in fleet.links.items():
        before = 0 if a == SOURCE else spans[a][1] if a in spans else -1
        after = fleet.layers if b == SINK else spans[b][0] if b in spans else -2
        if before == after:
            network.add_edge(a if a == SOURCE else (a, "out"), b if b == SINK else (b, "in"), capacity=rate)
    value, sent = nx.maximum_flow(network, SOURCE, SINK)
    flow = {}
    for a, row in sent.items():
        for b, rate in row.items():
            ends = (a if a == SOURCE else a[0]), (b if b == SINK else b[0])
            if rate > 0 and ends[0] != ends[1]:
                flow[ends] = float(rate)
    return float(value), flow


def _placed(
    fleet: Fleet, groups: Groups, bound: float, budget: Budget, rng: np.random.Generator
) -> tuple[dict[str, tuple[int, int]], float, dict[tuple[str, str], float]]:
    """Return spans of groups in places where links let most through, the flow, and what goes over each link."""

    def spans_of(some: Groups) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        start = 0
        for end, members in _ends(some, fleet.layers):
            found |= {fleet.devices[at]: (start, end) for at in members}
            start = end
        return found

    spans = spans_of(groups)
    value, flow = largest_flow(fleet, spans)
    within = min(float(fleet.rates[members, most].sum()) for most, members in groups)
    tries = _TRIES if len(groups) > 1 and value < within * (1 - OPTIMALITY_TOLERANCE) else 0
    for _ in range(tries):
        if budget.expired or value >= min(bound, within) * (1 - OPTIMALITY_TOLERANCE):
            break
        a, b = sorted(rng.choice(len(groups), 2, replace=False).tolist())
        other = list(groups)
        if rng.random() < 0.5:
            other[a], other[b] = other[b], other[a]
        else:
            one, two = (int(rng.integers(len(groups[at][1]))) for at in (a, b))
            if (fleet.rates[groups[a][1][one]] != fleet.rates[groups[b][1][two]]).any():
                continue
            first, second = list(groups[a][1]), list(groups[b][1])
            first[one], second[two] = second[two], first[one]
            other[a], other[b] = (groups[a][0], first), (groups[b][0], second)
        tried = spans_of(other)
        found, sent = largest_flow(fleet, tried)
        if found >= value:
            groups, spans, value, flow = other, tried, found, sent
    return spans, value, flow


# -- chains of groups --------------------------------------------------------------------------------------------


def _best_groups(fleet: Fleet, bound: float) -> Groups:
    """Return the groups of a chain that passes most, links between groups aside; none where no chain covers."""
    kinds = fleet.kinds
    rows, counts = np.array(list(kinds)), [len(members) for members in kinds.values()]
    compositions = _compositions(counts)
    best: IntArray | None = None
    low, high = 0.0, bound
    for step in range(_STEPS):
        rate = float(np.nextafter(0.0, 1.0)) if step == 0 else 0.5 * (low + high)
        chosen = _cover(compositions, rows, counts, rate, fleet.layers)
        if chosen is None:
            high = rate
            if step == 0:
                return []
        else:
            best = chosen
            held = _most_layers(compositions[best], rows, rate)
            passed = [float(used @ rows[:, j]) for used, j in zip(compositions[best], held, strict=True)]
            low = max(low, rate, min(passed))
        if high - low <= _ROUNDING * high:
            break
    assert best is not None
    left = [list(members) for members in kinds.values()]
    groups = []
    for used, most in zip(compositions[best], _most_layers(compositions[best], rows, low), strict=True):
        members = [left[kind].pop() for kind, count in enumerate(used) for _ in range(int(count))]
        groups.append((int(most), members))
    return groups


def _compositions(counts: list[int]) -> IntArray:
    """Return (q, kinds) how many devices of each kind a group may have."""
    if math.prod(count + 1 for count in counts) <= _MOST_COMPOSITIONS:
        return np.array([used for used in product(*(range(count + 1) for count in counts)) if any(used)])
    return np.array(list(_of_two_kinds(counts)))


def _of_two_kinds(counts: list[int]) -> Iterator[list[int]]:
    for at, count in enumerate(counts):
        for used in range(1, count + 1):
            yield [used if kind == at else 0 for kind in range(len(counts))]
    for (a, first), (b, second) in combinations(enumerate(counts), 2):
        for one, other in product(range(1, first + 1), range(1, second + 1)):
            yield [one if kind == a else other if kind == b else 0 for kind in range(len(counts))]


def _most_layers(compositions: IntArray, rows: FloatArray, rate: float) -> IntArray:
    """Return (q,) the most layers that each group holds while it passes the rate; 0 where it passes it with none."""
    passes = compositions @ rows >= rate * (1 - _ROUNDING)
    passes[:, 0] = False
    return np.asarray(np.where(passes.any(axis=1), passes.shape[1] - 1 - np.argmax(passes[:, ::-1], axis=1), 0))


def _cover(compositions: IntArray, rows: FloatArray, counts: list[int], rate: float, layers: int) -> IntArray | None:
    """Return groups, as rows of the compositions, that pass a rate and cover the layers; None where none do."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    held = _most_layers(compositions, rows, rate)
    kept = np.flatnonzero(held)
    if not len(kept):
        return None
    used, have = compositions[kept], np.array(counts)
    most = np.where(used > 0, have // np.maximum(used, 1), layers).min(axis=1)
    found = milp(
        -held[kept].astype(float),
        constraints=LinearConstraint(used.T.astype(float), ub=have.astype(float)),
        integrality=np.ones(len(kept), np.int64),
        bounds=Bounds(0, most.astype(float)),
        options={"time_limit": _PROGRAM_S, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    times = np.round(found.x).astype(np.int64)
    if int(times @ held[kept]) < layers or (times @ used > have).any():
        return None
    return np.asarray(np.repeat(kept, times))


def _ends(groups: Groups, layers: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (end, members) of spans that cover the layers; what groups could hold beyond is taken off the last ones."""
    start = 0
    for at, (most, members) in enumerate(groups):
        rest = len(groups) - at - 1
        size = min(most, layers - start - rest) if layers - start > rest else 0
        if size < 1:
            return
        start += size
        yield start, members
