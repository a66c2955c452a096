"""Two pools of devices, prompts and answers apart, against enumeration and networkx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from rlinit import llm
from rlinit.cli.main import main
from rlinit.errors import InvalidConfig, InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.llm.device_costs import PoolCosts
from rlinit.llm.lowering import Settings
from rlinit.llm.serving.bounds import best_bound, coverage_bound
from rlinit.llm.serving.fleets import Fleet
from rlinit.llm.serving.layouts import largest_flow, search
from tests.llm.test_throughput import CONFIG, MODEL, unlike

LAYERS = 4
MIX = ((500, 100, 3.0), (1500, 20, 1.0))
SPANS = [(a, b) for cut in (0, LAYERS) for a in range(cut, cut + LAYERS) for b in range(a + 1, cut + LAYERS + 1)]


def costs_of(bandwidth: float = 1e10, mix: tuple[tuple[int, int, float], ...] = MIX, count: int = 3) -> PoolCosts:
    """Return costs on unlike devices over links of one bandwidth."""
    hardware = Hardware.mesh(unlike(count).devices, bandwidth, latency_s=1e-5)
    return PoolCosts(MODEL, hardware, Settings(runtime="vllm"), mix=mix)


def layouts(fleet: Fleet) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield every layout in which both pools have all layers: every span of every device, in every split into pools."""
    for chosen in product([None, *SPANS], repeat=len(fleet.devices)):
        spans = {name: span for name, span in zip(fleet.devices, chosen, strict=True) if span is not None}
        held = {layer for span in spans.values() for layer in range(*span)}
        passes = all(fleet.rate(fleet.devices.index(name), *span) > 0 for name, span in spans.items())
        if len(held) == 2 * LAYERS and passes:
            yield spans


def pool_flows(costs: PoolCosts, fleet: Fleet, spans: dict[str, tuple[int, int]]) -> float:
    """Return what the slower pool passes by networkx, each with its own vectors on links, caches aside."""
    found = []
    for first, moved in ((0, costs.traffic.prompt_bytes), (LAYERS, costs.traffic.token_bytes)):
        network: nx.DiGraph[Any] = nx.DiGraph()
        network.add_nodes_from(["source", "sink"])
        pool = {name: span for name, span in spans.items() if first <= span[0] < first + LAYERS}
        for name, (start, end) in pool.items():
            network.add_edge((name, 0), (name, 1), capacity=fleet.rate(fleet.devices.index(name), start, end))
            if start == first:
                network.add_edge("source", (name, 0))
            if end == first + LAYERS:
                network.add_edge((name, 1), "sink")
        for a, b in product(pool, pool):
            if pool[a][1] == pool[b][0]:
                network.add_edge((a, 1), (b, 0), capacity=costs.traffic.bandwidths[a, b] / moved)
        found.append(nx.maximum_flow_value(network, "source", "sink"))
    return min(found)


def joined(costs: PoolCosts, fleet: Fleet, spans: dict[str, tuple[int, int]]) -> float:
    """Return the largest flow with caches: a linear program over all paths of one pool with all of the other."""

    def paths(at: int, end: int) -> Iterator[tuple[str, ...]]:
        if at == end:
            yield ()
        for name, span in spans.items():
            if span[0] == at < end:
                yield from ((name, *rest) for rest in paths(span[1], end))

    both = list(product(paths(0, LAYERS), paths(LAYERS, 2 * LAYERS)))
    keys = {key: row for row, key in enumerate([*spans, *costs.traffic.bandwidths])}
    use = np.zeros((len(keys), len(both)))
    for column, (reads, makes) in enumerate(both):
        for name in (*reads, *makes):
            use[keys[name], column] = 1.0 / fleet.rate(fleet.devices.index(name), *spans[name])
        for names, moved in ((reads, costs.traffic.prompt_bytes), (makes, costs.traffic.token_bytes)):
            for pair in pairwise(names):
                use[keys[pair], column] += moved / costs.traffic.bandwidths[pair]
        for a, b in product(reads, makes):
            common = {*range(*spans[a])} & {layer - LAYERS for layer in range(*spans[b])}
            use[keys[a, b], column] += (
                sum(costs.traffic.cache_bytes[layer, 1] for layer in common) / costs.traffic.bandwidths[a, b]
            )
    if not both:
        return 0.0
    scale = float(fleet.rates.max())
    found = linprog(-np.ones(len(both)), A_ub=use * scale, b_ub=np.ones(len(keys)))
    return float(np.asarray(found.x).sum()) * scale


@pytest.mark.parametrize(("bandwidth", "factor"), [(1e10, 8), (1e9, 20), (2e8, 100), (2e7, 500)])
def test_every_layout_is_joined_at_its_best_and_none_is_above_the_bound(bandwidth: float, factor: float) -> None:
    """Three devices, four layers, every span in every split: the flow is that of all paths of both pools together."""
    costs = costs_of(bandwidth)
    fleet, most = costs.fleet(factor * costs.shortest_pass), costs.limits()
    bound = best_bound(most, most.kinds())[0].tokens_per_s
    best, checked = 0.0, 0
    for number, spans in enumerate(layouts(fleet)):
        value = costs.traffic.join(fleet, spans)[0]
        best = max(best, value)
        if number % 5 == 0:
            checked += 1
            assert value == pytest.approx(joined(costs, fleet, spans), rel=1e-6)
            assert value <= pool_flows(costs, fleet, spans) * (1 + 1e-6)
            if bandwidth == 1e10:
                assert value == pytest.approx(pool_flows(costs, fleet, spans), rel=1e-6)
    assert checked > 10
    assert 0 < best <= bound
    join = partial(costs.traffic.join, fleet)
    tries = [search(part, 2.0, 0, fine=False, flow_of=join)[0].value for part in costs.traffic.narrowed(fleet)]
    assert best * 0.9 <= max(tries) <= best * (1 + 1e-9)


def test_rates_that_are_kept_to_are_below_those_that_none_exceeds() -> None:
    """At any length of a pass; every layout of the latter serves less than any bound, at any sizes of the phases."""
    costs = costs_of(2e8)
    most = costs.limits()
    for factor in (1.0, 2.0, 30.0):
        kept = costs.traffic.cut(costs.fleet(factor * costs.shortest_pass), np.sum, np.sum)
        index = [most.devices.index(name) for name in kept.devices]
        assert (kept.rates <= most.rates[index] * (1 + 1e-9)).all()
    best = max(pool_flows(costs, most, spans) for number, spans in enumerate(layouts(most)) if number % 3 == 0)
    for factor in (0.2, 1.0, 7.0):
        sizes = most.sizes * np.where(np.arange(2 * LAYERS) < LAYERS, factor, 1.0)
        bound = coverage_bound(replace(most, sizes=sizes)).tokens_per_s
        assert bound >= best * (1 - 1e-9)
        assert bound >= coverage_bound(most).tokens_per_s * (1 - 1e-3)


def for_two_pools() -> Hardware:
    """Return devices of which some compute fast and others read memory fast."""
    reads, makes = Device("d", "gpu", 4e9, 0.0, 2e14, 1e11), Device("d", "gpu", 4e9, 0.0, 2e12, 1e12)
    devices = [replace(makes if at % 2 else reads, name=f"d{at}") for at in range(5)]
    return Hardware.mesh(devices, 3e9, latency_s=1e-5)


def test_a_plan_is_never_below_a_rule_and_says_what_passes_where() -> None:
    """Pools make up the plan; paths make up the flow, which keeps to every device and link."""
    plan = llm.plan(MODEL, for_two_pools(), objective="requests", requests=MIX)
    assert plan.tokens_per_s == max(plan.baselines.values())
    assert len(plan.baselines) == 7
    assert plan.tokens_per_s <= plan.bound == max(plan.bounds.values())
    assert plan.requests_per_s == pytest.approx(plan.tokens_per_s / ((3 * 99 + 19) / 4))
    assert plan.prompt_layers == LAYERS
    pools = [plan.pool(phase) for phase in ("prefill", "decode")]
    assert not {*pools[0].spans} & {*pools[1].spans}
    for pool in pools:
        assert all(0 <= start < end <= LAYERS for start, end in pool.spans.values())
        network: nx.DiGraph[str] = nx.DiGraph()
        for (a, b), rate in pool.flow.items():
            network.add_edge(a, b, capacity=rate)
        assert nx.maximum_flow_value(network, "source", "sink") == pytest.approx(plan.tokens_per_s)
    assert sum(path.tokens_per_s for path in plan.paths) == pytest.approx(plan.tokens_per_s)
    assert all(path.seconds > 0 for path in plan.paths)
    assert plan.fleet is not None
    assert largest_flow(plan.fleet, plan.spans)[0] >= plan.tokens_per_s * (1 - 1e-9)
    with pytest.raises(InvalidPlan, match="two pools; take one"):
        plan.to_servers("vllm")
    with pytest.raises(InvalidPlan, match="expected prefill or decode"):
        plan.pool("prompts")  # type: ignore[arg-type]


def test_one_device_is_one_pool() -> None:
    """There is nothing to split, and the bound is over both forms."""
    plan = llm.plan(MODEL, unlike(1), objective="requests")
    assert plan.prompt_layers == 0
    assert plan.baselines["two pools"] == plan.bounds["two pools"] == 0.0
    assert plan.tokens_per_s == plan.baselines["best single machine"] > 0
    assert llm.plan(MODEL, unlike(memory=2e8), objective="requests").status == "infeasible"


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        ([(500, 100)], r"requests: \(500, 100\) is no"),
        ([(500, 0, 1.0)], "output is 0"),
        ([("500", 1, 1.0)], "prompt is '500'"),
        ([(500, 100, 0.0)], "share of 500:100 is 0.0"),
        ([(500, 100, float("nan"))], "share of 500:100"),
        ([(500, 100_000, 1.0)], "longer than the model's 2,048 positions"),
    ],
)
def test_requests_that_make_no_sense(mix: Any, said: str) -> None:
    """One line each."""
    with pytest.raises(InvalidConfig, match=said) as caught:
        llm.plan(MODEL, unlike(), objective="requests", requests=mix)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidConfig, match="requests: for objective='throughput' or 'requests'"):
        llm.plan(MODEL, unlike(), requests=MIX)  # type: ignore[call-overload]


def test_a_plan_from_the_command_line_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table names the pools; flow and bound are checked in exact fractions."""
    config, out = tmp_path / "config.json", tmp_path / "layout.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    for_two_pools().save(tmp_path / "hardware.json")
    call = ["llm", str(config), "--hw", str(tmp_path / "hardware.json"), "--objective", "requests", "--requests"]
    assert main([*call, "500:100:3", "1500:20:1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "requests a second; bound" in said
    assert "prompts 0-3" in said
    assert "one pool for both: " in said
    assert main(["verify", str(out), str(tmp_path / "layout.rates.json")]) == 0
    assert "VERIFIED (exact) serving" in capsys.readouterr().out
    rates = tmp_path / "layout.rates.json"
    plan, fleet = json.loads(out.read_text()), json.loads(rates.read_text())
    reads, makes = (next(d for d in plan["paths"][0]["devices"] if plan["spans"][d][0] == at) for at in (0, LAYERS))
    link = next(row for row in fleet["caches"]["links"] if (row["from"], row["to"]) == (reads, makes))
    for row, key, value, said in (
        (link, "bytes_per_s", 1.0, f"caches from {reads} to {makes} are more than the link carries"),
        (plan["paths"][0], "tokens_per_s", 1.0, "what paths send over a link"),
        (plan, "prompt_layers", 0, "the plan's pools are not those of the fleet"),
        (fleet["caches"], "cache_bytes", ["1"] * LAYERS, "has no size"),
    ):
        kept, row[key] = row[key], value
        out.write_text(json.dumps(plan))
        rates.write_text(json.dumps(fleet))
        assert main(["verify", str(out), str(rates)]) == 1
        assert said in capsys.readouterr().out.replace("\n", " ")
        row[key] = kept
    assert main([*call, "500:100"]) == 2
    assert "--requests '500:100': expected PROMPT:ANSWER:SHARE" in capsys.readouterr().err
