"""The local executor against the unplaced model."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit.executors
from rlinit.errors import InvalidPlan
from rlinit.executors import ExecutionFailure
from rlinit.graph import Graph
from rlinit.plan import Plan
from tests.draws import draws
from tests.executors.plans import random_hardware, random_plan, stage_plan
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn

    from rlinit.executors.local import LocalExecutor
    from rlinit.importers.torch.functionalise import without_writes
    from tests.executors.models import (
        Centred,
        Chain,
        Failing,
        Inception,
        Losing,
        Overwriting,
        RandomNet,
        Reversed,
        Sleepy,
        TimeMajor,
        TinyTransformer,
        Tokens,
        WithMask,
        check_same,
        flat,
        graph_of,
        graph_of_program,
    )


SEEDS = st.integers(0, 100_000)
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "chain": lambda: (Chain().eval(), (torch.randn(2, 3, 8, 8),)),
    "inception": lambda: (Inception().eval(), (torch.randn(2, 3, 8, 8),)),
    "transformer": lambda: (TinyTransformer().eval(), (torch.randint(0, 50, (2, 7)),)),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Kernels round differently with other numbers of threads; with one everywhere, results are equal bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def placed(
    model: nn.Module, inputs: tuple[Any, ...], seed: int, devices: int = 3, count: int = 1
) -> tuple[Plan, Graph]:
    """Return a random placement of a model, and its graph."""
    graph = graph_of(model, inputs, batched=count > 1)
    return random_plan(graph, random_hardware(seed, devices), seed, inputs=count, transfers="parallel"), graph


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_latency_equals_eager(name: str, devices: int) -> None:
    """A random placement gives bit for bit what the model gives."""
    model, inputs = MODELS[name]()
    plan, graph = placed(model, inputs, devices, devices)
    result = rlinit.executors.execute(plan, model, *inputs, graph=graph)
    check_same(model, inputs, result.outputs)


@given(seed=SEEDS)
@settings(max_examples=draws(15), deadline=None)
def test_random_models_equal_eager(seed: int) -> None:
    """Random networks on random placements give what the network gives, run after run."""
    model, inputs = RandomNet(seed).eval(), (torch.randn(3, 4),)
    exported = without_writes(torch.export.export(model, inputs, strict=False))
    graph = graph_of_program(exported, "random")
    plan = random_plan(graph, random_hardware(seed, 3), seed)
    with LocalExecutor().load(plan, exported, inputs, graph=graph) as program:
        for _ in range(3):
            check_same(model, inputs, program.run(*inputs).outputs)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_throughput_equals_eager(name: str, seed: int) -> None:
    """Inputs split over devices come back in order, with the model's values (up to batched kernels)."""
    model, inputs = MODELS[name]()
    inputs = (torch.cat([inputs[0], inputs[0].flip(0)]),)
    plan, graph = placed(model, inputs, seed, 3, count=4)
    assert len({len(batch.shards) for batch in plan.batches}) > 1
    result = rlinit.executors.execute(plan, model, *inputs, graph=graph)
    check_same(model, inputs, result.outputs, exact=False)


@given(seed=SEEDS)
@settings(max_examples=draws(10), deadline=None)
def test_random_models_by_shards(seed: int) -> None:
    """Random networks give the same when their inputs are split over devices."""
    model, inputs = RandomNet(seed).eval(), (torch.randn(4, 4),)
    plan, graph = placed(model, inputs, seed, count=4)
    check_same(model, inputs, rlinit.executors.execute(plan, model, *inputs, graph=graph).outputs, exact=False)


def test_stage_plans_and_exported_programs_run() -> None:
    """A stage plan runs stage by stage, also on a program that is exported already and ops named like nodes."""
    model, inputs = MODELS["transformer"]()
    graph = graph_of(model, inputs)
    hardware = random_hardware(0, 3)
    stages = [3 * at // graph.num_ops for at in range(graph.num_ops)]
    plan = stage_plan(graph, hardware, stages)
    exported = torch.export.export(model, inputs, strict=False)
    check_same(model, inputs, rlinit.executors.execute(plan, exported, *inputs, graph=graph).outputs)
    names = {op: str(graph.extras[i]["node"]) for i, op in enumerate(graph.names)}
    named = dataclasses.replace(plan, assignment={names[op]: stage for op, stage in (plan.assignment or {}).items()})
    check_same(model, inputs, rlinit.executors.execute(named, exported, *inputs).outputs)


def test_measured_batches_are_complete() -> None:
    """Measuring gives every batch once, none overlapping another on its device."""
    model, inputs = MODELS["inception"]()
    plan, graph = placed(model, inputs, 5)
    result = LocalExecutor(measure=True).execute(plan, model, inputs, graph=graph)
    assert sorted((b.op, b.device, b.shards) for b in result.batches) == sorted(
        (b.op, b.device, b.shards) for b in plan.batches
    )
    for device in {batch.device for batch in result.batches}:
        mine = [batch for batch in result.batches if batch.device == device]
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(mine))
    assert 0 < max(batch.end_s for batch in result.batches) <= result.seconds


def test_failures_name_op_and_device() -> None:
    """A failing op ends the run with its name and device, the workers go on to serve, and close leaves no thread."""
    model, good, bad = Failing().eval(), torch.tensor([1, 2]), torch.tensor([1, 9])
    plan, graph = placed(model, (good,), 3)
    before = threading.active_count()
    with LocalExecutor().load(plan, model, (good,), graph=graph) as program:
        with pytest.raises(ExecutionFailure, match=r"op 'op_embedding' failed on device 'd\d' \(cpu\)"):
            program.run(bad)
        check_same(model, (good,), program.run(good).outputs)
    assert threading.active_count() == before
    with pytest.raises(ExecutionFailure, match="closed"):
        program.run(good)


def test_time_limit_ends_a_run() -> None:
    """A run that takes too long is given up with an error."""
    model, inputs = MODELS["chain"]()
    plan, graph = placed(model, inputs, 3)
    with pytest.raises(ExecutionFailure, match=r"more than 0.0 s"):
        LocalExecutor(time_limit_s=0.0).execute(plan, model, inputs, graph=graph)


def test_dynamic_dimensions_are_those_of_the_inputs() -> None:
    """A program with dynamic batch and length runs whole and split at the sizes of its inputs, and at no others."""
    from rlinit.importers.torch.export import from_program

    model = TinyTransformer().eval()
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(model, (torch.randint(0, 50, (2, 7)),), dynamic_shapes=shapes)
    for rows, length, count in ((1, 5, 1), (3, 9, 1), (4, 6, 4), (8, 5, 4)):
        inputs = (torch.randint(0, 50, (rows, length)),)
        graph = from_program(program, batch=rows // count, dims={"tokens[1]": length})
        graph = dataclasses.replace(graph, times={("*", size): np.ones(graph.num_ops) for size in (1, 2, 3, 4)})
        plan = random_plan(graph, random_hardware(1, 3), 1, inputs=count)
        with LocalExecutor().load(plan, program, inputs, graph=graph) as loaded:
            check_same(model, inputs, loaded.run(*inputs).outputs, exact=count == 1)
            with pytest.raises(InvalidPlan, match=r"was exported for|was loaded for"):
                loaded.run(torch.randint(0, 50, (rows, length + 1)))
            with pytest.raises(InvalidPlan, match="rows; the plan was loaded for"):
                loaded.run(torch.randint(0, 50, (rows + 1, length)))
        if count == 4:
            with pytest.raises(InvalidPlan, match="have 7 rows; the plan is for 4 inputs"):
                LocalExecutor().load(plan, program, (torch.randint(0, 50, (7, length)),), graph=graph)


def test_writes_in_place_and_training() -> None:
    """Writes in place that a view sees are taken out first; training mode is refused with the node's name."""
    x = (torch.randn(4, 4),)
    model: nn.Module = Overwriting()
    plan, graph = placed(model, x, 0)
    check_same(model, x, rlinit.executors.execute(plan, model, *x, graph=graph).outputs)
    trained = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    plan, graph = placed(trained, x, 0)
    with pytest.raises(InvalidPlan, match="training mode"):
        rlinit.executors.execute(plan, trained, *x, graph=graph)


def test_imported_graphs_run() -> None:
    """Graphs of the importer, by ops and by modules, are scheduled and run."""
    from rlinit.importers.torch.export import export_program, from_program

    for make in MODELS.values():
        model, inputs = make()
        program = export_program(model, inputs)
        for granularity in ("op", "module"):
            graph = from_program(program, granularity=granularity)
            timed = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
            plan = random_plan(timed, random_hardware(1, 3), 1)
            for runnable in (model, program):
                check_same(model, inputs, rlinit.executors.execute(plan, runnable, *inputs, graph=timed).outputs)


def test_constants_numbers_and_keywords() -> None:
    """What no input reaches is computed once; plain numbers are checked; keyword inputs follow positional ones."""
    from rlinit.importers.torch.export import export_program, from_program

    model, x, shift = WithMask(), torch.randn(2, 5), torch.randn(5)
    program = export_program(model, (x, 2.0), {"shift": shift})
    graph = from_program(program)
    assert not {"ones", "tril"} & set(graph.names)
    graph = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
    plan = random_plan(graph, random_hardware(1, 2), 1)
    result = rlinit.executors.execute(plan, program, x, 2.0, shift, graph=graph)
    assert torch.equal(result.outputs, model(x, 2.0, shift=shift))
    for wrong, message in (
        ((x, 3.0, shift), "is 3.0; the model was exported for 2.0"),
        ((x, 2.0), "there are 2 inputs"),
        ((x[:1], 2.0, shift), r"of shape \(1, 5\); the model was exported for"),
        ((x.double(), 2.0, shift), "float64"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            rlinit.executors.execute(plan, program, *wrong, graph=graph)


def test_ops_that_mix_inputs_are_not_split() -> None:
    """An op that makes one value of all inputs of a batch runs whole, and is refused where the plan splits it."""
    model, inputs = Centred(), (torch.randn(4, 3),)
    graph = graph_of(model, inputs, batched=True)
    outcomes = set()
    for seed in range(12):
        plan = random_plan(graph, random_hardware(seed, 2), seed, inputs=4)
        split = len([batch for batch in plan.batches if batch.op == "op_mean"]) > 1
        if split:
            with pytest.raises(InvalidPlan, match="'mean' makes one value of all inputs"):
                rlinit.executors.execute(plan, model, *inputs, graph=graph)
        else:
            check_same(model, inputs, rlinit.executors.execute(plan, model, *inputs, graph=graph).outputs, exact=False)
        outcomes.add(split)
    assert outcomes == {True, False}


@pytest.mark.parametrize(("kind", "shape"), [(Reversed, (4, 3)), (TimeMajor, (4, 5, 3))])
def test_hidden_mixing_is_found(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    """Plans that split what mixes inputs are right or refused; where order alone is in the way, inputs run singly."""
    model, inputs = kind(), (torch.randn(shape),)
    graph = graph_of(model, inputs, batched=True)
    refused = apart = 0
    for seed in range(12):
        plan = random_plan(graph, random_hardware(seed, 2), seed, inputs=4)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                result = rlinit.executors.execute(plan, model, *inputs, graph=graph)
        except InvalidPlan as problem:
            refused += 1
            assert "mixes the inputs of a batch there" in str(problem)  # noqa: PT017
        else:
            check_same(model, inputs, result.outputs, exact=False)
            apart += any("each input of a batch runs on its own" in str(one.message) for one in told)
    assert (refused > 0, apart > 0) == ((True, False) if kind is Reversed else (False, True))


def test_other_models_and_devices_are_refused() -> None:
    """A plan for another model, other inputs or absent devices is refused, and the message says what differs."""
    model, inputs = MODELS["chain"]()
    plan, graph = placed(model, inputs, 1)
    other, other_inputs = MODELS["inception"]()
    with pytest.raises(InvalidPlan, match="another model"):
        rlinit.executors.execute(plan, other, *other_inputs, graph=graph)
    with pytest.raises(InvalidPlan, match="another graph"):
        rlinit.executors.execute(plan, model, *inputs, graph=graph_of(other, other_inputs))
    for devices, message in (
        ({"nowhere": "cpu"}, "does not know"),
        ({"d0": "cuda:77"}, "does not have"),
        ({"d0": "abacus"}, "no torch device"),
        ({"d0": "meta"}, "expected 'cpu'"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            rlinit.executors.execute(plan, model, *inputs, graph=graph, devices=devices)
    with pytest.raises(InvalidPlan, match="expected 'local' or 'pipeline'"):
        rlinit.executors.execute(plan, model, *inputs, executor="teleport")
    edited = Graph.build(
        [(name, {**graph.extras[i], "time_s": 1.0}) for i, name in enumerate(graph.names)],
        [(graph.names[u], graph.names[v]) for u, v in graph.edges[1:]],
    )
    with pytest.raises(InvalidPlan, match="in the model only"):
        rlinit.executors.execute(
            stage_plan(edited, random_hardware(0, 1), [0] * edited.num_ops), model, *inputs, graph=edited
        )


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 4])
def test_cpu_and_two_logical_gpus(count: int) -> None:
    """A CPU and two logical devices on one GPU give the model's values."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model, inputs = MODELS["inception"]()
    inputs = (torch.cat([inputs[0], inputs[0].flip(0)]),)
    plan, graph = placed(model, inputs, 1, 3, count=count)
    result = rlinit.executors.execute(
        plan, model, *inputs, graph=graph, devices={"d0": "cpu", "d1": "cuda:0", "d2": "cuda:0"}
    )
    with torch.no_grad():
        expected = model(*inputs)
    for mine, true in zip(flat(result.outputs), flat(expected), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("value", "message"), [(1.0, "out of memory"), (2.0, "device is lost")])
def test_devices_that_fail_while_running(value: float, message: str) -> None:
    """No memory, or no device any more: the error names op and device, every lane stops at once, no thread is left."""
    model, inputs = Losing(), (torch.full((2,), value),)
    graph = graph_of(model, inputs)
    plan = random_plan(graph, random_hardware(1, 3), 1)
    before, started = threading.active_count(), time.monotonic()
    with pytest.raises(ExecutionFailure, match=rf"op 'op_lost' failed on device 'd\d' \(cpu\): .*{message}"):
        LocalExecutor().execute(plan, model, inputs, graph=graph)
    assert time.monotonic() - started < 60.0
    assert threading.active_count() == before


def test_the_watchdog_names_who_is_at_work() -> None:
    """A run over its limit ends with an error that names the device at work, and the program can be closed."""
    model, inputs = Sleepy(), (torch.randn(2),)
    graph = graph_of(model, inputs)
    plan = stage_plan(graph, random_hardware(0, 2), [0, 1])
    before = threading.active_count()
    with LocalExecutor(time_limit_s=0.3).load(plan, model, inputs, graph=graph) as program:
        started = time.monotonic()
        with pytest.raises(ExecutionFailure, match=r"more than 0.3 s; devices still at work: 'd1'"):
            program.run(*inputs)
        assert time.monotonic() - started < 30.0
    assert threading.active_count() == before


def test_throughput_plans_of_a_graph_for_one_input() -> None:
    """A plan for eight inputs, made from the graph of one, runs on eight with and without that graph."""
    model = Tokens().eval()
    graph = Graph.from_torch(model, (torch.ones(1, 3, 16, 16),))
    hardware = random_hardware(3, 3)
    times = {(device.name, rows): np.full(graph.num_ops, 1e-3) for device in hardware.devices for rows in range(1, 9)}
    graph = dataclasses.replace(graph, times=times)
    plan = random_plan(graph, hardware, 3, inputs=8, transfers="parallel")
    x = torch.randn(8, 3, 16, 16)
    for known in (graph, None):
        check_same(model, (x,), rlinit.run(plan, model, x, graph=known), exact=False)


def test_devices_that_run_nothing_may_be_named() -> None:
    """Every device of the plan may be given a physical one; a name that the plan does not know is refused."""
    model, inputs = MODELS["chain"]()
    graph = graph_of(model, inputs)
    hardware = random_hardware(0, 3)
    plan = random_plan(graph, hardware, 0, transfers="parallel")
    first = hardware.devices[0].name
    names = {device.name: "cpu" for device in hardware.devices}
    counts = [len(plan.batches)] + [0] * (len(plan.devices) - 1)
    alone = dataclasses.replace(
        plan,
        batches=tuple(dataclasses.replace(batch, device=first) for batch in plan.batches),
        devices=tuple(dataclasses.replace(use, num_batches=n) for use, n in zip(plan.devices, counts, strict=True)),
        assignment=dict.fromkeys(plan.assignment or (), first),
    )
    check_same(model, inputs, rlinit.run(alone, model, *inputs, graph=graph, devices=names))
    with pytest.raises(InvalidPlan, match="does not know"):
        rlinit.run(alone, model, *inputs, graph=graph, devices={"nowhere": "cpu"})
