"""What each process of the pipeline tests runs under torchrun; the argument says which case."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch

import rlinit.executors
from rlinit.errors import InvalidPlan
from rlinit.executors.pipeline import PipelineExecutor
from tests.executors.models import Chain, Inception, RandomNet, Reversed, TinyTransformer, check_same, graph_of
from tests.executors.plans import random_hardware, stage_plan


def correct(size: int, most: int = 9) -> None:
    """Run several models, cut at random ops, and compare on the last process."""
    torch.manual_seed(0)
    cases = [
        (Chain().eval(), torch.randn(4, 3, 8, 8), 2),
        (Inception().eval(), torch.randn(4, 3, 8, 8), 1),
        (TinyTransformer().eval(), torch.randint(0, 50, (4, 7)), 4),
        (RandomNet(3).eval(), torch.randn(4, 4), 2),
        (RandomNet(4).eval(), torch.randn(4, 4), 1),
    ]
    for at, (model, x, parts) in enumerate(cases[:most]):
        graph = graph_of(model, (x,))
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


def killed(size: int) -> None:
    """Check what is refused, then end one process in the middle."""
    refused(size)
    correct(size)
    print("all was well until then", flush=True)
    model, x = Chain().eval(), torch.randn(4, 3, 8, 8)
    graph = graph_of(model, (x,))
    plan = stage_plan(graph, random_hardware(0, size), [size * at // graph.num_ops for at in range(graph.num_ops)])
    if int(os.environ["RANK"]) == size - 1:
        os._exit(7)
    rlinit.executors.execute(plan, model, x, graph=graph, executor=PipelineExecutor(time_limit_s=20.0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    if sys.argv[1] == "killed":
        killed(int(os.environ["WORLD_SIZE"]))
    else:
        correct(int(os.environ["WORLD_SIZE"]), int(sys.argv[2]))
    torch.distributed.destroy_process_group()
