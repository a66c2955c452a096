"""The pipeline executor: stage modules in one process, and whole pipelines under torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit.executors
from rlinit.errors import InvalidPlan
from tests.executors.plans import random_case, random_hardware, stage_plan
from tests.executors.processes import run_module
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.executors.lowering.stage_modules import stage_modules
    from rlinit.executors.lowering.torch_program import torch_program
    from tests.executors.models import Centred, Chain, Inception, RandomNet, TinyTransformer, check_same, graph_of


ROOT = Path(__file__).resolve().parent.parent.parent


def chain_of(model: Any, x: Any, k: int, seed: int) -> Any:
    """Cut a model into k stages at random ops; return what the chain of modules gives."""
    graph = graph_of(model, (x,))
    cuts = np.sort(np.random.default_rng(seed).integers(0, graph.num_ops, k - 1))
    stages = np.empty(graph.num_ops, np.int64)
    stages[graph.order] = np.searchsorted(cuts, np.arange(graph.num_ops), side="left")
    program = torch_program(model, (x,), graph.names, graph=graph)
    values: Any = program.flat_inputs((x,))
    modules = stage_modules(program, dict(zip(graph.names, stages.tolist(), strict=True)), k)
    with torch.no_grad():
        for one in modules:
            assert all(isinstance(value, torch.Tensor) for value in values)
            values = one.module(*values)
    assert sum(len(one.ops) for one in modules) == graph.num_ops
    return program.structured(values)


@given(seed=st.integers(0, 100_000), k=st.integers(1, 6))
@settings(max_examples=8, deadline=None)
def test_stage_modules_in_a_row_are_the_model(seed: int, k: int) -> None:
    """The modules of a random cut, one after the other, give bit for bit what the model gives."""
    model, x = RandomNet(seed).eval(), torch.randn(3, 4)
    check_same(model, (x,), chain_of(model, x, k, seed))


@pytest.mark.parametrize("k", [2, 5])
def test_models_with_distant_skips(k: int) -> None:
    """Models whose inputs and early values are read late are cut anywhere, relays included."""
    torch.manual_seed(k)
    for model, x in (
        (Chain().eval(), torch.randn(2, 3, 8, 8)),
        (Inception().eval(), torch.randn(2, 3, 8, 8)),
        (TinyTransformer().eval(), torch.randint(0, 50, (2, 7))),
    ):
        check_same(model, (x,), chain_of(model, x, k, k))


@pytest.mark.parametrize("seed", range(6))
def test_names_of_variable_shapes_do_not_matter(seed: int) -> None:
    """A plan of fixed shapes fits the program of a variable batch, where sizes take names away from other nodes."""
    model, x = RandomNet(seed).eval(), torch.randn(4, 4)
    graph = graph_of(model, (x,))
    program = torch_program(model, (x,), graph.names, graph=graph, plan_inputs=4, parts=(1,))
    assert set(program.node2op.values()) - {""} == set(graph.names) - {node.name for node in program.inputs}


def test_circles_and_mixing_are_refused() -> None:
    """Stages that read each other, and micro-batches of an op that mixes inputs, are refused by name."""
    model, x = RandomNet(1).eval(), torch.randn(4, 4)
    graph = graph_of(model, (x,))
    program = torch_program(model, (x,), graph.names, graph=graph)
    with pytest.raises(InvalidPlan, match="in a circle"):
        stage_modules(program, {op: at % 2 for at, op in enumerate(graph.names)}, 2)
    centred = torch_program(Centred(), (x,), ["tanh"], plan_inputs=2, parts=(1,))
    with pytest.raises(InvalidPlan, match="'mean' makes one value of all inputs"):
        stage_modules(centred, {"tanh": 0}, 1, microbatch=2)
    plan, graph, _ = random_case(1)
    with pytest.raises(InvalidPlan, match="has no stages"):
        rlinit.executors.execute(plan, model, x, executor="pipeline")
    plan = stage_plan(graph, random_hardware(0, 2), [0] * graph.num_ops)
    with pytest.raises(InvalidPlan, match="RANK and WORLD_SIZE"):
        rlinit.executors.execute(plan, model, x, executor="pipeline")


def test_torchrun_with_three_processes() -> None:
    """Three processes refuse bad plans, give what the models give, and end soon when one of them disappears."""
    result = run_module("tests.executors.pipeline_job", "torchrun", timeout_s=200)
    assert result.stdout.count("all was well until then") == 3, result.stderr[-3000:]
    assert result.returncode == 0, result.stderr[-3000:]


def test_two_processes() -> None:
    """Two processes that were started by hand, with torchrun's variables, give what two models give."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.executors.pipeline_job", "correct", "2"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [job.communicate(timeout=200)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
