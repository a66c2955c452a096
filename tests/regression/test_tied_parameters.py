"""Parameters that several ops read are held once on each device or stage that runs some of them, in every problem."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.certificates import certificate_of, check
from rlinit.coarsening.contraction import coarsen
from rlinit.errors import InvalidGraph, InvalidPlan, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from tests.draws import draws
from tests.properties import fuzz


def tied_chain(layers: int = 6) -> Graph:
    """Return an embedding and a head that read one matrix of 10 bytes, with layers of 2 bytes between them."""
    row = {"time_s": 1.0, "out_bytes": 1}
    ops: list[tuple[str, dict[str, Any]]] = [("embed", {**row, "param_bytes": 10, "shared": {"w": 10}})]
    ops += [(f"h.{i}", {**row, "param_bytes": 2}) for i in range(layers)]
    ops.append(("head", {**row, "param_bytes": 10, "shared": {"w": 10}}))
    return Graph.build(ops, list(itertools.pairwise(name for name, _ in ops)), name="tied")


def devices(count: int, memory: float, cache: float = float("inf")) -> Hardware:
    """Return equal devices with fast links."""
    return Hardware.mesh([Device(f"d{i}", memory_bytes=memory, cache_bytes=cache) for i in range(count)], 1e9)


def test_pipelines_are_not_collapsed() -> None:
    """Readers at both ends of a model are on different stages, each of which holds the matrix, and that is optimal."""
    graph = tied_chain()
    for memory in (1e6, 16.0):
        plan = rlinit.schedule(graph, devices(4, memory), time_limit_s=5)
        assert plan.status == "optimal"
        assert [use.param_bytes for use in plan.stages] == [12, 4, 4, 12]
        assert plan.graph_figures["param_bytes"] == 22


def test_one_stage_holds_one_copy() -> None:
    """What has room for one copy is used for both readers, and nothing else is called infeasible."""
    graph = tied_chain()
    plan = rlinit.schedule(graph, devices(1, 22.0))
    assert [use.param_bytes for use in plan.stages] == [22]
    assert rlinit.schedule(graph, devices(1, 21.0)).status == "infeasible"
    plan = rlinit.schedule(graph, devices(1, 22.0 + 2), objective="latency")
    assert [use.held_bytes for use in plan.devices] == [24]
    over = rlinit.schedule(graph, devices(1, 1e6, cache=20.0))
    assert [use.off_cache_bytes for use in over.stages] == [2]


def test_training_exchanges_gradients() -> None:
    """Devices that hold a parameter send each other its gradient after each step; another figure is refused."""
    graph, hardware = tied_chain(), devices(2, 1e6)
    plan = rlinit.schedule(graph, hardware, training="1f1b", microbatches=4)
    assert plan.training is not None
    assert plan.training.exchange_bytes == 20
    assert [stage.state_bytes for stage in plan.training.stages] == [4 * 16, 4 * 16]
    false = dataclasses.replace(plan, training=dataclasses.replace(plan.training, exchange_bytes=0.0))
    with pytest.raises(InvalidPlan, match="exchange_bytes"):
        rlinit.verify(false, graph, hardware)
    alone = rlinit.schedule(graph, devices(1, 1e6), training="1f1b", microbatches=4)
    assert alone.training is not None
    assert alone.training.exchange_bytes == 0


def test_backward_ops_follow_their_groups() -> None:
    """Colocation of a backward op holds for its forward op, which shares its stage."""
    row = {"time_s": 1.0, "out_bytes": 1}
    ops: list[tuple[str, dict[str, Any]]] = [(f"f{i}", {**row, "param_bytes": 1}) for i in range(3)]
    ops += [(f"b{i}", {**row, "backward_of": f"f{i}"}) for i in (2, 1, 0)]
    ops[2][1]["colocate"] = ops[-1][1]["colocate"] = "g"
    graph = Graph.build(ops, list(itertools.pairwise(name for name, _ in ops)))
    plan = rlinit.schedule(graph, devices(3, 1e6), training="1f1b", microbatches=3)
    assert set((plan.assignment or {}).values()) == {0}


@pytest.mark.filterwarnings("ignore:.*give no out_bytes")
@pytest.mark.parametrize("first", range(0, draws(150), 50))
def test_plans_and_bounds_agree_with_brute_force(first: int) -> None:
    """In all objectives, chunks, loose ops and training: no false value or bound, the optimum where it is claimed."""
    tried = 0
    for number in range(first, first + 50):
        case = fuzz.draw(number, seed=31)
        case = dataclasses.replace(case, graph=fuzz.tied(case.graph, np.random.default_rng([31, number])))
        if case.large or not case.graph.shared:
            continue
        assert fuzz.attack(case, []) == "", case
        if case.options["objective"] == "pipeline":
            assert fuzz.attack_split(case) == "", case
        tried += 1
    assert tried > 10
    for number in range(first, first + 10):
        assert fuzz.attack_training(number, seed=31, share=True) == "", number


def test_certificates_count_one_copy() -> None:
    """The stand-alone checker proves values that need the exact bytes of stages, and refutes a copy too few."""
    graph = tied_chain()
    for objective, memory, cache in (("memory", 1e6, 1e6), ("pipeline", 16.0, 1e6), ("pipeline", 1e6, 14.0)):
        hardware = devices(3, memory, cache)
        plan = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=5)  # type: ignore[arg-type]
        files = plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate_of(plan, graph, hardware)
        assert answer(*files).startswith("VERIFIED (exact)"), answer(*files)
        files[0]["stages"][0]["param_bytes"] -= 1
        assert "param_bytes of stage 0" in answer(*files)


def answer(*files: Any) -> str:
    """Return what the stand-alone checker says of a plan, a graph, hardware and a certificate."""
    forms = ("rlinit-plan", "rlinit-graph", "rlinit-hardware", "rlinit-certificate")
    read = tuple(check.parse(json.dumps(one), form, form) for one, form in zip(files, forms, strict=True))
    return str(check.answer(lambda: read))


@pytest.mark.parametrize("objective", ["memory", "latency", "throughput"])
def test_many_readers_are_bounded_by_parts(objective: Any) -> None:
    """With more readers than cases are tried for, plans count one copy a device, and bounds stay below."""
    row: dict[str, Any] = {"time_s": 1.0, "out_bytes": 1, "param_bytes": 6, "shared": {"w": 6}}
    names = [f"h.{i}" for i in range(6)]
    if objective == "throughput":
        row |= {"time_s": {"*": {1: 1.0, 2: 1.5}}}
    graph = Graph.build([(name, row) for name in names], list(itertools.pairwise(names)))
    inputs = 2 if objective == "throughput" else None
    hardware = devices(2, 6.0 + 8)
    plan = rlinit.schedule(graph, hardware, objective=objective, inputs=inputs, time_limit_s=3)
    assert plan.values is not None
    assert max([use.param_bytes for use in plan.stages] + [use.held_bytes for use in plan.devices]) <= 14
    low = rlinit.bound(graph, hardware, objective=objective, inputs=inputs)
    assert low.value <= plan.value * (1 + 1e-9)


def test_a_plan_is_refined() -> None:
    """A plan handed in is one of the problem whoever is together in it, and never gets worse."""
    graph, hardware = tied_chain(), devices(2, 24.0)
    for method in ("natural", "auto"):
        first = rlinit.schedule(graph, hardware, method=method)
        again = rlinit.schedule(graph, hardware, agent=first)
        assert again.value <= first.value
        assert again.graph_fingerprint == graph.fingerprint()
    with pytest.raises(RlinitError, match="checkpoint"):
        rlinit.schedule(graph, hardware, checkpoint="plan.json")


def test_shared_parameters_are_read_and_kept() -> None:
    """Files keep them, a fingerprint tells them, fused ops hold them once, and contradictions are refused."""
    graph = tied_chain()
    assert Graph.from_dict(graph.to_dict()) == Graph.from_networkx(graph.to_networkx()) == graph
    assert graph.fingerprint() != dataclasses.replace(graph, shared=()).fingerprint()
    fused = coarsen(graph, chains=True).graph
    assert fused.total_param_bytes == graph.total_param_bytes == 22
    wrong: list[tuple[Any, str]] = [
        ({"w": 11}, "shares 11 bytes"),
        ({"w": -1}, "bytes of the shared parameter 'w'"),
        ([1], "expected a mapping"),
    ]
    for given, message in wrong:
        with pytest.raises(InvalidGraph, match=message):
            Graph.build([("a", {"param_bytes": 10, "shared": given})], [])
    two = [("a", {"param_bytes": 10, "shared": {"w": 8}}), ("b", {"param_bytes": 10, "shared": {"w": 9}})]
    with pytest.raises(InvalidGraph, match="has 8 bytes, and 9"):
        Graph.build(two, [])


def test_gpt2_fills_four_gpus_and_megatron_takes_its_layout() -> None:
    """GPT-2 with its tied head has four stages on four GPUs, proven; where Megatron is there, its parser takes them."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_layer=8, n_head=2, n_embd=32, vocab_size=100, n_positions=32, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    graph = Graph.from_torch(model, (torch.zeros(1, 16, dtype=torch.long),))
    hardware = Hardware.preset("4xa100-80g")
    plan = rlinit.schedule(graph, hardware, time_limit_s=20)
    assert plan.status == "optimal"
    assert min(use.num_ops for use in plan.stages) > 0
    layers = graph.group("layer")
    whole = rlinit.schedule(layers, hardware, time_limit_s=20)
    layout = whole.to_megatron_layout(layers)
    assert layout == "Ett|tt|tt|ttL"
    assert set(whole.to_device_map(layers).values()) == {f"a100-{i}" for i in range(4)}
    parser = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed (pip install --no-deps megatron-core)",
        exc_type=ImportError,
    )
    parser.PipelineParallelLayerLayout.from_str(layout, 4).validate_layer_layout(8, None)
