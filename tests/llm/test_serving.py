"""Serving on unlike machines, against enumeration, and the layout that was published."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from rlinit.certificates import check
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidConfig, InvalidPlan
from rlinit.llm.serving.bounds import ServingBound, best_bound, coverage_bound, priced_bound
from rlinit.llm.serving.fleets import Fleet, Runs, load_fleet
from rlinit.llm.serving.layouts import ServingPlan, largest_flow, serve
from tests.llm.test_exports import placed_by_llama_cpp

LAYERS = 4


def fleet_of(seed: int, count: int = 3, scale: float = 1.0, *, by_first: bool = False) -> Fleet:
    """Return random devices; some alike, some that hold few layers, links of which some are slow or missing."""
    rng = np.random.default_rng(seed)
    kinds = []
    for _ in range(2):
        row = np.zeros(LAYERS + 1)
        most = int(rng.integers(1, LAYERS + 1))
        row[1 : most + 1] = np.sort(rng.integers(1, 20, most))[::-1] * scale
        kinds.append(row * rng.integers(1, 4, (LAYERS, 1)) if by_first else row)
    names = tuple(f"d{at}" for at in range(count))
    ends = [("source", name) for name in names] + [(name, "sink") for name in names]
    ends += [(a, b) for a, b in product(names, names) if a != b]
    links = {pair: float(rng.choice([0.0, 3.0, 50.0], p=[0.1, 0.2, 0.7])) * scale for pair in ends}
    rates = np.array([kinds[int(rng.integers(2))] for _ in names])
    sizes = rng.choice([1.0, 0.1, 7.0], LAYERS) if by_first else np.ones(1)
    return Fleet(LAYERS, names, rates, links, partial=bool(rng.integers(2)), sizes=sizes)


def best_flow(fleet: Fleet) -> float:
    """Return the largest flow over every layout."""
    spans = [None] + [(a, b) for a in range(LAYERS) for b in range(a + 1, LAYERS + 1)]
    best = 0.0
    for chosen in product(spans, repeat=len(fleet.devices)):
        layout = {
            name: span
            for at, (name, span) in enumerate(zip(fleet.devices, chosen, strict=True))
            if span is not None and fleet.rate(at, *span) > 0
        }
        best = max(best, largest_flow(fleet, layout)[0])
    return best


def checked(plan: ServingPlan, fleet: Fleet) -> str:
    """Return what the checker says of a plan and a fleet, as they are written to files."""
    layout, devices = json.dumps(plan.to_dict()), json.dumps(fleet.to_dict())
    forms = ("rlinit-serving", "rlinit-fleet")
    return check.answer(
        lambda: (check.parse(layout, forms[0], "layout"), check.parse(devices, forms[1], "fleet"), *NONE)
    )


NONE = (None, None)


def proves(proof: ServingBound, fleet: Fleet) -> bool:
    """Return whether the checker finds a bound proven."""
    said = check.parse(json.dumps(proof.to_dict()), "proof", "proof")
    data = check.parse(json.dumps(fleet.to_dict()), "rlinit-fleet", "fleet")
    try:
        check.refutes(said, check.Fleet(data, fleet.partial))
    except check.Refuted:
        return False
    return True


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 1e-9, 1e12]), st.booleans())
def test_bounds_are_bounds_and_plans_are_layouts(seed: int, scale: float, by_first: bool) -> None:
    """No layout serves more than any bound, and the checker finds flow and bound proven."""
    fleet = fleet_of(seed, scale=scale, by_first=by_first)
    plan = serve(fleet, time_limit_s=0.2)
    best = best_flow(fleet)
    kinds = fleet.kinds()
    alone = coverage_bound(fleet)
    for proof in (alone, priced_bound(fleet, kinds, alone)[0], best_bound(fleet, kinds)[0], plan.proof):
        assert best <= proof.tokens_per_s
        assert proves(proof, fleet)
    assert plan.tokens_per_s <= best * (1 + 1e-9)
    if plan.status == "infeasible":
        assert plan.message
        return
    assert plan.tokens_per_s == largest_flow(fleet, plan.spans)[0]
    assert checked(plan, fleet).startswith("VERIFIED (exact)")


def run_fleet(seed: int, layers: int = 3, count: int = 3, longest_s: float = math.inf) -> Fleet:
    """Return devices of two kinds with two batches, seconds and rooms for caches, at rates that none exceeds."""
    rng = np.random.default_rng(seed)
    kind, scale = rng.integers(2, size=count), float(rng.choice([1.0, 1e-6, 1e6]))
    batches, one = np.array([1.0, 8.0]), rng.uniform(0.1, 1, (2, layers)) * scale
    seconds = np.stack([one, one * rng.uniform(1, 8, (2, 1))], axis=1)[kind]
    room, cache = rng.integers(1, 60, 2), rng.integers(0, 12, 2)
    held, start = np.arange(layers + 1), np.arange(layers)[:, None]
    rooms = np.array([np.maximum(room[k] // np.maximum(held, 1) - cache[k] * held, 0) + 0 * start for k in kind]) * 1.0
    before = np.concatenate([np.zeros((count, 2, 1)), np.cumsum(seconds, axis=2)], axis=2)
    rates = np.zeros((count, layers, layers + 1))
    fastest = seconds.min(axis=(0, 1))
    for at, (s, e) in product(range(count), combinations(range(layers + 1), 2)):
        spent, most = before[at, :, e] - before[at, :, s], rooms[at, s, e - s]
        passes = spent + fastest[:s].sum() + fastest[e:].sum()
        fits = (batches <= most) & (passes <= longest_s)
        rates[at, s, e - s] = max([0.0, *np.minimum(batches / spent, most / passes)[fits].tolist()])
    rates[:, :, 1:] = np.minimum.accumulate(rates[:, :, 1:], axis=2)
    kept = np.flatnonzero(rates.any(axis=(1, 2))).tolist()
    names = tuple(f"d{at}" for at in kept)
    links = {pair: 1e12 for pair in product(("source", *names), (*names, "sink")) if pair[0] != pair[1]}
    runs = Runs(batches, seconds, rooms, longest_s).part(kept)
    return Fleet(layers, names, rates[kept], links, sizes=seconds.mean(axis=(0, 1)), runs=runs)


def best_of_all_runs(fleet: Fleet) -> float:
    """Return the most that any spans and batches serve along any paths, the cache of what is under way in its room."""
    assert fleet.runs is not None
    batches, seconds, rooms, longest_s = fleet.runs
    ways = [
        [(s, e, batch, float(times[s:e].sum()), rooms[at, s, e - s])
         for s, e in combinations(range(fleet.layers + 1), 2)
         for batch, times in zip(batches.tolist(), seconds[at], strict=True) if batch <= rooms[at, s, e - s]]
        for at in range(len(fleet.devices))
    ]  # fmt: skip
    best = 0.0
    for chosen in product(*([None, *some] for some in ways)):
        held = [one for one in chosen if one is not None]
        paths = [
            some for count in range(1, len(held) + 1) for some in permutations(held, count)
            if some[0][0] == 0 and some[-1][1] == fleet.layers and all(a[1] == b[0] for a, b in pairwise(some))
        ]  # fmt: skip
        spent = [sum(one[3] for one in path) for path in paths]
        paths = [path for path, time in zip(paths, spent, strict=True) if time <= longest_s]
        if not paths:
            continue
        spent = [time for time in spent if time <= longest_s]
        meets = np.array([[any(one is each for each in path) for path in paths] for one in held], np.float64)
        left = [one[2] / one[3] for one in held] + [one[4] for one in held]
        found = linprog(-np.ones(len(paths)), A_ub=np.vstack([meets, meets * spent]), b_ub=left)
        assert found.x is not None
        best = max(best, float(found.x.sum()))
    return best


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_no_run_of_devices_serves_more_than_the_bound_by_passes(seed: int, limited: bool) -> None:
    """Any spans, batches and paths, of different lengths; the checker finds the bound proven, and no lower one."""
    fleet = run_fleet(seed)
    if not fleet.devices:
        return
    assert fleet.runs is not None
    if limited:
        fleet = run_fleet(seed, longest_s=2.0 * float(fleet.runs.seconds.min(axis=(0, 1)).sum()))
    kinds, best = fleet.kinds(), best_of_all_runs(fleet)
    alone, found = coverage_bound(fleet), coverage_bound(fleet, passes_s=math.inf)
    assert best <= found.tokens_per_s <= alone.tokens_per_s
    for proof in (found, best_bound(fleet, kinds)[0]):
        assert best <= proof.tokens_per_s
        assert proves(proof, fleet)
        assert best == 0 or not proves(replace(proof, tokens_per_s=0.999 * best), fleet)


@given(st.integers(0, 2**31), st.booleans(), st.integers(1, LAYERS - 1))
def test_halves_are_parts_of_layouts(seed: int, by_first: bool, cut: int) -> None:
    """On either side of a cut a device passes no more than of the same layers in the whole."""
    fleet = fleet_of(seed, by_first=by_first)
    everyone = list(range(len(fleet.devices)))
    for ahead in (True, False):
        half = fleet.half(everyone, cut, 2.0, ahead)
        assert half.layers == (cut if ahead else LAYERS - cut)
        assert all(rate == 2.0 for (start, _), rate in half.links.items() if start == "source")
        for at, name in enumerate(half.devices):
            one = fleet.devices.index(name)
            for start, end in product(range(half.layers + 1), repeat=2):
                if start < end:
                    whole = fleet.rate(one, *((cut - end, cut - start) if ahead else (cut + start, cut + end)))
                    assert half.rate(at, start, end) <= whole
                    assert by_first or half.rate(at, start, end) == whole


def test_one_network_goes_on_where_another_one_ends() -> None:
    """Devices that pass much of few layers serve most in one row, over slow links between as many as that takes."""
    row = np.array([0.0, 12.0, 12.0, 1.0, 1.0])
    names = tuple(f"{network}{at}" for network in "ab" for at in range(2))
    links = {("source", name): 99.0 for name in names} | {(name, "sink"): 99.0 for name in names}
    links |= {(a, b): 99.0 if a[0] == b[0] else 6.0 for a, b in product(names, names) if a != b}
    plan = serve(Fleet(4, names, np.array([row] * 4), links, partial=False), time_limit_s=1.0)
    assert (plan.status, plan.tokens_per_s) == ("optimal", 24.0)


def test_a_flow_is_what_networkx_says() -> None:
    """Two devices side by side before one that both feed."""
    row = np.array([0.0, 10.0, 4.0])
    links = {("source", "a"): 9.0, ("source", "b"): 9.0, ("a", "c"): 3.0, ("b", "c"): 9.0, ("c", "sink"): 99.0}
    fleet = Fleet(2, ("a", "b", "c"), np.array([row, row, row * 2]), links)
    value, flow = largest_flow(fleet, {"a": (0, 1), "b": (0, 1), "c": (1, 2)})
    assert value == 12.0
    assert flow["a", "c"] == 3.0
    network: nx.DiGraph[str] = nx.DiGraph()
    for (a, b), rate in flow.items():
        network.add_edge(a, b, capacity=rate)
    assert nx.maximum_flow_value(network, "source", "sink") == value


def test_the_published_layout_is_beaten_and_the_best_is_proven() -> None:
    """Helix: 1,289.56 tokens a second with a bound of 78,062; one chain of groups serves 2,045.64, and none more."""
    root = instances_root()
    path = (root or Path("nowhere")) / "serving" / "llama70b-24-unlike.json"
    if not path.exists():
        pytest.skip("the published instances are not at hand")
    plan, fleet = serve(path), load_fleet(path)
    assert plan.status == "optimal"
    assert plan.tokens_per_s == pytest.approx(2045.641, abs=1e-3)
    assert "optimal" in checked(plan, fleet)
    assert not proves(ServingBound(2045.64), fleet)


def rates() -> dict[str, Any]:
    """Return a fleet of two devices as JSON."""
    held = {"1": 9.0, "2": 5.0}
    return {
        "layers": 3,
        "devices": [{"name": name, "tokens_per_s_by_layers_held": dict(held)} for name in "ab"],
        "links": [{"from": a, "to": b, "tokens_per_s": 7.0} for a, b in (("source", "a"), ("a", "b"), ("b", "sink"))],
    }


def test_files(tmp_path: Path) -> None:
    """A file is a mapping; the plan is JSON."""
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(rates()), encoding="utf-8")
    plan = serve(path)
    assert plan == serve(rates())
    assert (plan.tokens_per_s, plan.spans) == (5.0, {"a": (0, 2), "b": (2, 3)})
    assert plan.bound == pytest.approx(5.0, rel=1e-3)
    assert json.loads(json.dumps(plan.to_dict()))["spans"] == {name: list(span) for name, span in plan.spans.items()}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data.pop("layers"), "'layers' is missing"),
        (lambda data: data.update(layers=0), "layers is 0"),
        (lambda data: data["devices"][0].pop("name"), "'name' is missing"),
        (lambda data: data["devices"][0]["tokens_per_s_by_layers_held"].update({"2": 99.0}), "more than with 1"),
        (lambda data: data["devices"][0]["tokens_per_s_by_layers_held"].update({"x": 1.0}), "number of layers"),
        (lambda data: data["devices"][0]["tokens_per_s_by_layers_held"].clear(), "cannot hold one layer"),
        (lambda data: data["devices"].append(data["devices"][1]), "different names"),
        (lambda data: data["links"][0].update(to="c"), "no device 'c'"),
        (lambda data: data["links"][0].update(tokens_per_s=-1.0), "tokens_per_s"),
    ],
)
def test_bad_rates_get_one_line(damage: Any, said: str) -> None:
    """The line names the field."""
    data = rates()
    damage(data)
    with pytest.raises(InvalidConfig, match=said) as caught:
        load_fleet(data)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_served_says_what_is_missing() -> None:
    """Too few layers together, and a link that is not there."""
    data = rates() | {"layers": 9}
    plan = serve(data)
    assert (plan.status, plan.tokens_per_s) == ("infeasible", 0.0)
    assert "hold 4 layers together, 9 are needed" in plan.message


@given(st.integers(0, 2**31))
def test_the_largest_flow_is_that_of_exact_rates(seed: int) -> None:
    """What networkx finds on fractions is no more than by rounding; links are kept to, and what comes in goes on."""
    rng = np.random.default_rng(seed)
    fleet = fleet_of(
        seed, int(rng.integers(1, 7)), float(rng.choice([1.0, 1e-9, 1e12])), by_first=bool(rng.integers(2))
    )
    fleet = replace(fleet, links={pair: rate * 10.0 ** rng.integers(-9, 9) for pair, rate in fleet.links.items()})
    spans, ends = {}, {"source": (0, 0), "sink": (LAYERS, LAYERS + 1)}
    network: nx.DiGraph[Any] = nx.DiGraph()
    network.add_nodes_from(ends)
    for at, name in enumerate(fleet.devices):
        start, end = sorted(rng.choice(LAYERS + 1, 2, replace=False).tolist())
        spans[name] = start, end
        network.add_edge((name, 0), (name, 1), capacity=Fraction(fleet.rate(at, start, end)))
    ends |= spans
    for (a, b), rate in fleet.links.items():
        if fleet.follows(ends[a], ends[b]):
            network.add_edge((a, 1) if a in spans else a, (b, 0) if b in spans else b, capacity=Fraction(rate))
    value, flow = largest_flow(fleet, spans)
    most = float(nx.maximum_flow_value(network, "source", "sink"))
    assert most * (1 - 1e-6) <= value <= most
    assert all(0 < rate <= fleet.links[pair] for pair, rate in flow.items())
    for at, name in enumerate(fleet.devices):
        into, out = (sum(rate for pair, rate in flow.items() if pair[end] == name) for end in (1, 0))
        assert into == out <= fleet.rate(at, *spans[name])


def held_by(server: str, row: dict[str, Any], layers: int) -> dict[str, range]:
    """Return the layers of each device as the server reads them.

    exo (pull request 2253): layers of each node in order, which add up to the model's. mlx-lm (pull request 1816):
    rank r begins behind the layers of all ranks above it.
    """
    names = row["devices"]
    if server == "exo":
        ends = np.cumsum([0, *(row["node_layers"][name] for name in names)]).tolist()
        assert ends[-1] == layers
        assert row["node_layers"].keys() == set(names)
        return {name: range(a, b) for name, a, b in zip(names, ends[:-1], ends[1:], strict=True)}
    if server == "mlx":
        split, ranks = row["split"], names[::-1]
        assert sum(split) == layers
        assert min(split) > 0
        starts = [sum(split[rank + 1 :]) for rank in range(len(split))]
        return {name: range(a, a + n) for name, a, n in zip(ranks, starts, split, strict=True)}
    where = placed_by_llama_cpp(row["flags"], [*(f"blk.{layer}.ffn_up" for layer in range(layers)), "output"], layers)
    assert where.pop("output") == names[-1]
    held = {name: [layer for layer, device in enumerate(where.values()) if device == name] for name in names}
    return {name: range(some[0], some[-1] + 1) for name, some in held.items()}


def test_servers_run_chains_and_refuse_what_is_none() -> None:
    """Partitions add up to the layers, shares to one; a device of two pipelines, and overlapping spans, are refused."""
    held = {"1": 9.0, "2": 5.0}
    ends = ("source", "a"), ("a", "b"), ("b", "sink"), ("source", "c"), ("c", "d"), ("d", "sink")
    rates = {
        "layers": 3,
        "devices": [{"name": name, "tokens_per_s_by_layers_held": held} for name in "abcd"],
        "links": [{"from": a, "to": b, "tokens_per_s": 7.0} for a, b in ends],
    }
    plan = serve(rates)
    for server, size in (("vllm", "--pipeline-parallel-size"), ("sglang", "--pp-size")):
        rows = plan.to_servers(server)  # type: ignore[arg-type]
        assert sorted(row["devices"] for row in rows) == [["a", "b"], ["c", "d"]]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        for row in rows:
            assert row["flags"] == [size, "2"]
            counts = [int(one) for one in row["environment"][f"{server.upper()}_PP_LAYER_PARTITION"].split(",")]
            assert counts == [plan.spans[name][1] - plan.spans[name][0] for name in row["devices"]]
            assert sum(counts) == 3
    for server in ("exo", "mlx", "llama.cpp"):
        for row in plan.to_servers(server):  # type: ignore[arg-type]
            assert held_by(server, row, 3) == {name: range(*plan.spans[name]) for name in row["devices"]}
    names = {"a": "CUDA0", "b": "CPU", "c": "CPU", "d": "CUDA1"}
    for row in plan.to_servers("llama.cpp", names=names, threads=8):
        assert row["flags"][-2:] == ["-t", "8"]
        tensors = [f"blk.{layer}.ffn_{which}.weight" for layer in range(3) for which in ("up", "down", "gate")]
        where = placed_by_llama_cpp(row["flags"], [*tensors, "output.weight"], 3)
        for name in row["devices"]:
            for layer in range(*plan.spans[name]):
                assert {where[one] for one in tensors if one.startswith(f"blk.{layer}.")} == {names[name]}
        assert where["output.weight"] == names[row["devices"][-1]]
    for wrong, threads, said in (
        (names | {"b": "CUDA0"}, None, "CUDA0 is the name of several devices"),
        ({"a": "CUDA0"}, None, "has no name of llama.cpp"),
        (None, 8, "threads is 8"),
        (names, 0, "threads is 0"),
    ):
        with pytest.raises(InvalidPlan, match=said):
            plan.to_servers("llama.cpp", names=wrong, threads=threads)
    with pytest.raises(InvalidPlan, match="vllm is told neither names of devices nor threads"):
        plan.to_servers("vllm", threads=8)
    spans = {"a": (0, 2), "b": (2, 3), "c": (0, 2), "d": (2, 3)}
    apart = {("source", "a"): 1.0, ("source", "c"): 1.0, ("a", "b"): 1.0, ("c", "b"): 1.0, ("b", "sink"): 2.0}
    with pytest.raises(InvalidPlan, match="'b' is not one rank of one pipeline"):
        replace(plan, spans=spans, flow=apart).to_servers("vllm")
    forked = {("source", "a"): 2.0, ("a", "b"): 1.0, ("a", "d"): 1.0, ("b", "sink"): 1.0, ("d", "sink"): 1.0}
    with pytest.raises(InvalidPlan, match="'a' is not one rank"):
        replace(plan, spans=spans, flow=forked).to_servers("vllm")
    lone = {("source", "a"): 1.0, ("a", "b"): 1.0, ("b", "sink"): 1.0}
    with pytest.raises(InvalidPlan, match="'b' is not one rank of one pipeline from layer 2"):
        replace(plan, spans={"a": (0, 2), "b": (1, 3)}, flow=lone).to_servers("sglang")
    with pytest.raises(InvalidPlan, match="expected vllm or sglang or exo"):
        plan.to_servers("petals")  # type: ignore[arg-type]
