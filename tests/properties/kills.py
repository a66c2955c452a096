"""Searches and trainings killed at random moments: ``python -m tests.properties.kills --kills 100 --seed 0``.

Half of the kills hit searches that keep a checkpoint, half hit trainings. After each the file on disk must be whole, no
worse than before, and no worse than what was known an interval before the kill; the next run goes on from it. A
training that was killed again and again must end with the bits of one that was not.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import rlinit
from rlinit.hardware import Device, Hardware
from rlinit.solving import plans
from tests.late import late_imports
from tests.train.tiny_task import TinyParams, TinyTask

with late_imports():
    from rlinit.train import loop
    from tests.train.runs import assert_same_state, long_config, state_of
    from tests.train.test_loop import saved_step

Row = tuple[float, ...]

INTERVAL_S, WRITING_S = 0.5, 2.0
"""Between two writings of a checkpoint, and for one on a busy machine."""

RUNS = 5
"""Kills of one search or training, each of which goes on where the one before was killed."""

PROBLEMS: tuple[dict[str, Any], ...] = (
    {"objective": "latency"},
    {"objective": "throughput", "inputs": 2},
    {"objective": "pipeline"},
    {"objective": "pipeline", "training": "1f1b", "microbatches": 4},
    {"objective": "latency", "transfers": "exclusive"},
)


MESH = Hardware.mesh([Device("x"), Device("y"), Device("z")], 1.0)
STAGES = Hardware.pipeline(3, bandwidth=1.0)


def wide(num_ops: int = 150) -> rlinit.Graph:
    """Return a random graph that no search closes within seconds."""
    rng = np.random.default_rng(3)
    times = rng.integers(5, 50, num_ops).tolist()
    ops = [(f"op{v}", {"time_s": {"*": {1: t, 2: 1.6 * t}}, "out_bytes": 9.0}) for v, t in enumerate(times)]
    edges = {(u, v) for v in range(1, num_ops) for u in rng.integers(max(0, v - 30), v, 2).tolist()}
    return rlinit.Graph.build(ops, [(f"op{u}", f"op{v}") for u, v in sorted(edges)])


def hardware_of(problem: dict[str, Any]) -> Hardware:
    """Return the devices of one of `PROBLEMS`."""
    return STAGES if problem["objective"] == "pipeline" else MESH


def search(told: Connection, path: Path, problem: dict[str, Any]) -> None:
    """Search with a checkpoint, and tell the moment, value and bound of every improvement."""
    plans._CHECKPOINT_S = INTERVAL_S

    def progress(entry: Any) -> None:
        if entry.values is not None:
            told.send((time.time(), entry.values[0], entry.bounds[0] if entry.bounds else 0.0))

    told.send(())
    rlinit.schedule(wide(), hardware_of(problem), time_limit_s=60.0, checkpoint=path, progress=progress, **problem)


def train_on(told: Connection, folder: Path) -> None:
    """Train, from where a run in the folder was killed, and tell the number of every step that is done."""
    run: Any = loop._Run
    step = run._step

    def telling(self: Any, *arguments: Any) -> None:
        step(self, *arguments)
        told.send((time.time(), self.progress.step))

    run._step = telling
    config = dataclasses.replace(long_config(folder), workers=0)
    told.send(())
    loop.train(config, TinyTask(TinyParams()), resume=state_of(folder).exists())


def killed_after(count: int, seconds: float, target: Callable[..., None], *arguments: Any) -> tuple[list[Row], float]:
    """Run a function in a process that is killed; return what it told until then, and the moment of the kill.

    Parameters
    ----------
    count, seconds
        The kill comes so many seconds after so many things were told, or 30 s after the last one.
    target, arguments
        The function, and what it gets after the connection it tells to.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    inlet, outlet = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(outlet, *arguments), daemon=True)
    process.start()
    outlet.close()
    rows: list[Row] = [inlet.recv()]
    try:
        while len(rows) <= count and inlet.poll(30.0):
            rows.append(inlet.recv())
        process.join(seconds)
        process.kill()
        died = time.time()
        while True:
            rows.append(inlet.recv())
    except (EOFError, OSError):  # it was killed, or had ended before
        process.join()
        assert process.exitcode in (0, -9), f"the process ended with {process.exitcode}"
    return rows[1:], died if process.exitcode else time.time()


def compile_search(problem: dict[str, Any]) -> None:
    """Solve one of `PROBLEMS` once: nothing is written while kernels are compiled."""
    rlinit.schedule(wide(), hardware_of(problem), time_limit_s=3.0, **problem)


def kill_search(path: Path, problem: dict[str, Any], count: int, seconds: float) -> int:
    """Kill a search with a checkpoint; return how many schedules told were held against the file on disk.

    Parameters
    ----------
    path
        The checkpoint, from which the search goes on where it is there.
    problem
        One of `PROBLEMS`.
    count, seconds
        The moment, as for `killed_after`.
    """
    before = rlinit.Plan.load(path) if path.exists() else None
    rows, died = killed_after(count, seconds, search, path, problem)
    due = [row[1:] for row in rows if row[0] < died - INTERVAL_S - WRITING_S]
    known = [*due, *([(before.value, before.bound or 0.0)] if before is not None else [])]
    if path.exists():
        plan = rlinit.Plan.load(path)
        rlinit.verify(plan, wide(), hardware_of(problem))
        for value, bound in known:
            assert plan.value <= value * (1.0 + 1e-9), f"{plan.value} after {value}"
            assert (plan.bound or 0.0) >= bound * (1.0 - 1e-9), f"bound {plan.bound} after {bound}"
    else:
        assert not known, f"there is no file, though {known[-1]} was known"
    return len(due)


def kill_searches(kills: int, rng: np.random.Generator, folder: Path) -> int:
    """Kill searches at random moments; return how many schedules told were held against the file on disk.

    Parameters
    ----------
    kills
        How many.
    rng
        Draws the moments.
    folder
        Where checkpoints are written.
    """
    looked = 0
    for problem in PROBLEMS[: -(-kills // RUNS)]:
        compile_search(problem)
    for kill in range(kills):
        problem, path = PROBLEMS[kill // RUNS % len(PROBLEMS)], folder / f"search-{kill // RUNS}.json"
        count, seconds = int(rng.integers(0, 12)), float(rng.uniform(0.0, 4.0))
        looked += kill_search(path, problem, count, seconds)
    return looked


def kill_trainings(kills: int, rng: np.random.Generator, folder: Path) -> int:
    """Kill trainings at random moments; return how many steps were told in all.

    Parameters
    ----------
    kills
        How many.
    rng
        Draws the moments.
    folder
        Where the runs are.
    """
    told = 0
    runs = [folder / f"training-{number}" for number in range(-(-kills // RUNS))]
    for kill in range(kills):
        run = runs[kill // RUNS]
        before = saved_step(run)
        count, seconds = int(rng.integers(0, 100)), float(rng.uniform(0.0, 0.1))
        rows, _ = killed_after(count, seconds, train_on, run)
        last = max((int(row[1]) for row in rows), default=before)
        kept = saved_step(run)
        assert kept >= max(before, last - long_config(run).save_every), f"kill {kill}: {kept} of {last} steps are kept"
        told += len(rows)
    task = TinyTask(TinyParams())
    for run in runs:
        config = dataclasses.replace(long_config(run), workers=0)
        loop.train(config, task, resume=saved_step(run) >= 0)
        unbroken = dataclasses.replace(config, run_dir=folder / "unbroken")
        if not unbroken.run_dir.exists():
            loop.train(unbroken, task)
        assert_same_state(run, unbroken.run_dir)
    return told


def main() -> int:
    """Run from the command line; an assertion fails where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    trainings = chosen.kills // 2
    with tempfile.TemporaryDirectory() as folder:
        looked = kill_searches(chosen.kills - trainings, rng, Path(folder))
        print(f"{chosen.kills - trainings} searches killed; {looked} schedules told before are in their files")
        told = kill_trainings(trainings, rng, Path(folder))
        print(f"{trainings} trainings killed after {told} steps; they ended with the bits of one that was not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
