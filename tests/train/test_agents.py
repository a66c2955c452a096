"""The real agents learn: on a few graphs to the optimum, and on graphs they never saw."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from rlinit.arrays import FloatArray
from rlinit.datasets.random.stage_problems import ProblemParams
from rlinit.train.core.curriculum import CurriculumConfig
from tests.late import late_imports

with late_imports():
    import torch

    from rlinit.train.core.config import OptimiserConfig, ReinforceConfig
    from rlinit.train.core.learner import Learner
    from rlinit.train.core.reinforce import Reinforce
    from rlinit.train.loop import train
    from rlinit.train.tasks.stages import StageParams, StageProblems, StageTask
    from tests.train.runs import assert_same_state, tiny_config


def greedy_values(task: StageTask, learner: Learner, batch: StageProblems) -> FloatArray:
    """Return (B,) values of greedy schedules."""
    with torch.no_grad():
        outputs = task.forward(learner.network, batch, torch.device("cpu"))
        return task.rollout(learner.network, batch, outputs, samples=1, seed=0, greedy=True).value[:, 0]


def test_trained_is_better_than_untrained_on_unseen_graphs() -> None:
    """After seconds of REINFORCE greedy values of unseen graphs fall by more than chance would explain."""
    kind = ProblemParams(memory_share=0.0, cache_share=0.0, draws=8)
    task = StageTask(StageParams(hidden=32, layers=3, draw=kind))
    learner = Learner(task.network(0), OptimiserConfig(learning_rate=3e-3), "float32", "cpu")
    unseen = task.generate(10**6, 30, 300)
    before = greedy_values(task, learner, unseen)
    assert np.allclose(before, unseen.reference, rtol=1e-9)
    algorithm = Reinforce(task, learner, ReinforceConfig(), 16)
    batches = [task.generate(seed, 30, 64) for seed in range(16)]
    for step in range(100):
        algorithm.learn(batches[step % 16], step, step)
    gain = 1.0 - greedy_values(task, learner, unseen) / unseen.reference
    assert gain.mean() > 0.004
    assert ttest_rel(gain, np.zeros(len(gain)), alternative="greater").pvalue < 1e-3


def test_stage_agent_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Compiled rollouts and gradients repeat: the real agent, stopped and resumed, ends as one that never stopped."""
    params = StageParams(hidden=16, layers=2, real_models=False)
    small = CurriculumConfig((20,), batch_nodes=160)
    whole = tiny_config(tmp_path / "whole", problem=params, steps=8, curriculum=small)
    assert train(whole, StageTask(params)).done
    broken = dataclasses.replace(whole, run_dir=tmp_path / "broken")
    stopping, calls = StageTask(params), itertools.count(1)
    forward = stopping.forward

    def stop_at_the_sixth(*given: Any) -> Any:
        if next(calls) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(*given)

    stopping.forward = stop_at_the_sixth  # type: ignore[assignment]
    assert not train(broken, stopping).done
    assert train(broken, StageTask(params), resume=True).done
    assert_same_state(whole.run_dir, broken.run_dir)
