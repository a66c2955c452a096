"""Graphs a second that training learns from, end to end, and where a step's time goes.

Run as ``python -m benchmarks.components.training_throughput [--task stages] [--sizes 30 100] [--workers 1] [--device
cpu]``.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro

from benchmarks.record import print_table, save
from rlinit.train.core.config import TrainConfig, parse
from rlinit.train.core.curriculum import batch_seed, request
from rlinit.train.core.data_loading import batches
from rlinit.train.core.learner import Learner
from rlinit.train.core.reinforce import Reinforce
from rlinit.train.tasks.protocol import AnyTask, task_class


@dataclass(frozen=True)
class Options:
    """Measure the throughput of REINFORCE."""

    task: Literal["stages", "latency"] = "stages"
    """Which agent."""
    sizes: tuple[int, ...] = (30, 100)
    """Nodes a graph."""
    samples: tuple[int, ...] = (4, 8, 16)
    """Trajectories of each graph."""
    steps: int = 40
    """Steps measured, after five that are not."""
    batch_nodes: int = 3840
    """Nodes a batch."""
    workers: int = 1
    """Processes that generate; 0: in the training process."""
    threads: int = 1
    """Threads of torch."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the network is."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of forward passes."""


class Timed:
    """A task that adds up the seconds of its parts."""

    def __init__(self, task: AnyTask) -> None:
        self.task = task
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.task, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = method(*arguments, **options)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            return result

        return timed


def measure(config: TrainConfig[Any], task: AnyTask, steps: int) -> dict[str, float]:
    """Return graphs a second, by the clock and by this process's CPU time, and each part's share of the clock's."""
    warm = 5
    torch.set_num_threads(config.threads)
    learner = Learner(task.network(0), config.optimiser, config.precision, config.device)
    timed = Timed(task)
    algorithm = Reinforce(timed, learner, config.reinforce, config.samples)  # type: ignore[arg-type]
    asked = (request(config.curriculum, 0.0, batch_seed(config.seed, 1, step)) for step in range(warm + steps))
    graphs, waited = 0, 0.0
    with closing(batches(task, asked, config.workers, config.ahead)) as made:  # type: ignore[type-var]
        started = worked = 0.0
        for step in range(warm + steps):
            if step == warm:
                started, worked, graphs, waited = time.perf_counter(), time.process_time(), 0, 0.0
                timed.seconds.clear()
            before = time.perf_counter()
            one, batch = next(made)
            waited += time.perf_counter() - before
            algorithm.learn(batch, step, one.seed)
            graphs += len(batch)
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
    parts = {"waiting": waited, **{name: timed.seconds.get(name, 0.0) for name in ("forward", "rollout", "choices")}}
    parts["backward and update"] = seconds - sum(parts.values())
    rates = {"graphs_per_s": graphs / seconds, "graphs_per_cpu_s": graphs / worked}
    return {**rates, **{name: part / seconds for name, part in parts.items()}}


def main() -> None:
    """Measure every size and number of samples, print and write."""
    options = tyro.cli(Options)
    base = parse(["--task", options.task]).training
    task = task_class(options.task)(base.problem)
    rows = []
    for size in options.sizes:
        for samples in options.samples:
            curriculum = dataclasses.replace(base.curriculum, sizes=(size,), batch_nodes=options.batch_nodes)
            config = dataclasses.replace(
                base,
                curriculum=curriculum,
                samples=samples,
                workers=options.workers,
                threads=options.threads,
                device=options.device,
                precision=options.precision,
            )
            rows.append({"nodes": size, "samples": samples, **measure(config, task, options.steps)})
    print_table(f"training throughput: {options.task}", list(rows[0]), (row.values() for row in rows))
    save(f"training_throughput_{options.task}_{options.device}", rows, **dataclasses.asdict(options))


if __name__ == "__main__":
    main()
