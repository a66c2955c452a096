"""What processes of the pipeline tests run.

``torchrun``: three processes, forked by torchrun's agent from one that has loaded what they need, the last of which
ends in the middle. ``correct``: one process that was started by hand, with torchrun's variables.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed.pipelining  # so that processes have it when they part
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import rlinit.executors
from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.pipeline import PipelineExecutor
from rlinit.graph import Graph
from tests.executors.models import Chain, Inception, RandomNet, Reversed, TinyTransformer, check_same, graph_of
from tests.executors.plans import random_hardware, stage_plan

MONITOR_S = 0.1
"""Seconds between two looks of torchrun at its processes."""

Case = tuple[torch.nn.Module, torch.Tensor, int, Graph]
"""A model, its input, the number of micro-batches, and the model's graph."""


def cases(most: int = 9) -> list[Case]:
    """Export several models."""
    torch.manual_seed(0)
    made = [
        (Chain().eval(), torch.randn(4, 3, 8, 8), 2),
        (Inception().eval(), torch.randn(4, 3, 8, 8), 1),
        (TinyTransformer().eval(), torch.randint(0, 50, (4, 7)), 4),
        (RandomNet(3).eval(), torch.randn(4, 4), 2),
        (RandomNet(4).eval(), torch.randn(4, 4), 1),
    ]
    return [(model, x, parts, graph_of(model, (x,))) for model, x, parts in made[:most]]


def correct(size: int, made: list[Case]) -> None:
    """Run several models, cut at random ops, and compare on the last process."""
    for at, (model, x, parts, graph) in enumerate(made):
        rng = np.random.default_rng(at)
        cuts = np.sort(rng.integers(0, graph.num_ops, size - 1))
        place = np.empty(graph.num_ops, np.int64)
        place[graph.order] = np.searchsorted(cuts, np.arange(graph.num_ops), side="left")
        # Stages in another order than their numbers are fine where nothing goes round.
        plan = stage_plan(graph, random_hardware(0, size), [size - 1 - j if at == 1 else j for j in place.tolist()])
        result = rlinit.executors.execute(plan, model, x, graph=graph, executor=PipelineExecutor(microbatches=parts))
        if int(os.environ["RANK"]) == size - 1:
            check_same(model, (x,), result.outputs, exact=False)
        else:
            assert result.outputs is None
        assert 0 < result.seconds < 60


def refused(size: int) -> None:
    """Check that plans for other numbers of processes, and batches that cannot be split, are refused."""
    model, x = RandomNet(1).eval(), torch.randn(3, 4)
    graph = graph_of(model, (x,))
    mixing, y = Reversed(), torch.randn(4, 3)
    plan = stage_plan(graph_of(mixing, (y,)), random_hardware(0, size), [0] * 4)
    with pytest.raises(InvalidPlan, match="mixes the inputs"):
        rlinit.executors.execute(
            plan, mixing, y, graph=graph_of(mixing, (y,)), executor=PipelineExecutor(microbatches=2)
        )
    for stages, parts, message in ((size + 1, 1, "processes"), (size, 2, "cannot be split")):
        plan = stage_plan(graph, random_hardware(0, stages), [0] * graph.num_ops)
        with pytest.raises(InvalidPlan, match=message):
            rlinit.executors.execute(plan, model, x, graph=graph, executor=PipelineExecutor(microbatches=parts))


def killed(size: int, made: list[Case]) -> None:
    """Check what is refused and what is correct, then end one process in the middle.

    Its neighbours fail at once. They wait before they say so: of several that ended, torchrun may name any.
    """
    torch.distributed.init_process_group("gloo")
    refused(size)
    correct(size, made)
    print("all was well until then", flush=True)
    model, x, _, graph = made[0]
    plan = stage_plan(graph, random_hardware(0, size), [size * at // graph.num_ops for at in range(graph.num_ops)])
    if int(os.environ["RANK"]) == size - 1:
        os._exit(7)
    try:
        rlinit.executors.execute(plan, model, x, graph=graph, executor=PipelineExecutor(time_limit_s=20.0))
    except ExecutionFailure:
        time.sleep(20 * MONITOR_S)
        raise


def under_torchrun(size: int) -> None:
    """Start processes as torchrun does, and see which one failed first."""
    config = LaunchConfig(1, 1, size, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", start_method="fork")
    config.max_restarts, config.monitor_interval = 0, MONITOR_S
    with pytest.raises(ChildFailedError) as found:
        elastic_launch(config, killed)(size, cases())
    rank, failure = found.value.get_first_failure()
    assert (rank, failure.exitcode) == (size - 1, 7)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "torchrun":
        under_torchrun(3)
    else:
        torch.distributed.init_process_group("gloo")
        correct(int(os.environ["WORLD_SIZE"]), cases(int(sys.argv[2])))
        torch.distributed.destroy_process_group()
