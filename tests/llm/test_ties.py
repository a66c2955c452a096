"""Plans of equal value: equal devices in their order, the most headroom, the most even split, against brute force."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from rlinit import llm
from rlinit.devices.runtimes import RuntimeName
from rlinit.errors import InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.llm.lowering import Granularity, Objective, Settings, layer_bytes
from rlinit.llm.search.contiguous import ChainProblem, ChainSolution, exchangeable_classes, solve_chain
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of
from tests.draws import draws
from tests.llm.test_planning import GEMMA, LLAMA, MIXTRAL, every_split


def alike_hardware(draw: random.Random, num_devices: int, whole_bytes: float) -> Hardware:
    """Return devices of at most two speeds and of several sizes, which together hold about the model."""
    speeds = [10 ** draw.uniform(6, 8) for _ in range(2)]
    sizes = [whole_bytes * draw.uniform(1.2, 3.0) / num_devices for _ in range(2)]
    devices = []
    for at in range(num_devices):
        speed = draw.choice(speeds)
        devices.append(Device(f"d{at}", "d", draw.choice(sizes), flops_per_s=speed, bytes_per_s=speed, launch_s=1e-5))
    latency = draw.choice([0.0, 1e-4])
    return Hardware.mesh(devices, math.inf if latency == 0.0 and draw.random() < 0.5 else 1e6, latency_s=latency)


def with_room(model: llm.LanguageModel, hardware: Hardware, runtime: RuntimeName) -> Hardware:
    """Return the devices with as much more memory as the buffers of a runtime take of all that work together."""
    settings = Settings("decode", granularity="layer", runtime=runtime)
    more = layer_bytes(model, hardware, settings, range(hardware.num_devices), False)
    return replace(
        hardware, devices=tuple(replace(one, memory_bytes=one.memory_bytes + more) for one in hardware.devices)
    )


def judged(plan: llm.LlmPlan, hardware: Hardware, splits: Iterable[Any]) -> list[tuple[float, float, int]]:
    """Return value, headroom and squares of all splits that fit, computed by hand."""
    found = []
    for split in splits:
        spans = evaluate(plan.model, hardware, plan.settings, split)
        memory = memory_of(plan.model, hardware, plan.settings, spans)
        if overfull(memory) or not math.isfinite(value_of(spans, plan.settings)):
            continue
        free = [one.free_bytes for one in memory]
        units = Counter(some.device for some in spans for name in some.units if name not in {"embedding", "head"})
        found.append((value_of(spans, plan.settings), min(free), sum(count**2 for count in units.values())))
    return found


def check(plan: llm.LlmPlan, hardware: Hardware, splits: Iterable[Any]) -> int:
    """Compare a plan with the best of all splits, level by level; return how many are of its value."""
    found = judged(plan, hardware, splits)
    if not found:
        assert plan.status == "infeasible"
        assert plan.levels == ()
        return 0
    least = min(value for value, _, _ in found)
    equal = [one for one in found if one[0] <= least * (1 + 1e-9)]
    headroom = max(free for _, free, _ in equal)
    squares = min(some for _, free, some in equal if free >= headroom - 1e-6)
    assert plan.value <= least * (1 + 1e-9)
    assert [level.name for level in plan.levels] == ["headroom_bytes", "squared_units"]
    assert [level.value for level in plan.levels] == pytest.approx([headroom, squares], rel=1e-9, abs=1e-6)
    assert [level.bound for level in plan.levels] == pytest.approx([headroom, squares], rel=1e-9, abs=1e-6)
    return len(equal)


def in_order(plan: llm.LlmPlan, hardware: Hardware) -> bool:
    """Return whether devices that differ in their names alone come in their order, the first ones before others."""
    kinds: dict[Any, list[str]] = {}
    for device in hardware.devices:
        kinds.setdefault(tuple((device.memory_bytes, device.flops_per_s)), []).append(device.name)
    used = list(dict.fromkeys(span.device for span in plan.spans))
    return all(
        [name for name in used if name in group] == group[: len(set(used) & set(group))] for group in kinds.values()
    )


@pytest.mark.parametrize("objective", get_args(Objective))
def test_all_levels_against_brute_force(objective: Objective) -> None:
    """Value, headroom and squares are those of the best of all splits; equal devices come in their order."""
    ties = 0
    for seed in range(8):
        draw = random.Random(f"{objective} {seed} ties")
        config, granularity = draw.choice([LLAMA, MIXTRAL, GEMMA]), draw.choice(get_args(Granularity))
        model = llm.load(
            config | {"num_hidden_layers": 5 if granularity == "layer" else 2}, prompt=7, output=5, dtype="int4/fp16"
        )
        whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
        hardware, runtime = alike_hardware(draw, draw.choice([3, 4]), whole), draw.choice(get_args(RuntimeName))
        hardware = with_room(model, hardware, runtime)
        plan = llm.plan(model, hardware, objective=objective, granularity=granularity, runtime=runtime)
        ties += check(plan, hardware, every_split(len(model.units(granularity)), hardware.num_devices)) > 1
        assert in_order(plan, hardware), seed
    assert ties >= 3


def small_chain(rng: np.random.Generator) -> ChainProblem:
    """Return few units and devices with small whole numbers for all, so that many splits are of equal cost."""
    d, n = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    seconds, room = rng.integers(0, 3, (d, n)).astype(float), rng.integers(2, 3 * n, d).astype(float)
    transfer = rng.choice([0.0, 0.0, 1.0], (d, d))
    transfer[rng.random((d, d)) < 0.1] = np.inf
    first = rng.random(d) < 0.2
    if rng.random() < 0.6:  # some are equal
        transfer[:] = transfer[0, -1]
        for one in range(1, d):
            if rng.random() < 0.5:
                seconds[one], room[one], first[one] = seconds[0], room[0], first[0]
    np.fill_diagonal(transfer, 0.0)
    cached = rng.integers(0, 2, n).astype(float)
    shared = float(rng.integers(0, 2)) if n > 1 else 0.0
    return ChainProblem(
        seconds, cached + shared + rng.integers(0, 2, n), cached, shared, room, transfer,
        bool(rng.random() < 0.5), first, int(rng.integers(1, d + 1)),
    )  # fmt: skip


def rank(problem: ChainProblem, split: Any) -> tuple[float, float, float]:
    """Return cost, headroom with its sign turned, and squares of a split; inf where it does not fit."""
    n, cost, free = problem.num_units, [0.0], []
    for at, (device, start, end) in enumerate(split):
        if at:
            cost.append(float(problem.transfer_s[split[at - 1][0], device]))
        cost.append(float(problem.seconds[device, start:end].sum()))
        shared = problem.shared_bytes if end - start == n else 0.0
        free.append(float(problem.room_bytes[device] - problem.held_bytes[start:end].sum() + shared))
    allowed = min(free) >= 0 and not any(problem.only_first[device] for device, _, _ in split[1:])
    whole = max(cost) if problem.bottleneck else sum(cost)
    return (
        whole if allowed and len(split) <= problem.max_devices else math.inf,
        -min(free),
        sum(len(set(range(start, end)) - {0, n - 1}) ** 2 for _, start, end in split),
    )


@pytest.mark.parametrize("start", range(0, draws(400), 100))
def test_chains_with_many_equal_splits_against_brute_force(start: int) -> None:
    """Sums and bottlenecks, missing links, shared bytes, devices that come first: all levels are best."""
    for seed in range(start, start + 100):
        problem = small_chain(np.random.default_rng(seed))
        found = solve_chain([problem])
        best = min(rank(problem, split) for split in every_split(problem.num_units, len(problem.room_bytes)))
        if best[0] == math.inf:
            assert found == ChainSolution(math.inf, ()), seed
            continue
        assert rank(problem, found.spans) == best, seed
        assert (found.cost, found.least_cost) == (best[0], best[0]), seed
        assert (-found.headroom_bytes, found.squared_units) == best[1:], seed
        for group in exchangeable_classes(problem):
            used = [device for device, _, _ in found.spans if device in group]
            assert used == group[: len(used)], seed
        rounded = problem.seconds * (1 + 1e-14 * np.random.default_rng(seed).uniform(-1, 1, problem.seconds.shape))
        again = solve_chain([replace(problem, seconds=rounded)])
        assert (again.headroom_bytes, again.squared_units) == (found.headroom_bytes, found.squared_units), seed


def test_equal_gpus_share_evenly_and_in_their_order() -> None:
    """70B in int4 on two GPUs and 59 layers on nine: no GPU has half of another's, and the first ones are used."""
    config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    config |= {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    plan = llm.plan(llm.load(config, context=4096, dtype="int4/fp16"), "2xrtx4090+cpu-64g")
    assert [(span.device, len(span.units)) for span in plan.spans] == [("rtx4090-0", 41), ("rtx4090-1", 41)]
    flags = llm.to_llama_cpp(plan, {"rtx4090-0": "CUDA0", "rtx4090-1": "CUDA1", "cpu": "CPU"})
    assert flags[:2] == ["--device", "CUDA0,CUDA1"]
    model = llm.load(config | {"num_hidden_layers": 59, "vocab_size": 32000}, context=4096, dtype="fp16")
    nine = Hardware.mesh(
        [Device(f"CUDA{at}", "gpu", 13e9, flops_per_s=1e14, bytes_per_s=1e12) for at in range(12)], 1e10
    )
    plan = llm.plan(model, nine)
    assert [span.device for span in plan.spans] == [f"CUDA{at}" for at in range(9)]
    assert llm.to_vllm(plan)["VLLM_PP_LAYER_PARTITION"] == "6,6,6,7,7,7,7,7,6"


def test_devices_are_equal_by_their_data() -> None:
    """A name or a kind is none of it; memory, rates, what is kept free and links are; unlike ones keep their places."""
    model = llm.load(LLAMA | {"num_hidden_layers": 6}, prompt=7, output=5)
    rates: dict[str, Any] = {"flops_per_s": 1e6, "bytes_per_s": 1e6}
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    some = [Device("b", "one", whole / 2.5, **rates), Device("a", "other", whole / 2.5, **rates)]
    odd = Device("odd", "one", whole / 2.5, flops_per_s=1e6, bytes_per_s=2e6)

    def used(*devices: Device) -> list[str]:
        return [span.device for span in llm.plan(model, Hardware.mesh(devices, 1e6), runtime="none").spans]

    third = replace(some[0], name="c")
    assert used(*some, third) == ["b", "a", "c"]
    assert used(third, *some) == ["c", "b", "a"]
    assert set(used(*some, third, odd)) == {"b", "a", "odd"}


def test_wrong_levels_are_refused() -> None:
    """Numbers that are not the plan's, bounds that contradict them, and levels that are left out are found."""
    hardware = Hardware.mesh([Device(f"d{at}", "", 1.2e4, flops_per_s=1e6, bytes_per_s=1e6) for at in range(3)], 1e6)
    plan = llm.plan(llm.load(LLAMA, prompt=7, output=5), hardware, runtime="none")
    headroom, squares = plan.levels
    wrong: list[tuple[llm.Level, ...]] = [
        (),
        (headroom,),
        (squares, headroom),
        (replace(headroom, value=headroom.value + 1, bound=headroom.bound + 1), squares),
        (replace(headroom, bound=headroom.value - 1), squares),
        (replace(headroom, bound=math.nan), squares),
        (headroom, replace(squares, value=squares.value - 1, bound=squares.bound - 1)),
        (headroom, replace(squares, bound=squares.value + 1)),
    ]
    for levels in wrong:
        with pytest.raises(InvalidPlan, match="of equal value"):
            llm.verify(replace(plan, levels=levels), hardware)
