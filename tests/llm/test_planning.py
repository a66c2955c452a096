"""Plans of language models: brute force, memory, what is missing, limits, and the costs they rest on."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from rlinit import llm
from rlinit.devices.runtimes import RuntimeName
from rlinit.errors import InvalidConfig, InvalidHardware, InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.llm.lowering import Granularity, Objective, Settings, lower_chain
from rlinit.llm.search.contiguous import ChainProblem, Places, exchangeable_classes
from rlinit.llm.search.count_search import prove_walk
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of

LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = LLAMA | {"model_type": "gemma2", "head_dim": 8, "sliding_window": 6, "tie_word_embeddings": True}


def random_hardware(draw: random.Random, num_devices: int, whole_bytes: float) -> Hardware:
    """Return unlike devices, some of them twice, which together hold about the model."""
    devices: list[Device] = []
    for at in range(num_devices):
        if at and draw.random() < 0.3:
            devices.append(replace(devices[-1], name=f"d{at}"))
            continue
        memory = whole_bytes * draw.uniform(0.15, 1.2)
        rate, bandwidth = 10 ** draw.uniform(6, 8), 10 ** draw.uniform(6, 8)
        devices.append(Device(f"d{at}", "d", memory, flops_per_s=rate, bytes_per_s=bandwidth, launch_s=1e-5))
    rates = np.array([[10 ** draw.uniform(5, 8) for _ in devices] for _ in devices])
    rates[np.array([[draw.random() < 0.1 for _ in devices] for _ in devices])] = 0.0
    if draw.random() < 0.5:
        rates[:] = 1e6
    np.fill_diagonal(rates, math.inf)
    return Hardware(tuple(devices), rates, 1e-4 * (1 - np.eye(num_devices)))


def every_split(num_units: int, num_devices: int) -> Any:
    """Yield every contiguous split over every ordered choice of devices."""
    for k in range(1, min(num_units, num_devices) + 1):
        for order in itertools.permutations(range(num_devices), k):
            for cuts in itertools.combinations(range(1, num_units), k - 1):
                ends = (0, *cuts, num_units)
                yield tuple(zip(order, ends[:-1], ends[1:], strict=True))


@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("seed", range(8))
def test_plans_are_as_good_as_brute_force(objective: Objective, seed: int) -> None:
    """The value is that of the best of all splits, and infeasible means that none of them fits."""
    draw = random.Random(f"{objective}-{seed}")
    config = draw.choice([LLAMA, MIXTRAL, GEMMA])
    granularity: Granularity = draw.choice(["layer", "part"])
    layers = {"num_hidden_layers": 3 if granularity == "layer" else 2}
    model = llm.load(config | layers, prompt=7, output=5, batch=draw.choice([1, 3]), dtype="int4/fp16")
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    hardware = random_hardware(draw, draw.choice([2, 3]), whole)
    first = draw.choice([(), ("d0",)])
    kinds = ["cpu" if draw.random() < 0.4 else "d" for _ in hardware.devices]
    hardware = replace(hardware, devices=tuple(map(lambda one, kind: replace(one, kind=kind), hardware.devices, kinds)))
    runtime = draw.choice(get_args(RuntimeName))
    plan = llm.plan(
        model, hardware, objective=objective, granularity=granularity, first=first, reserve_bytes=50.0, runtime=runtime,
        micro_batch=draw.choice([1, 4]), flash_attention=runtime != "llama.cpp" or draw.random() < 0.5,
    )  # fmt: skip
    best = math.inf
    for split in every_split(len(model.units(granularity)), hardware.num_devices):
        spans = evaluate(model, hardware, plan.settings, split)
        fits = not overfull(memory_of(model, hardware, plan.settings, spans))
        if fits and not any(span.device in first for span in spans[1:]):
            best = min(best, value_of(spans, plan.settings))
    assert plan.status == ("optimal" if math.isfinite(best) else "infeasible")
    assert plan.value == pytest.approx(best, rel=1e-9)
    assert plan.bound <= plan.value
    assert all(isinstance(value, str) or value >= plan.value * (1 - 1e-9) for value in plan.baselines.values())


@pytest.mark.parametrize("objective", ["decode", "prefill", "request"])
@pytest.mark.parametrize("seed", range(4))
def test_devices_that_come_back_are_as_good_as_brute_force(objective: Objective, seed: int) -> None:
    """With ``contiguous=False`` the value is that of the best of all placements of parts."""
    draw = random.Random(f"{objective} {seed}")
    config = draw.choice([LLAMA, MIXTRAL, GEMMA]) | {"num_hidden_layers": 3}
    model = llm.load(config, prompt=7, output=5, batch=draw.choice([1, 3]), dtype="int4/fp16")
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    hardware = random_hardware(draw, draw.choice([2, 3]), whole)
    plan = llm.plan(model, hardware, objective=objective, granularity="part", contiguous=False, runtime="none")
    problem = lower_chain(model, hardware, plan.settings)
    best = math.inf
    for devices in itertools.product(range(hardware.num_devices), repeat=problem.num_units):
        if fits(problem, devices):
            units = sum(problem.seconds[device, unit] for unit, device in enumerate(devices))
            best = min(best, units + sum(problem.transfer_s[pair] for pair in itertools.pairwise(devices)))
    assert plan.status == ("optimal" if math.isfinite(best) else "infeasible")
    assert plan.value == pytest.approx(best, rel=1e-6)
    assert plan.bound <= plan.value
    other = llm.plan(model, hardware, objective=objective, granularity="part", runtime="none")
    assert plan.value <= other.value * (1 + 1e-6)


def random_row(rng: np.random.Generator) -> ChainProblem:
    """Return a row of few units, some periods of it repeated, with zeros, ties, missing links and any magnitude."""
    d, scale, size = int(rng.integers(1, 4)), 10.0 ** rng.integers(-9, 9), 10.0 ** rng.integers(0, 11)

    def unit() -> tuple[Any, float]:
        return rng.uniform(0, 1, d) * rng.choice([0, 1, 1, 1], d), float(rng.choice([0, 1, 2, 3]))

    period = [unit() for _ in range(rng.integers(1, 4))]
    row = [(rng.uniform(0.1, 1, d), 1.0), *period * int(rng.integers(1, 4)), (rng.uniform(0.1, 1, d), 1.0)]
    while d ** len(row) > 3_000:
        row.pop(1)
    transfer = rng.uniform(0, 0.5, (d, d)) * rng.choice([0, 1, 1])
    transfer[rng.random((d, d)) < 0.15] = np.inf
    np.fill_diagonal(transfer, 0.0)
    held = np.array([bytes_ for _, bytes_ in row])
    room = rng.integers(0, int(held.sum()) + 2, d).astype(float)
    room[rng.random(d) < 0.1] = np.inf
    return ChainProblem(
        np.array([seconds for seconds, _ in row]).T * scale, held * size, 0.0 * held,
        float(rng.choice([0, 1])) * size, room * size,
        transfer * scale, False, np.zeros(d, bool), d,
    )  # fmt: skip


def fits(problem: ChainProblem, devices: Any) -> bool:
    """Return whether no device holds more than it has room for."""
    held = np.bincount(devices, problem.held_bytes, minlength=len(problem.room_bytes))
    held[devices[0]] -= problem.shared_bytes if devices[0] == devices[-1] else 0.0
    return bool((held <= problem.room_bytes * (1 + 1e-12)).all())


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_rows_on_any_device_against_brute_force(start: int) -> None:
    """Bounds never exceed the optimum and are met; what does not fit is proven not to."""
    for seed in range(start, start + 20):
        problem = random_row(np.random.default_rng(seed))
        best, found = math.inf, prove_walk(Places.of_chain(problem))
        cost = math.inf
        for devices in itertools.product(range(len(problem.room_bytes)), repeat=problem.num_units):
            if fits(problem, devices):
                units = sum(problem.seconds[device, unit] for unit, device in enumerate(devices))
                value = units + sum(problem.transfer_s[pair] for pair in itertools.pairwise(devices))
                best, cost = min(best, value), value if devices == found.places else cost
        assert found.bound == best or found.bound == pytest.approx(best, rel=2e-6), seed
        assert cost == best or cost == pytest.approx(best, rel=2e-6), seed


def row_on_devices(seconds: Any, held: Any, room: Any, transfer: Any = 0.0, shared: float = 0.0) -> ChainProblem:
    """Return a row of units on devices that may come back."""
    d = len(room)
    transfer_s = np.broadcast_to(np.asarray(transfer, float), (d, d)).copy()
    return ChainProblem(
        np.array(seconds, float), np.array(held, float), np.zeros(len(held)),
        shared, np.array(room, float), transfer_s, False,
        np.zeros(d, bool), d,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "best"),
    [
        # memories filled exactly, one unit a hundred-millionth of another: presolve took them for too small
        (row_on_devices(
            [[1e3, 1e6, 1e6, 1e6], [1e6, 1e7, 1e7, 1e7], [0.1, 1e3, 1e3, 1e3]], [1e4, 1e12, 1e12, 1e12],
            [3e12, 0.0, 2e12], [[0, math.inf, 1], [100, 0, 10], [math.inf, math.inf, 0]], 5e3,
        ), 1003001.0),
        (row_on_devices(
            [[1e7, 1e11, 1e10], [1e15, 1e6, 1e8], [1e14, 1e15, 1e8]], [1e-3, 1e3, 10.0], [1000.001, 1e3, 1000.001],
        ), 1.11e8),
        # times below HiGHS's absolute tolerances where each unit is for nothing somewhere
        (row_on_devices([[0.0, 3e-9], [2e-9, 0.0]], [1, 1], [2, 2], [[0, 4e-9], [4e-9, 0]]), 2e-9),
        # one unit, whose first and last share bytes with themselves
        (row_on_devices([[1.0], [5.0]], [3.0], [2.0, 9.0], shared=1.0), 1.0),
    ],
)  # fmt: skip
def test_rows_that_highs_got_wrong(problem: ChainProblem, best: float) -> None:
    """Bounds of these were above the optimum, or said that nothing fits."""
    found = prove_walk(Places.of_chain(problem))
    assert found.bound == pytest.approx(best, rel=1e-6)
    assert fits(problem, found.places)


def test_experts_go_to_the_host_and_attention_stays() -> None:
    """A mixture that a GPU cannot hold is faster with its experts on the host; exports take it or say why not."""
    config = {"model_type": "mixtral", "num_hidden_layers": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
    model = llm.load(config, context=8192, dtype="int4/fp16")
    whole = llm.plan(model, "t4+cpu-128g", granularity="part")
    plan = llm.plan(model, "t4+cpu-128g", granularity="part", contiguous=False)
    assert plan.status == "optimal"
    assert plan.value < whole.value
    where = plan.assignment
    assert {where[f"layer{at}.attention"] for at in range(32)} == {"t4"}
    assert {where[f"layer{at}.feed_forward"] for at in range(32)} == {"t4", "cpu"}
    assert "--n-cpu-moe" in llm.to_llama_cpp(plan, {"t4": "CUDA0", "cpu": "CPU"})
    with pytest.raises(InvalidPlan, match="cuts inside"):
        llm.to_device_map(plan)
    for wrong in ({"objective": "pipeline"}, {"first": ["cpu"]}):
        with pytest.raises(InvalidConfig, match="for contiguous plans"):
            llm.plan(model, "t4+cpu", contiguous=False, **wrong)
    layers = llm.plan(model, "t4+cpu-128g", contiguous=False)
    assert set(llm.to_device_map(layers).device_map.values()) == {"t4", "cpu"}


def test_small_cases_are_feasible_and_infeasible() -> None:
    """The cases above are of both kinds, so that neither branch is left out."""
    model = llm.load(LLAMA, prompt=7, output=5)
    hardware = Hardware.mesh([Device("a", "", 4e4, flops_per_s=1e6, bytes_per_s=1e6)], 1e6)
    assert llm.plan(model, hardware, runtime="none").status == "optimal"
    assert llm.plan(model, hardware, reserve_bytes=3.9e4).status == "infeasible"


def big(layers: int = 100) -> llm.LanguageModel:
    """Return a model of 100 layers, four times the size of what a large GPU holds."""
    config = {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": layers,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    return llm.load(config, context=8192)


@pytest.mark.parametrize("objective", get_args(Objective))
def test_hundred_layers_on_eight_unlike_devices_are_proven(objective: Objective) -> None:
    """Each granularity as well; the benchmark of language models has the seconds."""
    hardware = "a100-80g+l40s+rtx4090+rtx3090+l4+v100-32g+t4+cpu-128g"
    plan = llm.plan(big(), hardware, objective=objective)
    assert plan.status == "optimal"
    if objective == "prefill":
        for granularity in get_args(Granularity):
            free = llm.plan(big(), hardware, objective=objective, granularity=granularity, contiguous=False)
            assert free.status == "optimal"
            assert free.value <= plan.value * (1 + 1e-9)


def test_equal_devices_are_one_class() -> None:
    """Sixteen equal GPUs are seventeen sets, not 65,536; an odd link makes its ends unlike."""
    model = big(20)
    hardware = Hardware.preset("16xt4+cpu")
    problem = lower_chain(model, hardware, Settings())
    assert [len(group) for group in exchangeable_classes(problem)] == [16, 1]
    links = problem.transfer_s.copy()
    links[0, 1] *= 2.0
    assert len(exchangeable_classes(replace(problem, transfer_s=links))) == 4
    assert llm.plan(model, hardware).status == "optimal"
    unlike = [Device(f"d{i}", flops_per_s=1e9 + i, bytes_per_s=1e9) for i in range(20)]
    with pytest.raises(InvalidHardware, match="too many sets"):
        llm.plan(model, Hardware.mesh(unlike, 1e9))


def test_infeasible_says_what_is_missing() -> None:
    """All devices too small, a unit too large for each, whole layers that do not fill: each is said with its bytes."""
    model = llm.load(LLAMA, prompt=7, output=5)
    held = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    rates = {"flops_per_s": 1e6, "bytes_per_s": 1e6}

    def said(*memories: float) -> str:
        devices = [Device(f"d{at}", "", memory, **rates) for at, memory in enumerate(memories)]  # type: ignore[arg-type]
        plan = llm.plan(model, Hardware.mesh(devices, 1e6), runtime="none")
        assert plan.status == "infeasible"
        assert plan.baselines == {}
        return plan.message

    assert "are missing" in said(held / 4, held / 4)
    assert "together" in said(held / 4, held / 4)
    assert "fits no device" in said(*[held / 12] * 13)
    assert "granularity='part'" in said(held * 0.499, held * 0.502)


def test_the_longest_context_fits_and_the_next_does_not() -> None:
    """Bisection ends at the last context that fits; positions end the search where memory does not."""
    model = llm.load(LLAMA | {"max_position_embeddings": 5000}, prompt=7, output=5)
    device = Device("a", "", 1e5, flops_per_s=1e6, bytes_per_s=1e6)
    found = llm.max_context(model, Hardware.mesh([device], 1e6))
    assert 12 < found.largest < 5000
    assert found.plan.status == "optimal"
    more = model.with_workload(context=found.largest + 1)
    assert llm.plan(more, Hardware.mesh([device], 1e6)).status == "infeasible"
    assert llm.max_context(model, Hardware.mesh([replace(device, memory_bytes=1e9)], 1e6)).by_model
    assert llm.max_context(model, Hardware.mesh([replace(device, memory_bytes=1e3)], 1e6)).largest == 0
    batch = llm.max_batch(model, Hardware.mesh([device], 1e6)).largest
    assert llm.plan(model.with_workload(batch=batch), Hardware.mesh([device], 1e6)).status == "optimal"
    assert llm.plan(model.with_workload(batch=batch + 1), Hardware.mesh([device], 1e6)).status == "infeasible"


def test_costs_are_those_written_out() -> None:
    """Operations, bytes and cache of a dense layer, a windowed one and experts, by hand."""
    model = llm.load(LLAMA, prompt=8, output=3, batch=2, dtype="fp16")
    attention = model.architecture.parts[1]
    matrices = 16 * (16 + 16) + 16 * 16
    assert model.kv_bytes(attention) == 2 * 11 * 2 * 2 * 4 * 2
    (kind, count, flops, moved), (other, one, pair_flops, cached) = model.work(attention, "prefill")
    assert (kind, count, other, one) == ("matmul", 4, "attention", 1)
    assert (flops.tolist(), moved.tolist()) == ([2 * matrices * 16], [2 * (matrices + 32)])
    assert (pair_flops.tolist(), cached.tolist()) == ([4 * 16 * 2 * (8 * 9 // 2)], [16 * 16 * 2])
    (_, _, flops, moved), (_, _, pair_flops, cached) = model.work(attention, "decode")
    assert (flops.tolist(), moved.tolist()) == ([2 * 2 * matrices], [2 * (matrices + 32)])
    assert pair_flops.tolist() == [2 * 4 * 16 * length for length in (9, 10)]
    assert cached.tolist() == [2 * 16 * 2 * length for length in (9, 10)]
    small = llm.load(LLAMA, prompt=8, output=3, batch=2, dtype="fp16", kv_dtype="int8")
    assert small.kv_bytes(attention) == model.kv_bytes(attention) / 2
    assert small.work(attention, "decode")[1][3].tolist() == (cached / 2).tolist()
    windowed = llm.load(GEMMA, prompt=8, output=3, dtype="fp16").architecture.parts[1]
    model = llm.load(GEMMA, prompt=8, output=3, dtype="fp16")
    assert model.kv_bytes(windowed) == 6 * 2 * 2 * 8 * 2
    pairs = 1 + 2 + 3 + 4 + 5 + 6 + 6 + 6
    assert model.work(windowed, "prefill")[1][2].tolist() == [4 * 4 * 8 * pairs]
    experts = llm.load(MIXTRAL).architecture.parts[3]
    assert experts.touched(1) == pytest.approx(0.5)
    assert experts.touched(2) == pytest.approx(0.75)
    uneven = llm.load(MIXTRAL, shares=[1.0, 1.0, 0.0, 0.0]).architecture.parts[3]
    assert uneven.touched(100) == pytest.approx(0.5)


def test_slower_devices_take_longer_and_pipelines_that_share_are_refused() -> None:
    """A slowdown multiplies the seconds of spans; pipelines on devices that share something are not planned."""
    model = llm.load(LLAMA, prompt=8, output=4)
    devices = [Device(f"d{i}", flops_per_s=1e9, bytes_per_s=1e9, launch_s=1e-6, shares="cpu") for i in range(2)]
    fast = Hardware.mesh(devices)
    slow = Hardware.mesh([replace(device, slowdown=2.0) for device in devices])
    assert llm.plan(model, slow).value == pytest.approx(2.0 * llm.plan(model, fast).value)
    sharing = replace(fast, sharing={"cpu": (1.0, 1.5)})
    assert llm.plan(model, sharing).value == llm.plan(model, fast).value
    with pytest.raises(InvalidHardware, match="do not count devices that share 'cpu'"):
        llm.plan(model, sharing, objective="pipeline")


def test_a_changed_plan_is_refused() -> None:
    """A value, order or bytes that are not the plan's, and a status or bound that contradicts them, are found."""
    model = llm.load(LLAMA, prompt=7, output=5)
    devices = [Device(f"d{at}", "", 1.2e4, flops_per_s=1e6, bytes_per_s=1e6) for at in range(3)]
    hardware = Hardware.mesh(devices, 1e6)
    plan = llm.plan(model, hardware, runtime="none")
    assert len(plan.spans) > 1
    llm.verify(plan, hardware)
    wrong = [
        replace(plan, value=plan.value * 0.99, bound=0.0),
        replace(plan, bound=plan.value * 1.01),
        replace(plan, bound=math.nan),
        replace(plan, bound=0.0),
        replace(plan, status="feasible"),
        replace(plan, status="infeasible"),
        replace(plan, spans=plan.spans[::-1]),
        replace(plan, spans=plan.spans[:-1]),
        replace(plan, spans=(*plan.spans[:-1], replace(plan.spans[-1], device=plan.spans[0].device))),
        replace(plan, spans=(replace(plan.spans[0], weight_bytes=1.0), *plan.spans[1:])),
        replace(plan, settings=replace(plan.settings, reserve_bytes=1e4)),
        replace(plan, settings=replace(plan.settings, runtime="llama.cpp")),
        replace(plan, memory=()),
        replace(plan, memory=(replace(plan.memory[0], buffer_bytes=1.0), *plan.memory[1:])),
    ]
    for one in wrong:
        with pytest.raises(InvalidPlan):
            llm.verify(one, hardware)


def test_the_chain_is_a_graph_for_schedule() -> None:
    """`to_graph` carries the same seconds and bytes."""
    model = llm.load(LLAMA, prompt=7, output=5)
    devices = [Device(f"d{at}", "", 1.2e4, flops_per_s=1e6, bytes_per_s=1e6) for at in range(2)]
    graph = model.to_graph(devices)
    assert graph.names == tuple(name for name, _ in model.units()) or list(graph.names) == [n for n, _ in model.units()]
    held = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    assert float(graph.param_bytes.sum()) == held


def test_wrong_requests_are_told() -> None:
    """Lengths, dtypes, objectives and devices that make no sense are refused by name."""
    with pytest.raises(InvalidConfig, match="prompt is 0"):
        llm.load(LLAMA, prompt=0)
    with pytest.raises(InvalidConfig, match="do not fit"):
        llm.load(LLAMA, context=10, prompt=10, output=1)
    with pytest.raises(InvalidConfig, match="dtype is 'int3'"):
        llm.load(LLAMA, dtype="int3")
    model = llm.load(LLAMA)
    with pytest.raises(InvalidConfig, match="objective is 'speed'"):
        llm.plan(model, "t4", objective="speed")  # type: ignore[call-overload]
    with pytest.raises(InvalidHardware, match="no flops_per_s"):
        llm.plan(model, Hardware.pipeline(2))
    with pytest.raises(InvalidHardware, match="no device 'cpu'"):
        llm.plan(model, "t4", first=["cpu"])


LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def test_reserves_of_the_hardware_count_and_buffers_beside_them() -> None:
    """No device is filled beyond its reserve; one of the user's own takes the place of the hardware's."""
    model, hardware = llm.load(LLAMA_70B, context=8192, dtype="int4"), Hardware.preset("2x3090+cpu")
    for options in ({}, {"flash_attention": False}, {"runtime": "vllm"}, {"objective": "pipeline"}):
        plan = llm.plan(model, hardware, **options)
        assert plan.status == "optimal"
        for one in plan.memory:
            device = next(device for device in hardware.devices if device.name == one.device)
            assert one.reserve_bytes == device.reserve_bytes >= 1e9
            assert one.buffer_bytes > 1e8
            assert one.free_bytes >= 0
            here = [span for span in plan.spans if span.device == one.device]
            assert one.weight_bytes == sum(span.weight_bytes for span in here)
            assert one.cache_bytes == sum(span.cache_bytes for span in here)
    more = llm.plan(model, hardware, reserve_bytes=2 * 2**30)
    assert {one.reserve_bytes for one in more.memory} == {2 * 2**30}
    for wrong in ({"micro_batch": 0}, {"runtime": "tgi"}, {"runtime": "vllm", "flash_attention": False}):
        with pytest.raises(InvalidConfig):
            llm.plan(model, hardware, **wrong)


def test_the_longest_context_leaves_reserve_and_buffers() -> None:
    """An 8B model on one card: fewer tokens than weights and cache alone would leave room for, without scores fewer."""
    small = LLAMA_70B | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    model = llm.load(small | {"num_attention_heads": 32}, dtype="bf16")
    lengths = [
        llm.max_context(model, "rtx4090", runtime="none", reserve_bytes=0.0).largest,
        llm.max_context(model, "rtx4090").largest,
        llm.max_context(model, "rtx4090", flash_attention=False).largest,
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3
    found = llm.max_context(model, "rtx4090").plan.memory[0]
    assert 0 <= found.free_bytes < 2**20


def test_plans_are_compared_with_what_people_run() -> None:
    """Each rule has its value or the reason why it does not fit; none shares layers with a processor as with a GPU."""
    model = llm.load(LLAMA_70B, context=8192, dtype="int4")
    two = llm.plan(model, "2x3090+cpu")
    rules = {
        "best single device", "in proportion to memory", "in proportion to bandwidth", "equal layers on the GPUs",
        "llama.cpp", "most layers on the GPUs", "fastest memory filled first",
    }  # fmt: skip
    assert set(two.baselines) == rules
    for name, value in two.baselines.items():
        assert isinstance(value, float), name
        assert value >= two.value * (1 - 1e-9)
    one = llm.plan(model, "rtx4090+cpu")
    assert "would hold" in str(one.baselines["equal layers on the GPUs"])
    assert one.baselines["llama.cpp"] == one.baselines["most layers on the GPUs"]
    assert isinstance(one.baselines["llama.cpp"], float)
    alone = llm.plan(model, "a100-80g").baselines
    assert alone["llama.cpp"] == alone["best single device"] == alone["most layers on the GPUs"]
    assert "llama.cpp" not in llm.plan(model, "cpu-128g").baselines


def test_experts_on_the_processor_are_compared_with_llama_cpp() -> None:
    """Of a mixture too large for the GPU experts stay on the host by llama.cpp's rules, as few as fit."""
    config = {"model_type": "mixtral", "num_hidden_layers": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
    model = llm.load(config, context=8192, dtype="int4/fp16")
    plan = llm.plan(model, "t4+cpu-128g", granularity="part", contiguous=False)
    fewest, whole = plan.baselines["fewest experts on the processor"], plan.baselines["most layers on the GPUs"]
    assert isinstance(fewest, float)
    assert isinstance(whole, float)
    assert plan.value * (1 - 1e-9) <= fewest < whole
    assert plan.baselines["llama.cpp"] == pytest.approx(fewest, rel=0.01)
    two = llm.plan(model, "t4+t4+cpu-128g", granularity="part", contiguous=False).baselines
    assert all(isinstance(two[name], float) for name in ("llama.cpp", "fewest experts on the processor"))


@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_another_device_never_makes_a_plan_worse(objective: Objective, dtype: str) -> None:
    """Buffers that only plans on processor and GPU take, or on several, are not counted for plans on one."""
    config = {"model_type": "mixtral", "num_hidden_layers": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
    model = llm.load(config, context=8192, dtype=dtype)
    last = math.inf
    for hardware in ("rtx4090", "rtx4090+cpu-512g", "rtx4090+t4+cpu-512g"):
        plan = llm.plan(model, hardware, objective=objective)
        assert plan.value <= last * (1 + 1e-9), hardware
        last = plan.value


@pytest.mark.parametrize("seed", range(12))
def test_devices_that_come_back_share_buffers_as_brute_force_says(seed: int) -> None:
    """With ``contiguous=False`` processors and GPUs take buffers by what works together; the best of all is found."""
    draw = random.Random(f"buffers {seed}")
    config = draw.choice([LLAMA, MIXTRAL, GEMMA]) | {"num_hidden_layers": 2}
    model = llm.load(config, prompt=7, output=5, dtype="int4/fp16")
    whole = sum(model.weight_bytes(part) + model.kv_bytes(part) for part in model.architecture.parts)
    plain = random_hardware(draw, 3, 2 * whole)
    kinds = draw.choice([("cpu", "d", "d"), ("d", "cpu", "cpu"), ("d", "cpu", "d")])
    hardware = replace(plain, devices=tuple(map(lambda one, kind: replace(one, kind=kind), plain.devices, kinds)))
    runtime = draw.choice(get_args(RuntimeName))
    plan = llm.plan(model, hardware, granularity="part", contiguous=False, runtime=runtime, micro_batch=4)
    best, n = math.inf, len(model.units("part"))
    for devices in itertools.product(range(3), repeat=n):
        starts = [0, *(at for at in range(1, n) if devices[at] != devices[at - 1])]
        split = tuple((devices[a], a, b) for a, b in zip(starts, [*starts[1:], n], strict=True))
        spans = evaluate(model, hardware, plan.settings, split)
        if not overfull(memory_of(model, hardware, plan.settings, spans)):
            best = min(best, value_of(spans, plan.settings))
    assert plan.status == ("optimal" if math.isfinite(best) else "infeasible")
    assert plan.value == pytest.approx(best, rel=1e-6)
    assert plan.bound <= plan.value


def test_a_head_on_the_processor_takes_room_on_the_gpu() -> None:
    """llama.cpp copies it there for large batches; plans with the head on the GPU take less."""
    model, hardware = llm.load(LLAMA_70B, context=8192, dtype="int4"), Hardware.preset("rtx4090+cpu")
    n = len(model.units())
    buffers = []
    for split in (((0, 0, 40), (1, 40, n)), ((1, 0, 60), (0, 60, n))):
        spans = evaluate(model, hardware, Settings(), split)
        buffers.append(memory_of(model, hardware, Settings(), spans)[0].buffer_bytes)
    assert buffers[0] > buffers[1] + 2**28
