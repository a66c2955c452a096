"""Serving on unlike machines: which layers every device holds, so that the most tokens a second pass.

A device that holds j layers passes c(j) tokens a second, which falls with j. Every device holds one span of layers; a
request goes from a device to one whose span begins where the last one ended (`Fleet.partial`: or inside it), over links
with capacities. What is served is the largest flow from the source to the sink.

*Bound.* See `rlinit.llm.serving.bounds`.

*Search.* `rlinit.llm.serving.sweeping` lays spans that pass a rate, and the rate is bisected between the flow of the
best layout and the bound, with wider and wider beams. Where links of single devices hold the flow back, devices
exchange spans as long as it grows.

References
----------
Mei et al.: Helix, ASPLOS 2025 (the problem, as a program on a commercial solver). Ford and Fulkerson, 1956.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations, product
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.errors import InvalidPlan
from rlinit.exact.effort import NARROW
from rlinit.files import write_json
from rlinit.llm.serving.bounds import ServingBound, best_bound, coverage_bound, covers_of, ways_of
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet, Kinds, load_fleet
from rlinit.llm.serving.servers import Server, chains_of, told
from rlinit.llm.serving.sweeping import Sweep, sweep_spans
from rlinit.plan import OPTIMALITY_TOLERANCE

__all__ = ["ServingPlan", "largest_flow", "search", "serve"]

Spans = dict[str, tuple[int, int]]
"""Device -> (first layer, the one after its last)."""

Flow = dict[tuple[str, str], float]
"""(from, to) -> tokens a second."""

FlowOf = Callable[[Mapping[str, tuple[int, int]]], tuple[float, Flow]]
"""What spans pass, and over which links."""

_WIDTHS = (16, 64, 256)
"""States of a front, by turns: narrow sweeps tell in a tenth of a second how far the rate goes."""

_STEPS = 2000
"""Steps of the rate that flows are counted in."""

_WAYS, _SPREAD = 7, 0.15
"""Prices that states are ranked by: those of the bound, and some at this standard deviation (of logarithms) around."""

_FIRST_STEP, _STEP_GROWTH = 0.01, 2.5
"""How far below the bound the first sweep is, of the bound; by how much the next is further."""

_BALANCES = (0.1, 0.03, 0.0)
"""Ranks of what networks lack (`Sweep.balance`): on fleets with links of 5 to 200% of the rate each is best on some."""

_APART_SHARE, _JOINED_SHARE = 0.2, 0.6
"""Of the time, for networks by themselves; of what is left, for one that goes on where another one ends."""

_FANS, _CUTS = (0, 1, -1), 2
"""Devices that meet at a cut between networks, more than the root of flow over link; cuts that are tried."""

_BITS = 30
"""Of flows as whole numbers, which the compiled search for the largest one takes."""

_FINE_BITS, _FINER = 25, 7
"""Of the largest flow, or finer units are taken; how often at most."""


class Layout(NamedTuple):
    """Spans, the largest flow of them, and what it sends over each link."""

    spans: Spans
    value: float
    flow: Flow


_value = attrgetter("value")


class Route(NamedTuple):
    """The devices that tokens pass, how many a second, and the seconds that one takes."""

    devices: tuple[str, ...]
    tokens_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """A layout, the flow it serves, and what none serves more than.

    Parameters
    ----------
    status
        ``optimal``, ``feasible``, ``infeasible``: the devices together cannot hold the layers; or ``no_solution``: none
        was found.
    tokens_per_s
        Of the flow.
    proof
        What no layout serves, and why.
    spans
        Device -> (first layer, the one after its last); devices that are not used are not named.
    flow
        (from, to) -> tokens a second on each link that is used; what a front end routes requests by.
    partial
        Whether devices are entered inside their spans, too.
    message
        What is missing where nothing can be served.
    paths
        Along which tokens go, where seconds are known.
    baselines
        Name of a rule that people split by -> tokens a second of it; 0 where it does not fit.
    fleet
        What the bound is of, where rates are from the cost model: rates that no layout exceeds.
    passes
        That make the answer of a request, where its prompt is counted, too; else 0.
    prompt_layers
        Of two pools: layers that read prompts; the same ones make answers behind them. 0: there are no two.
    bounds
        One pool or two -> tokens a second that no layout of that form serves more than.
    """

    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    tokens_per_s: float
    proof: ServingBound
    spans: Mapping[str, tuple[int, int]]
    flow: Mapping[tuple[str, str], float]
    partial: bool = False
    message: str = ""
    paths: tuple[Route, ...] = ()
    baselines: Mapping[str, float] = field(default_factory=dict)
    fleet: Fleet | None = field(default=None, repr=False, compare=False)
    passes: float = 0.0
    prompt_layers: int = 0
    bounds: Mapping[str, float] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """Requests a second that are read and answered; nan where prompts are not counted."""
        return self.tokens_per_s / self.passes if self.passes else math.nan

    def pool(self, phase: Literal["prefill", "decode"]) -> ServingPlan:
        """Return the layout of one pool of two by itself, with its layers counted from 0 on.

        Parameters
        ----------
        phase
            ``prefill``: the machines that read prompts; ``decode``: those that make answers.

        Raises
        ------
        InvalidPlan
            Another phase, or a plan without two pools.
        """
        if phase not in ("prefill", "decode") or not self.prompt_layers:
            raise InvalidPlan(f"pool {phase!r}: expected prefill or decode, and a plan of two pools")
        ahead, cut = phase == "prefill", 0 if phase == "prefill" else self.prompt_layers
        spans = {
            name: (start - cut, end - cut)
            for name, (start, end) in self.spans.items() if (start < self.prompt_layers) == ahead
        }  # fmt: skip
        flow: Flow = {}
        for (a, b), rate in self.flow.items():
            if a in spans or b in spans:
                pair = a if a in spans else SOURCE, b if b in spans else SINK
                flow[pair] = flow.get(pair, 0.0) + rate
        return replace(self, spans=spans, flow=flow, paths=(), prompt_layers=0)

    @property
    def latency_s(self) -> float:
        """Seconds of the slowest path; nan where they are not known."""
        return max((path.seconds for path in self.paths), default=math.nan)

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """Where requests come from -> the share of them that a front end sends to each device."""
        sent: dict[str, dict[str, float]] = {}
        for (start, end), rate in self.flow.items():
            sent.setdefault(start, {})[end] = rate
        return {start: {end: rate / sum(row.values()) for end, rate in row.items()} for start, row in sent.items()}

    @property
    def bound(self) -> float:
        """Tokens a second that no layout serves more than."""
        return max(self.bounds.values(), default=self.proof.tokens_per_s)

    def to_servers(
        self, server: Server, *, names: Mapping[str, str] | None = None, threads: int | None = None
    ) -> list[dict[str, Any]]:
        """Return a pipeline of a server for each chain of devices, largest first, and its share of requests.

        A row has ``devices`` in the order that tokens take, the ``share`` that a front end sends it, and what the
        server is told. The first device holds the embedding, too, and the last one the head.

        Parameters
        ----------
        server
            ``vllm`` or ``sglang``: ``environment`` and ``flags``. ``exo`` (pull request 2253): ``node_layers`` of a
            placement. ``mlx`` (mlx-lm, pull request 1816): ``split`` of ``pipeline()``, layers of each rank, of which
            the last one has the first layers. ``llama.cpp`` (``tools/server/README.md`` at 00dc805): ``flags``, where
            the head counts as a layer. Layers of the host behind those of a device are moved there by patterns of
            ``-ot``, tensor by tensor; their caches stay on that device.
        names
            Of llama.cpp: device -> its name there, such as "CUDA0"; "CPU" for the host. By default they are the same.
        threads
            Of llama.cpp: that the host computes with (``-t``).

        Raises
        ------
        InvalidPlan
            There is no layout, there are two pools (see `pool`), another server, or requests of a device come from
            several, go to several, or leave out layers that it holds. Of llama.cpp: a device without a name, two with
            one, or threads of no host.
        """
        if self.prompt_layers:
            raise InvalidPlan("the plan has two pools; take one: plan.pool('prefill').to_servers(...)")
        if server not in get_args(Server) or not self.flow:
            known = " or ".join(get_args(Server))
            raise InvalidPlan(f"server {server!r}, plan {self.status}: expected {known}, and a layout that serves")
        rows = []
        for chain in chains_of(self.spans, self.flow, server):
            counts = {name: self.spans[name][1] - self.spans[name][0] for name in chain}
            said = told(server, counts, names, threads)
            rows.append({"devices": chain, "share": self.flow[SOURCE, chain[0]] / self.tokens_per_s} | said)
        return rows

    def save(self, path: str | Path) -> None:
        """Write the layout as JSON, atomically, and beside it (``.rates.json``) the rates that the bound is of, if any.

        Parameters
        ----------
        path
            Of the layout.
        """
        write_json(path, self.to_dict())
        if self.fleet is not None:
            write_json(Path(path).with_suffix(".rates.json"), self.fleet.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can say; status and bound are those of layouts of the same form, which the proof is of."""
        closed = self.tokens_per_s >= self.proof.tokens_per_s * (1 - OPTIMALITY_TOLERANCE)
        return {
            "format": "rlinit-serving",
            "version": 1,
            "status": "optimal" if self.spans and closed else self.status,
            "tokens_per_s": self.tokens_per_s,
            "bound": self.proof.tokens_per_s,
            "spans": {name: list(span) for name, span in self.spans.items()},
            "flow": [{"from": a, "to": b, "tokens_per_s": rate} for (a, b), rate in self.flow.items()],
            "partial": self.partial,
            "proof": self.proof.to_dict(),
            "weights": self.weights,
            "paths": [path._asdict() for path in self.paths],
            "baselines": dict(self.baselines),
            "message": self.message,
            "passes": self.passes,
            "prompt_layers": self.prompt_layers,
            "bounds": dict(self.bounds),
        }


def serve(
    rates: Fleet | str | Path | Mapping[str, Any], *, partial: bool = False, time_limit_s: float = 10.0, seed: int = 0
) -> ServingPlan:
    """Return a layout that serves much, its flow, and a bound on all layouts.

    Parameters
    ----------
    rates
        A fleet, or what `load_fleet` takes.
    partial
        Whether a request may enter a device inside its span; see `Fleet`.
    time_limit_s
        Of the search.
    seed
        Of the search.

    Raises
    ------
    InvalidConfig
        As for `load_fleet`.
    """
    fleet = rates if isinstance(rates, Fleet) else load_fleet(rates)
    fleet = replace(fleet, partial=True) if partial else fleet
    best, bound = search(fleet, time_limit_s, seed)
    if not best.value:
        return nothing_found(fleet)
    closed = best.value >= bound.tokens_per_s * (1 - OPTIMALITY_TOLERANCE)
    return ServingPlan("optimal" if closed else "feasible", best.value, bound, best.spans, best.flow, fleet.partial)


def search(
    fleet: Fleet, time_limit_s: float, seed: int, *, fine: bool = True, flow_of: FlowOf | None = None
) -> tuple[Layout, ServingBound]:
    """Return the best layout found, and the bound that it was looked for below.

    Parameters
    ----------
    fleet
        Rates and links.
    time_limit_s, seed
        Of the search.
    fine
        Whether the bound is proven; see `best_bound`.
    flow_of
        What spans pass; None: the largest flow over the links.
    """
    kinds, measure = fleet.kinds(), flow_of or partial(largest_flow, fleet)
    bound, prices = best_bound(fleet, kinds, fine=fine)
    _compile()
    rng, budget = np.random.default_rng(seed), Budget(time_limit_s)
    return _searched(fleet, kinds, prices, bound.tokens_per_s, budget, rng, measure), bound


@cache
def _compile() -> None:
    """Load the kernels, before a clock starts."""
    one = Fleet(1, ("one",), np.ones((1, 2)), {(SOURCE, "one"): 1.0, ("one", SINK): 1.0})
    _swept(one, one.kinds(), np.ones((1, 1)), 1.0, 1, 0.0)


def nothing_found(fleet: Fleet, limit: str = "") -> ServingPlan:
    """Return what is known where no layout was found: that there is none, or only a bound.

    Parameters
    ----------
    fleet
        What no layout exceeds.
    limit
        What else was asked for, for the message.
    """
    kinds = fleet.kinds()
    most = sum(int(np.nonzero(rates)[1].max(initial=0)) * n for rates, n in zip(kinds.rates, kinds.counts, strict=True))
    if most < fleet.layers:
        said = f"the devices hold {most} layers together{limit}, {fleet.layers} are needed"
        return ServingPlan("infeasible", 0.0, ServingBound(0.0), {}, {}, fleet.partial, said)
    said = f"no layout of {fleet.layers} layers was found over the links there are{limit}"
    return ServingPlan("no_solution", 0.0, best_bound(fleet, kinds)[0], {}, {}, fleet.partial, said)


def largest_flow(
    fleet: Fleet, spans: Mapping[str, tuple[int, int]], passed: Mapping[str, float] | None = None
) -> tuple[float, Flow]:
    """Return the largest flow of a layout and what it sends over each link.

    Parameters
    ----------
    fleet
        Rates and links.
    spans
        Device -> (first layer, the one after its last).
    passed
        Device -> tokens a second that it passes; None: by the fleet's rates.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    index = {name: at for at, name in enumerate(fleet.devices)}
    if passed is None:
        passed = {name: fleet.rate(index[name], *span) for name, span in spans.items()}
    count, ends = len(spans), [*spans.values()]
    rates = np.array([passed[name] for name in spans] + [math.inf])
    at = [*(index[name] for name in spans), len(fleet.devices)]
    begins, stops = np.array([*(start for start, _ in ends), fleet.layers]), np.array([*(end for _, end in ends), 0])
    goes = stops[:, None] == begins
    if fleet.partial:
        goes[:-1, :-1] |= (begins[:-1] < stops[:-1, None]) & (stops[:-1, None] < stops[:-1])
    most = np.minimum(np.minimum(fleet.between[np.ix_(at, at)], rates), rates[:, None]) * goes
    before, after = np.nonzero(most)
    if not (len(before) and most[-1].any()):
        return 0.0, {}
    tails = np.concatenate([np.arange(count), before + count])  # devices take flow in at their numbers, out after them
    heads = np.concatenate([np.arange(count) + count, np.where(after == count, 2 * count + 1, after)])
    capacities, total = np.concatenate([rates[:-1], most[before, after]]), float(most[-1].sum())
    for _ in range(_FINER):
        unit = math.ldexp(1.0, math.frexp(total)[1] - _BITS)
        steps = np.minimum(capacities / unit, 1 << _BITS).astype(np.int32)
        network = coo_array((steps, (tails, heads)), shape=(2 * count + 2,) * 2).tocsr()
        found = maximum_flow(network, 2 * count, 2 * count + 1)
        if found.flow_value >= 1 << _FINE_BITS:
            break
        total = (found.flow_value + len(steps)) * unit
    sent, names, flow = found.flow.tocoo(), [*spans], {}
    arcs = zip(sent.row.tolist(), sent.col.tolist(), sent.data.tolist(), strict=True)
    for tail, head, rate in sorted(arcs, key=lambda arc: arc[0] != 2 * count):  # those of the source first
        if rate > 0 and tail >= count:
            pair = SOURCE if tail == 2 * count else names[tail - count], names[head] if head < count else SINK
            flow[pair] = rate * unit
    return float(found.flow_value) * unit, flow


def paths_of(flow: Mapping[tuple[Any, Any], float]) -> list[tuple[list[Any], float]]:
    """Return paths from source to sink that a flow is made of, ends left out, each with its rate.

    Parameters
    ----------
    flow
        (from, to) -> rate; without cycles.
    """
    left = dict(flow)
    found: list[tuple[list[Any], float]] = []
    least = 1e-9 * sum(rate for (start, _), rate in flow.items() if start == SOURCE)
    while True:
        at, nodes, rate = SOURCE, [], math.inf
        while at != SINK:
            after, most = max(
                ((b, r) for (a, b), r in left.items() if a == at), key=lambda one: one[1], default=("", 0.0)
            )
            if most <= least:
                return found
            rate, at = min(rate, most), after
            nodes.append(at)
        for pair in zip([SOURCE, *nodes[:-1]], nodes, strict=True):
            left[pair] -= rate
        found.append((nodes[:-1], rate))


def _searched(
    fleet: Fleet, kinds: Kinds, prices: FloatArray, bound: float, budget: Budget, rng: np.random.Generator,
    flow_of: FlowOf,
) -> Layout:  # fmt: skip
    """Return the best layout found."""
    ways = prices * np.exp(rng.normal(0.0, _SPREAD, (_WAYS, len(prices))))
    ways = np.vstack([prices, ways / (ways @ kinds.counts)[:, None]])
    best = Layout({}, 0.0, {})
    if kinds.networks.any():
        best = _joined(fleet, _apart(fleet, budget, rng, flow_of), budget, rng, flow_of)
    balances = _BALANCES if kinds.networks.any() else (0.0,)
    took_s = 0.0
    for width in _WIDTHS:
        high, step = bound, _FIRST_STEP
        while high - best.value > NARROW * bound and budget.remaining_s > took_s:
            rate = max(0.5 * (best.value + high), bound * (1 - step)) if step < 1 else 0.5 * high
            began = budget.remaining_s
            for balance in balances:
                spans = _swept(fleet, kinds, ways, rate, width, balance)
                found = Layout(spans, *flow_of(spans))
                best = max(best, found, key=_value)
                if found.value >= rate or budget.expired:
                    break
            took_s = began - budget.remaining_s
            if best.value < rate:
                high, step = rate, step * _STEP_GROWTH
    return best


def _apart(fleet: Fleet, budget: Budget, rng: np.random.Generator, flow_of: FlowOf) -> Layout:
    """Return the best layouts of networks that each serve by themselves."""
    networks = fleet.networks()
    spans: Spans = {}
    share_s = _APART_SHARE * budget.remaining_s / int(networks.max() + 1)
    for number in range(int(networks.max()) + 1):
        part = fleet.part([int(at) for at in np.flatnonzero(networks == number)])
        spans |= _laid(part, share_s, rng, flow_of).spans
    return Layout(spans, *flow_of(spans))


def _laid(part: Fleet, time_limit_s: float, rng: np.random.Generator, flow_of: FlowOf) -> Layout:
    """Return the best layout found of some devices."""
    kinds = part.kinds()
    bound, prices = best_bound(part, kinds, fine=False)
    return _searched(part, kinds, prices, bound.tokens_per_s, Budget(time_limit_s), rng, flow_of)


def _joined(fleet: Fleet, best: Layout, budget: Budget, rng: np.random.Generator, flow_of: FlowOf) -> Layout:
    """Return the best layout where one network has the first layers and another one goes on, or the one that is given.

    Where one ends and the other begins, as many devices of each have to meet as slow links let the flow through. Both
    halves are laid from the cut on, at most so much a device there as its links to those many pass. The cut goes by
    what the halves pass. Other networks serve as in the layout that is given.
    """
    networks, rates, alone = fleet.networks(), _pair_rates(fleet), best.spans
    members = [[int(at) for at in np.flatnonzero(networks == number)] for number in range(int(networks.max()) + 1)]
    bounds = [coverage_bound(fleet.part(some)).tokens_per_s for some in members]
    tries = [*product(_FANS, permutations(range(len(members)), 2))]
    each_s = _JOINED_SHARE * budget.remaining_s / (2 * _CUTS * len(tries))
    for more, (first, second) in tries:
        link = float(np.median(rates[np.ix_(members[first], members[second])]))
        passed = np.array([bounds[first], bounds[second]])
        if link <= 0 or fleet.layers < 2:
            continue
        most = link * max(1, math.ceil(math.sqrt(passed.sum() / link)) + more)
        for _ in range(_CUTS):
            if passed.min() <= 0 or budget.expired:
                break
            cut = min(max(1, round(fleet.layers * passed[0] / passed.sum())), fleet.layers - 1)
            ahead, behind = fleet.half(members[first], cut, most, True), fleet.half(members[second], cut, most, False)
            if not (ahead.devices and behind.devices):
                break
            laid = [_laid(half, each_s, rng, partial(largest_flow, half)) for half in (ahead, behind)]
            spans = {name: span for name, span in alone.items() if name not in {*ahead.devices, *behind.devices}}
            spans |= {name: (cut - end, cut - start) for name, (start, end) in laid[0].spans.items()}
            spans |= {name: (cut + start, cut + end) for name, (start, end) in laid[1].spans.items()}
            best = max(best, Layout(spans, *flow_of(spans)), key=_value)
            passed = np.array([laid[0].value * cut, laid[1].value * (fleet.layers - cut)])
    return best


def _swept(fleet: Fleet, kinds: Kinds, prices: FloatArray, rate: float, width: int, balance: float) -> Spans:
    """Return spans that pass a rate, links of single devices aside; none where none were found."""
    unit = rate / _STEPS
    weights = np.minimum(np.floor(kinds.rates * (1 + 1e-12) / unit), _STEPS).astype(np.int64)
    most = int(np.flatnonzero(weights.any(axis=(0, 1))).max(initial=0))
    if not most:
        return {}
    all_ways, classes = ways_of(kinds, fleet.sizes)
    covers = np.empty((len(prices), len(all_ways), _STEPS + 1))
    for m, row in enumerate(prices):
        for c, ways in enumerate(all_ways):
            steps = np.minimum(np.floor(ways.rates * (1 + 1e-12) / unit), _STEPS).astype(np.int64)
            covers[m, c] = covers_of(ways, kinds.counts, row, steps, _STEPS)[-1]
    if not np.isfinite(covers).all():
        return {}
    found = sweep_spans(
        Sweep(
            weights[:, :, 1 : most + 1].copy(),
            kinds.counts,
            kinds.networks,
            _crossing(fleet, unit),
            prices,
            covers,
            classes,
            balance,
        ),
        width,
    )
    spans: Spans = {}
    left = [list(members) for members in kinds.members]
    for kind, start, held in found.tolist():
        spans[fleet.devices[left[kind].pop()]] = (start, start + held)
    return spans


def _pair_rates(fleet: Fleet) -> FloatArray:
    """Return (d, d) rates of links between devices; none from a device to itself."""
    rates = fleet.between[:-1, :-1].copy()
    np.fill_diagonal(rates, np.nan)
    return rates


def _crossing(fleet: Fleet, unit: float) -> IntArray:
    """Return (n + 1, n) steps that the median link lets from a device of a network to one of another, or the source."""
    networks, rates = fleet.networks(), _pair_rates(fleet)
    count = int(networks.max()) + 1
    found = np.full((count + 1, count), _STEPS)
    for a in range(count):
        for b in range(count):
            block = rates[np.ix_(networks == a, networks == b)]
            found[a, b] = min(_STEPS, int(np.nanmedian(block) / unit)) if block.size > 1 or a != b else 0
    return found
