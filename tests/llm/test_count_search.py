"""Walks over places: proofs, facets and streams against brute force, and devices of several equal kinds."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlinit import llm
from rlinit.devices.efficiency import Efficiency
from rlinit.errors import InvalidConfig, InvalidHardware, InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.llm.lowering import lower_chain, lower_places, streams_of
from rlinit.llm.search.contiguous import Places
from rlinit.llm.search.count_search import prove_walk
from rlinit.llm.search.packing import Packing
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of
from tests.draws import draws
from tests.llm.test_planning import GEMMA, LLAMA, MIXTRAL, random_hardware


def random_places(rng: np.random.Generator) -> Places:
    """Return few units on places that share memories, some of them with buffers, at any scale."""
    q, m, n = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 7))
    scale, size = 10.0 ** rng.integers(-9, 12), 10.0 ** rng.integers(0, 12)
    period = [(rng.uniform(0, 1, q) * rng.choice([0, 1, 1], q), *rng.choice([0.0, 1.0, 2.0, 3.0], 2)) for _ in range(3)]
    row = [period[u] for u in rng.integers(0, 3, n)]
    transfer = rng.uniform(0, 0.5, (q, q)) * rng.choice([0, 1, 1])
    transfer[rng.random((q, q)) < 0.15] = np.inf
    np.fill_diagonal(transfer, 0.0)
    weight, cache = (np.array([unit[at] for unit in row]) * size for at in (1, 2))
    room = rng.integers(0, 3 * n + 2, m) * size
    room[rng.random(m) < 0.1] = np.inf
    buffer = rng.choice([0.0, 0.0, 1.0, 2.0], q) * size
    return Places(
        np.array([unit[0] for unit in row]).T * scale, transfer * scale, weight, cache, rng.integers(0, m, q),
        rng.integers(0, m, q), buffer, room, float(rng.choice([0.0, 1.0])) * size if weight[0] and n > 1 else 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("start", range(0, draws(400), 100))
def test_proofs_against_brute_force(start: int) -> None:
    """Without a walk to begin with the search ends at the optimum, or proves that nothing fits."""
    for seed in range(start, start + 100):
        problem = random_places(np.random.default_rng(seed))
        q, n = problem.seconds.shape
        walks = (np.array(walk) for walk in itertools.product(range(q), repeat=n))
        best = min((problem.cost(walk) for walk in walks if problem.fits(walk)), default=math.inf)
        found = prove_walk(problem)
        assert found.closed, seed
        assert found.bound <= best, seed
        assert found.bound >= best * (1 - 1e-8), seed
        assert bool(found.places) == math.isfinite(best), seed
        if found.places:
            walk = np.array(found.places)
            assert problem.fits(walk)
            assert problem.cost(walk) == pytest.approx(best, rel=2e-9), seed


def long_row(rng: np.random.Generator) -> Places:
    """Return repeated periods between two single units, on places some of which are equal, near or streams."""
    q = int(rng.integers(2, 5))
    homes = np.arange(q) if rng.random() < 0.5 else rng.integers(0, 2, q)
    m, cache = int(homes.max()) + 1, homes if rng.random() < 0.7 else rng.permutation(homes)
    kinds = [
        (rng.uniform(0, 1, q) * rng.choice([0, 1, 1, 1], q), *rng.choice([0.0, 1.0, 2.0, 3.0], 2)) for _ in range(4)
    ]
    period = [kinds[k] for k in rng.integers(0, 4, rng.integers(1, 4))]
    ends = [(rng.uniform(0, 1, q), float(rng.choice([1, 2, 4])), 0.0) for _ in range(2)]
    row = [ends[0], *period * int(rng.integers(2, 1 + 9 // len(period))), *period[: rng.integers(0, 2)], ends[1]]
    near = rng.integers(0, 2, q)
    transfer = np.where(near[:, None] == near, rng.choice([0.0, 0.02]), 0.3) * rng.choice([1.0, 1.0, 0.1])
    transfer[rng.random((q, q)) < rng.choice([0.0, 0.2])] = np.inf
    seconds, weight, held = (
        np.array([unit[0] for unit in row]).T,
        *(np.array([unit[at] for unit in row]) for at in (1, 2)),
    )
    total = float(weight.sum() + held.sum())
    room = np.floor(rng.dirichlet(np.full(m, 2.0)) * total * rng.uniform(0.98, 1.7) + rng.integers(0, 3))
    if m == q and rng.random() < 0.5:  # the first two are equal
        seconds[1], room[1], transfer[:, :] = seconds[0], room[0], 0.1
    np.fill_diagonal(transfer, 0.0)
    scale, size = 10.0 ** rng.integers(-9, 12), 10.0 ** rng.integers(0, 12) * rng.choice([1.0, 1 / 3])
    return Places(
        seconds * scale, transfer * scale, weight * size, held * size, homes, cache,
        rng.choice([0.0, 0.0, 0.0, 1.0], q) * size, room * size * (1 + 1e-12), float(rng.choice([0.0, 1.0])) * size,
    )  # fmt: skip


def least_cost(problem: Places) -> float:
    """Return the best cost by a dynamic program over place, first home, bytes of each memory, and places used."""
    (q, n), m = problem.seconds.shape, len(problem.room_bytes)
    labels: dict[tuple[int, int, tuple[float, ...], int], float] = {(-1, -1, (0.0,) * m, 0): 0.0}
    for u in range(n):
        after: dict[tuple[int, int, tuple[float, ...], int], float] = {}
        for (d, first, bytes_, used), before in labels.items():
            for e in range(q):
                held, home = list(bytes_), int(problem.weight_home[e])
                held[home] += problem.weight_bytes[u]
                held[problem.cache_home[e]] += problem.cache_bytes[u] + (
                    0.0 if used >> e & 1 else problem.buffer_bytes[e]
                )
                start = first if u else home
                held[home] -= problem.shared_bytes if u == n - 1 and start == home else 0.0
                rooms = problem.room_bytes + problem.shared_bytes * (np.arange(m) == start) * (u < n - 1)
                cost = before + problem.seconds[e, u] + (problem.transfer_s[d, e] if u else 0.0)
                key = (e, start, tuple(held), used | 1 << e)
                if cost < after.get(key, math.inf) and (np.array(held) <= rooms).all():
                    after[key] = cost
        labels = after
    return min(labels.values(), default=math.inf)


@pytest.mark.parametrize("start", range(0, 80, 40))
def test_long_rows_against_a_dynamic_program(start: int) -> None:
    """Repeated periods, equal places, streams and single units: what is proven is the optimum, or that nothing fits."""
    for seed in range(start, start + 40):
        problem = long_row(np.random.default_rng(seed))
        best, found = least_cost(problem), prove_walk(problem)
        assert found.closed, seed
        assert best * (1 - 1e-8) <= found.bound <= best * (1 + 1e-11) or found.bound == best, seed
        assert bool(found.places) == math.isfinite(best), seed


@pytest.mark.parametrize("seed", range(4))
def test_rows_hold_for_every_walk_that_fits(seed: int) -> None:
    """Facets of packing are satisfied by the counts of random walks over a hundred layers that fill memories."""
    rng = np.random.default_rng(seed)
    taken = np.tile(rng.choice([1.0, 2.5, 3.0, 7.0], (int(rng.integers(1, 5)), 1)), (25, 1))
    packing = Packing(float(taken.sum() * 0.4), taken, True, (5.0, 4.0), 3.0)
    facets = [*packing.facets(()), *packing.facets((0, 1)), *packing.facets((1,))]
    assert facets
    for _ in range(300):
        here = np.repeat(rng.random(len(taken)) < rng.random(), rng.integers(1, 9))[: len(taken)]
        singles = rng.random(2) < 0.5
        both = bool(singles.all())
        room = packing.room - singles @ np.array([5.0, 4.0]) + 3.0 * both
        for u in rng.permutation(np.flatnonzero(here)):  # until it fits
            if taken[here].sum() <= room:
                break
            here[u] = False
        visits = int(here[0]) + int((here[1:] & ~here[:-1]).sum())
        small, large = (
            int((here & (taken[:, 0] < packing.split)).sum()),
            int((here & (taken[:, 0] >= packing.split)).sum()),
        )
        for one in facets:
            held = one.small * small + one.large * large - one.visits * visits + singles @ np.array(one.singles)
            assert held - one.shared * both <= one.limit


@pytest.mark.parametrize("objective", ["decode", "prefill", "request"])
@pytest.mark.parametrize("seed", range(4))
def test_streams_are_as_good_as_brute_force(objective: Any, seed: int) -> None:
    """Weights on a host or disk, read in every pass: the value is that of the best of all placements and homes."""
    draw = random.Random(f"{objective} {seed} streams")
    model = llm.load(draw.choice([LLAMA, MIXTRAL, GEMMA]) | {"num_hidden_layers": 2}, prompt=9, output=4, dtype="fp16")
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    plain = random_hardware(draw, 2, whole)
    devices = (plain.devices[0], replace(plain.devices[1], kind="cpu"), Device("nvme", "nvme", bytes_per_s=1e6))
    hardware = Hardware.mesh(devices, 10 ** draw.uniform(5, 8), latency_s=1e-4)
    options: dict[str, Any] = {"objective": objective, "contiguous": False, "stream": True}
    options["runtime"] = draw.choice(["none", "llama.cpp"])
    options["micro_batch"] = 1
    plan = llm.plan(model, hardware, **options)
    assert len(streams_of(hardware, plan.settings)) == 3
    n, best = len(model.units()), math.inf
    for walk in itertools.product((0, 1, 3, 4, 5), repeat=n):
        split = tuple((place, at, at + 1) for at, place in enumerate(walk))
        spans = evaluate(model, hardware, plan.settings, split)
        if not overfull(memory_of(model, hardware, plan.settings, spans)):
            best = min(best, value_of(spans, plan.settings))
    assert plan.status == ("optimal" if math.isfinite(best) else "infeasible")
    assert plan.value == pytest.approx(best, rel=1e-8)
    assert plan.bound_source == "branch and bound over counts"
    assert plan.bound >= plan.value * (1 - 1e-8)
    places = lower_places(model, hardware, plan.settings, lower_chain(model, hardware, plan.settings))
    assert places.seconds.shape == (6, n)


def test_weights_come_from_the_host_where_that_is_better() -> None:
    """A long prompt is worth sending weights to the GPU for; a token is not. Exports take it or say why not."""
    config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 32}
    config |= {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
    }
    model = llm.load(config, prompt=8000, output=100, dtype="fp16")
    plan = llm.plan(model, "rtx4090+cpu-64g", objective="prefill", contiguous=False, stream=True)
    without = llm.plan(model, "rtx4090+cpu-64g", objective="prefill", contiguous=False)
    assert plan.value < without.value / 3
    assert {span.weights_on for span in plan.spans} >= {"cpu"}
    token = llm.plan(model, "rtx4090+cpu-64g", contiguous=False, stream=True)
    assert any(span.device == "cpu" for span in token.spans)
    assert "cpu" in set(llm.to_device_map(plan).device_map.values())
    with pytest.raises(InvalidPlan, match="reads weights from 'cpu'"):
        llm.to_vllm(plan)
    with pytest.raises(InvalidPlan, match="reads weights from 'cpu'"):
        llm.to_llama_cpp(plan, {"rtx4090": "CUDA0", "cpu": "CPU"})
    llm.verify(plan, Hardware.preset("rtx4090+cpu-64g"))
    with pytest.raises(InvalidPlan):
        llm.verify(replace(plan, spans=tuple(replace(one, weights_on="") for one in plan.spans)),
                   Hardware.preset("rtx4090+cpu-64g"))  # fmt: skip
    tight = llm.plan(model, "rtx4090+cpu-16g+nvme", objective="prefill", contiguous=False, stream=True)
    assert "nvme" in {span.weights_on for span in tight.spans}
    with pytest.raises(InvalidHardware, match="stream=True"):
        llm.plan(model, "rtx4090+cpu-16g+nvme")
    with pytest.raises(InvalidConfig, match="contiguous=False"):
        llm.plan(model, "rtx4090+cpu", stream=True)


def test_streams_are_never_worse_than_none() -> None:
    """Where streams are of no help, and too many to go through, the plan is the best one without them."""
    config = {"model_type": "mixtral", "num_hidden_layers": 100, "num_key_value_heads": 8, "intermediate_size": 14336}
    model = llm.load(config, context=8192)
    hardware = "h100+a100+l40s+rtx4090+rtx3090+l4+t4+cpu-256g"
    without = llm.plan(model, hardware, granularity="part", contiguous=False)
    plan = llm.plan(model, hardware, granularity="part", contiguous=False, stream=True)
    assert plan.bound <= plan.value <= without.value * (1 + 1e-9)


def test_equal_devices_of_several_kinds_are_planned() -> None:
    """A search that ends early gives a plan and a bound near it; whole layers are proven."""
    config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 100}
    config |= {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 32768,
    }
    hardware = "2xt4+2xl4+rtx3090+rtx4090+v100+cpu-256g"
    plan = llm.plan(llm.load(config, context=8192), hardware, granularity="part", contiguous=False)
    assert plan.spans
    assert plan.bound >= 0.99 * plan.value
    layers = llm.plan(llm.load(config, context=8192), hardware, contiguous=False)
    assert (layers.status, layers.bound_source) == ("optimal", "branch and bound over counts")


def test_costs_reach_what_graphs_reach() -> None:
    """Efficiencies of a device count: those of attention for pairs of tokens, of products for the rest."""
    model = llm.load(LLAMA, prompt=8, output=3, dtype="fp16")
    ideal = Device("d", flops_per_s=1e9, bytes_per_s=1e6)
    half = replace(ideal, efficiency={"matmul": Efficiency(bytes=((1.0, 0.5),), launch_s=1e-3)})
    dense = model.architecture.parts[2]
    assert dense.kind == "dense"
    assert model.seconds(dense, half, "decode") == pytest.approx(2 * model.seconds(dense, ideal, "decode") + 3e-3)
    slow = replace(ideal, efficiency={"attention": Efficiency(bytes=((1.0, 0.25),))})
    attention = model.architecture.parts[1]
    cached = float(np.mean(model.work(attention, "decode")[1][3])) / 1e6
    assert model.seconds(attention, slow, "decode") == pytest.approx(
        model.seconds(attention, ideal, "decode") + 3 * cached
    )
