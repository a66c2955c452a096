"""Stages of several devices in the words of Megatron, torchtitan, vLLM and SGLang."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan
from rlinit.exporters import to_megatron_flags, to_server_flags, to_torchrun_script, to_torchtitan
from rlinit.plan import Plan, StageUse

LAYERS = 6


def planned(*shapes: tuple[int, int, int], training: str = "1f1b", **asked: Any) -> Plan:
    """Return a plan whose stages have given layers, replicas and tensor degrees."""
    names = ["embedding", *(f"layer{at}" for at in range(LAYERS)), "head"]
    menu = {t: [{"name": "plain", "time_s": 1.0 / t}, {"name": "recomputed", "time_s": 1.3 / t}] for t in (1, 2)}
    graph = rlinit.Graph.build([(name, {"menu": menu}) for name in names], [(a, b, 1.0) for a, b in pairwise(names)])
    hardware = rlinit.Hardware.mesh([rlinit.Device(f"d{i}") for i in range(8)], 1e9)
    given: dict[str, Any] = {"training": training, "recompute": "auto"} if training else {}
    plan = rlinit.schedule(
        graph, hardware, objective="pipeline", microbatches=8, replicas="auto", tensor_parallel="auto", **given
    )
    stages, stage_of, first = list[StageUse](), {"embedding": 0, "head": len(shapes) - 1}, 0
    for j, (layers, replicas, degree) in enumerate(shapes):
        inside = [f"layer{at}" for at in range(first, first + layers)]
        stage_of |= dict.fromkeys(inside, j)
        variants = dict.fromkeys(inside, asked.get("variant", "plain"))
        devices = tuple(f"d{i}" for i in range(replicas * degree))
        stages.append(
            replace(plan.stages[0], replicas=replicas, tensor_parallel=degree, variants=variants, devices=devices)
        )
        first += layers
    assert plan.groups is not None
    rules = replace(plan.groups, exchange=asked.get("exchange", "ring"))
    return replace(plan, stages=tuple(stages), assignment=stage_of, groups=rules)


def test_megatron() -> None:
    """Layouts, groups, recomputation and shards."""
    assert to_megatron_flags(planned((2, 2, 2), (4, 2, 2))) == [
        "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
        "--pipeline-model-parallel-layout", "Ett|t*4L", "--use-distributed-optimizer",
    ]  # fmt: skip
    whole = to_megatron_flags(planned((6, 2, 1), variant="recomputed", exchange="zero3"))
    assert whole[4:] == [
        "--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params",
        "--no-gradient-accumulation-fusion", "--use-distributed-optimizer",
        "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1",
    ]  # fmt: skip
    some = planned((3, 1, 1), (3, 1, 1))
    one = replace(some.stages[0], variants={**some.stages[0].variants, "layer1": "recomputed"})
    with pytest.raises(InvalidPlan, match="stage 1 recomputes 0 layers and others 1"):
        to_megatron_flags(replace(some, stages=(one, some.stages[1])))
    other = replace(some.stages[1], variants={**some.stages[1].variants, "layer4": "recomputed"})
    both = to_megatron_flags(replace(some, stages=(one, other)))
    assert both[-3:] == ["block", "--recompute-num-layers", "1"]
    with pytest.raises(InvalidPlan, match="Megatron trains by 1f1b"):
        to_megatron_flags(planned((6, 1, 1), training="gpipe"))


def test_torchtitan() -> None:
    """What it writes is TOML, and says the parts."""
    found = tomllib.loads(to_torchtitan(planned((2, 2, 2), (4, 2, 2), variant="recomputed")))
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "module_fqns_per_model_part": [
            ["tok_embeddings", "layers.0", "layers.1"],
            ["layers.2", "layers.3", "layers.4", "layers.5", "norm", "output"],
        ],
    }
    assert found["activation_checkpoint"] == {"mode": "full"}
    shards = tomllib.loads(to_torchtitan(planned((6, 4, 1), exchange="zero2")))["parallelism"]
    assert (shards["data_parallel_shard_degree"], shards["fsdp_reshard_after_forward"]) == (4, "never")
    spread = planned((6, 1, 2), variant="sequence experts")
    assert tomllib.loads(to_torchtitan(spread))["parallelism"]["expert_parallel_degree"] == 2
    assert to_megatron_flags(spread)[4:] == [
        "--sequence-parallel", "--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "1",
    ]  # fmt: skip
    with pytest.raises(InvalidPlan, match="torchtitan trains"):
        to_torchtitan(planned((6, 1, 1), training=""))


def test_servers() -> None:
    """Both name the same sizes differently."""
    plan = planned((2, 2, 2), (4, 2, 2), training="")
    assert to_server_flags(plan, "vllm") == {
        "VLLM_PP_LAYER_PARTITION": "2,4",
        "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "2",
        "--data-parallel-size": "2",
    }
    assert to_server_flags(plan, "sglang") == {
        "SGLANG_PP_LAYER_PARTITION": "2,4",
        "--tp-size": "2",
        "--pp-size": "2",
        "--dp-size": "2",
    }
    with pytest.raises(InvalidPlan, match="stage 1 has no layer"):
        to_server_flags(planned((6, 1, 1), (0, 1, 1), training=""), "vllm")
    with pytest.raises(InvalidPlan, match="SGLang serves"):
        to_server_flags(planned((6, 1, 1)), "sglang")


def test_a_plan_of_several_shapes_is_refused_with_what_one_shape_costs() -> None:
    """The message names the stage, and the baseline."""
    plan = planned((2, 4, 1), (4, 2, 2))
    assert plan.baselines["uniform"]
    with pytest.raises(
        InvalidPlan, match=r"stage 1 has 2 replicas of 2 devices .* uniform=True, which takes .* in place"
    ):
        to_megatron_flags(plan)


def _on_processes(plan: Plan, where: Path) -> None:
    groups = pytest.importorskip("rlinit.executors.groups")
    groups.DistributedModel(plan, None)


RUNTIMES: tuple[tuple[str, Callable[[Plan, Path], object]], ...] = (
    ("Megatron runs", lambda plan, where: to_megatron_flags(plan)),
    ("torchtitan runs", lambda plan, where: to_torchtitan(plan)),
    ("vLLM runs", lambda plan, where: to_server_flags(plan, "vllm")),
    ("SGLang runs", lambda plan, where: to_server_flags(plan, "sglang")),
    ("processes run", lambda plan, where: to_torchrun_script(plan, None, where / "x.py", factory="a:b")),
    ("processes run", _on_processes),
)


@pytest.mark.parametrize(("runs", "use"), RUNTIMES)
def test_unequal_shares_are_refused(runs: str, use: Callable[[Plan, Path], object], tmp_path: Path) -> None:
    """By every runtime, with the stage, also where one kind of devices has micro-batches left over."""
    ways = {1: [{"time_s": {"a100": 1.0, "l4": 2.5}}]}
    graph = rlinit.Graph.build([(f"layer{v}", {"menu": ways}) for v in range(LAYERS)], [])
    hardware = rlinit.Hardware.preset("1x2xa100-80g+1x4xl4")
    mixed = rlinit.schedule(graph, hardware, replicas="mixed", training="1f1b", microbatches=36)
    assert mixed.stages[0].shares
    uneven = planned((LAYERS, 3, 1))
    for plan in (mixed, uneven):
        with pytest.raises(InvalidPlan, match=rf"stage 0 take unequal shares of a batch; {runs} equal ones"):
            use(plan, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_line_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the model; the script of torchrun has its plan beside it."""
    planned((2, 2, 2), (4, 2, 2)).save(tmp_path / "plan.json")
    wanted = {"megatron": "flags.txt", "torchtitan": "job.toml", "torchrun": "train.py"}
    flags = [word for name, file in wanted.items() for word in (f"--{name}", str(tmp_path / file))]
    assert main(["export", str(tmp_path / "plan.json"), *flags, "--factory", "models:make"]) == 0
    assert all((tmp_path / file).exists() for file in wanted.values())
    assert json.loads((tmp_path / "train.json").read_text())["groups"]
    compile((tmp_path / "train.py").read_text(), "train.py", "exec")
    planned((6, 2, 1), training="").save(tmp_path / "ask.json")
    assert main(["export", str(tmp_path / "ask.json"), "--vllm", str(tmp_path / "vllm.txt")]) == 0
    assert "--data-parallel-size 2" in (tmp_path / "vllm.txt").read_text()
    assert main(["export", str(tmp_path / "ask.json"), "--torchtitan", str(tmp_path / "job.toml")]) == 2
    assert "torchtitan trains" in " ".join(capsys.readouterr().err.split())


def test_a_graph_is_needed_for_stages_of_one_device(tmp_path: Path) -> None:
    """By the script of torchrun."""
    plan = replace(planned((6, 1, 1)), groups=None)
    with pytest.raises(InvalidPlan, match="graph is None"):
        to_torchrun_script(plan, None, tmp_path / "x.py", factory="a:b")


def test_pictures_and_pages_show_groups(tmp_path: Path) -> None:
    """A stage is called by its replicas and devices, and gradients are part of its bar."""
    plan = planned((2, 2, 2), (4, 2, 2))
    plan.plot(tmp_path / "plan.svg")
    drawn = (tmp_path / "plan.svg").read_text()
    assert "2 x 2 devices" in drawn
    assert "time for each micro-batch" in drawn
