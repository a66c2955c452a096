"""Layouts that serve most tokens a second on devices of the cost model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from rlinit import llm
from rlinit.cli.main import main
from rlinit.errors import InvalidConfig
from rlinit.hardware import Device, Hardware
from rlinit.llm.device_costs import DeviceCosts
from rlinit.llm.lowering import Settings
from rlinit.llm.serving.bounds import ServingBound
from rlinit.llm.serving.layouts import Route
from rlinit.llm.throughput import _side_by_side

CONFIG = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192}
MODEL = llm.load(CONFIG, prompt=500, output=100)


def unlike(count: int = 3, memory: float = 1.6e9) -> Hardware:
    """Return devices of two kinds, the slower ones with more memory."""
    fast, slow = Device("d", "gpu", memory, 0.0, 1e14, 1e12), Device("d", "gpu", 2 * memory, 0.0, 2e13, 2e11)
    devices = [replace(fast if at % 2 else slow, name=f"d{at}") for at in range(count)]
    return Hardware.mesh(devices, 1e10, latency_s=1e-5)


@pytest.fixture(scope="module")
def costs() -> DeviceCosts:
    """Return the costs of the model on three devices."""
    return DeviceCosts(MODEL, unlike(), Settings(runtime="vllm"))


@pytest.fixture(scope="module")
def best() -> llm.ServingPlan:
    """Return the best layout."""
    return llm.plan(MODEL, unlike(), objective="throughput")


def test_what_is_kept_to_is_below_what_none_exceeds(costs: DeviceCosts) -> None:
    """At any length of a pass, and with a limit on it."""
    free = costs.limits()
    for factor in (1.0, 1.7, 5.0, 40.0):
        pass_s = factor * costs.shortest_pass
        kept, most = costs.fleet(pass_s), costs.limits(pass_s)
        for lower, higher in ((kept, most), (most, free)):
            index = [higher.devices.index(name) for name in lower.devices]
            assert (lower.rates <= higher.rates[index] * (1 + 1e-9)).all()


def test_no_chain_of_any_batches_serves_more_than_the_bound(costs: DeviceCosts, best: llm.ServingPlan) -> None:
    """Every cut between two devices or none, every batch: b / t of each, and caches for all that is under way."""
    layers, (_, kinds) = costs.layers, costs._kinds
    names, found = [device.name for device in costs.hardware.devices], 0.0
    for cut, (one, two) in product(range(1, layers + 1), product(range(3), repeat=2)):
        spans = [(one, 0, cut), (two, cut, layers - cut)]
        if one == two:
            continue
        for batches in product(range(len(costs.batches)), repeat=2):
            rows = [(at, s, j, b) for (at, s, j), b in zip(spans, batches, strict=True) if j]
            seconds = [costs.seconds[kinds[at], b, s, j] for at, s, j, b in rows]
            total = sum(seconds)
            rates = [
                min(costs.batches[b] / t, costs.sequences[at, s, j] / total)
                for (at, s, j, b), t in zip(rows, seconds, strict=True) if costs.batches[b] <= costs.sequences[at, s, j]
            ]  # fmt: skip
            found = max(found, min(rates) if len(rates) == len(rows) else 0.0)
    assert names == ["d0", "d1", "d2"]
    assert 0 < found <= best.bound


def test_a_plan_keeps_to_memory_and_says_how_long_a_token_takes(costs: DeviceCosts, best: llm.ServingPlan) -> None:
    """Paths make up the flow; the cache of what is under way, and a batch that takes no longer, fit on every device."""
    assert best.status in ("optimal", "feasible")
    for plan in (best, *llm.frontier(MODEL, unlike())):
        assert sum(path.tokens_per_s for path in plan.paths) == pytest.approx(plan.tokens_per_s)
        for name, (start, end) in plan.spans.items():
            at, held = costs.names.index(name), end - start
            mine = [path for path in plan.paths if name in path.devices]
            under_way = sum(path.tokens_per_s * path.seconds for path in mine)
            assert under_way <= costs.sequences[at, start, held] * (1 + 1e-9)
            passed = sum(path.tokens_per_s for path in mine)
            times = costs.seconds[costs._kinds[1][at], :, start, held]
            enough = times[np.array(costs.batches) / times >= passed * (1 - 1e-9)]
            assert all(enough.min() <= path.seconds * (1 + 1e-9) for path in mine)
        assert all(math.isclose(sum(row.values()), 1.0) for row in plan.weights.values())


def test_no_rule_is_better(best: llm.ServingPlan) -> None:
    """The rules of exo and Petals, replicas of whole pipelines, and one machine."""
    assert len(best.baselines) == 5
    assert max(best.baselines.values()) <= best.tokens_per_s


def test_a_limit_on_the_pass_is_kept() -> None:
    """Rates fall with it; where it is too short, nothing serves."""
    front = llm.frontier(MODEL, unlike())
    assert all(plan.tokens_per_s <= plan.bound for plan in front)
    rates, seconds = zip(*((plan.tokens_per_s, plan.latency_s) for plan in front), strict=True)
    assert list(rates) == sorted(rates)
    assert list(seconds) == sorted(seconds)
    limit = float(np.mean([seconds[0], seconds[-1]]))
    plan = llm.plan(MODEL, unlike(), objective="throughput", max_latency_s=limit)
    assert plan.latency_s <= limit * (1 + 1e-9)
    assert plan.bound <= llm.plan(MODEL, unlike(), objective="throughput").bound
    short = llm.plan(MODEL, unlike(), objective="throughput", max_latency_s=1e-6)
    assert (short.status, short.spans) == ("infeasible", {})
    assert "passes of at most 1e-06 s" in short.message


def test_models_that_fit_nowhere_and_settings_that_make_no_sense() -> None:
    """One line each."""
    assert llm.plan(MODEL, unlike(memory=2e8), objective="throughput").status == "infeasible"
    with pytest.raises(InvalidConfig, match="max_latency_s is -1"):
        llm.plan(MODEL, unlike(), objective="throughput", max_latency_s=-1)
    with pytest.raises(InvalidConfig, match="max_latency_s: for objective='throughput' or 'requests'"):
        llm.plan(MODEL, unlike(), max_latency_s=1.0)  # type: ignore[call-overload]
    with pytest.raises(InvalidConfig, match="time_limit_s: for"):
        llm.plan(MODEL, unlike(), time_limit_s=1.0)  # type: ignore[call-overload]


def test_fast_devices_do_not_wait_for_slow_ones() -> None:
    """Where caches are short, two kinds side by side, each with a pass of its own, serve more than in one row."""
    model = llm.load(CONFIG, prompt=400, output=112)
    devices = [
        Device(f"{kind}{at}", kind, memory, flops_per_s=rate * 1e13, bytes_per_s=rate * 1e11, reserve_bytes=0)
        for kind, memory, rate in (("fast", 1e9, 20.0), ("slow", 1e9, 0.5)) for at in range(2)
    ]  # fmt: skip
    hardware = Hardware.mesh(devices, 1e11)
    plan = llm.plan(model, hardware, objective="throughput")
    alone = [llm.plan(model, hardware.part(some), objective="throughput") for some in ([0, 1], [2, 3])]
    assert plan.tokens_per_s >= sum(one.tokens_per_s for one in alone) * (1 - 1e-9)
    assert plan.tokens_per_s == pytest.approx(sum(path.tokens_per_s for path in plan.paths))


def test_a_plan_from_the_command_line_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layout is written with the rates that its bound is of."""
    config, out = tmp_path / "config.json", tmp_path / "layout.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert main(["llm", str(config), "--hw", "2xl4+t4", "--objective", "throughput", "--out", str(out)]) == 0
    assert "a token takes" in capsys.readouterr().out
    assert main(["verify", str(out), str(tmp_path / "layout.rates.json")]) == 0
    assert "VERIFIED (exact) serving" in capsys.readouterr().out


def test_a_part_that_is_also_a_layout_of_all_serves_beside_others() -> None:
    """The fast machines by themselves are the best of all, and the slow ones still come on top."""
    fast, slow = (
        llm.ServingPlan("feasible", rate, ServingBound(rate), {name: (0, 4)}, {}, paths=(Route((name,), rate, 1.0),))
        for name, rate in (("d0", 5.0), ("d1", 1.0))
    )
    found = _side_by_side({(0, 1): [fast], (1, 2): [slow], (0, 2): [fast]}, (math.inf,))
    assert max(plan.tokens_per_s for plan in found) == 6.0
