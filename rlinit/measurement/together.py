"""Measuring how processes slow each other: a model run by 1, 2, ... processes of this machine at once, and their links.

Rounds of all counts follow each other, and a factor is the median over rounds of what a count takes over what one
process takes in the same round: what else the machine does hits both.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.hardware import Hardware
from rlinit.importers.torch.export import import_torch
from rlinit.importers.torch.pt2_weights import load_model
from rlinit.measurement.transfers import HOPS, SIZES, MeasuredTransfers, TransferRow

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch.export import ExportedProgram

_LIMIT_S = 120.0
"""Seconds for all processes to start, and for each round."""


@dataclass(frozen=True, slots=True)
class MeasuredSharing:
    """How processes of one machine slow each other.

    Parameters
    ----------
    factors
        Seconds of a process where 1, 2, ... are at work, over those of one alone; not decreasing.
    seconds
        (rounds, counts) mean seconds of a run of the model.
    hand_over
        Size in bytes -> median seconds from one process to another, by gloo.
    """

    factors: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]
    hand_over: dict[int, float]

    def apply(self, hardware: Hardware, name: str = "processor") -> Hardware:
        """Return the hardware with all devices sharing, and every link as what was handed over fits it best.

        Parameters
        ----------
        hardware
            Devices that are processes of this machine, of as many threads each as were measured.
        name
            What they share.
        """
        devices = tuple(dataclasses.replace(one, shares=name, io_bandwidth=None) for one in hardware.devices)
        rows = tuple(TransferRow("a", "b", size, seconds, 0.0, 1) for size, seconds in self.hand_over.items())
        latency_s, bandwidth = MeasuredTransfers(rows).link("a", "b") if rows else (0.0, np.inf)
        apart = ~np.eye(len(devices), dtype=bool)
        return Hardware(
            devices,
            np.where(apart, bandwidth, np.inf),
            np.where(apart, latency_s, 0.0),
            hardware.name,
            {name: self.factors[: len(devices)]},
        )

    def __str__(self) -> str:
        shown = ", ".join(f"{at}: {factor:.2f}" for at, factor in enumerate(self.factors, start=1))
        return f"a process takes this times as long with so many at work: {shown}"


def measure_together(
    program: ExportedProgram,
    inputs: Sequence[Any],
    count: int,
    *,
    kwargs: Mapping[str, Any] | None = None,
    rounds: int = 7,
    seconds: float = 0.3,
    threads: int = 1,
    clock: Literal["wall", "processor"] = "wall",
) -> MeasuredSharing:
    """Run a model in 1, 2, ..., `count` processes at once, and hand tensors from one to another.

    The processes import the main module anew, as those of `multiprocessing` do: a script calls this below ``if __name__
    == "__main__":`` alone.

    Parameters
    ----------
    program, inputs, kwargs
        The model, from ``torch.export.export``, and what it is run on, positional and by keyword.
    count
        Processes, at least 2.
    rounds
        Rounds of all counts, at least 1.
    seconds
        Of running, for each count in each round.
    threads
        CPU threads of each process.
    clock
        What runs of the model are timed by; the processor's does not count when other work has the cores.

    Raises
    ------
    InvalidPlan
        Numbers out of range.
    ExecutionFailure
        A process failed or did not answer.
    BackendUnavailable
        torch is not installed.
    """
    torch = import_torch()
    if count < 2 or rounds < 1 or threads < 1 or not seconds > 0:
        raise InvalidPlan(
            f"count is {count}, rounds {rounds}, threads {threads}, seconds {seconds}; expected >= 2, 1, 1, > 0"
        )
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder) / "model.pt2")
        torch.save((tuple(inputs), dict(kwargs or {})), Path(folder) / "inputs.pt")
        pipes = [context.Pipe() for _ in range(count)]
        workers = [
            context.Process(target=_serve, args=(far, folder, rank, count, threads, clock), daemon=True)
            for rank, (_, far) in enumerate(pipes)
        ]
        for worker, (_, far) in zip(workers, pipes, strict=True):
            worker.start()
            far.close()  # The worker has its own; so its end shows at once.
        near = [one for one, _ in pipes]
        try:
            _ask(near, "ready", 0.0)
            took = [
                tuple(statistics.fmean(_ask(near[:u], "run", seconds)) for u in range(1, count + 1))
                for _ in range(rounds)
            ]
            handed = {
                size: statistics.median(_ask(near[:2], "hand over", size)[0] for _ in range(rounds)) for size in SIZES
            }
        finally:
            for one in near:
                one.close()
            for worker in workers:
                worker.join(timeout=5.0)
                worker.kill()
    ratios = np.median([[one / row[0] for one in row] for row in took], axis=0)
    return MeasuredSharing(tuple(np.maximum.accumulate(np.maximum(ratios, 1.0)).tolist()), tuple(took), handed)


def _ask(pipes: Sequence[Connection], what: str, figure: float) -> list[float]:
    """Have processes do something at once; return what each answers."""
    for pipe in pipes:
        pipe.send((what, figure))
    answers = []
    for rank, pipe in enumerate(pipes):
        try:
            if not pipe.poll(_LIMIT_S):
                raise ExecutionFailure(f"process {rank} did not answer for {_LIMIT_S:g} s")
            answers.append(float(pipe.recv()))
        except (EOFError, ConnectionError) as problem:
            raise ExecutionFailure(f"process {rank} ended before it answered; its error is above") from problem
    return answers


def _serve(pipe: Connection, folder: str, rank: int, count: int, threads: int, clock: str) -> None:
    """Do what is asked for until the pipe is closed; in a process of its own."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=count)
    model = load_model(Path(folder) / "model.pt2").module()
    inputs, kwargs = torch.load(Path(folder) / "inputs.pt")
    with torch.no_grad():
        while True:
            try:
                what, figure = pipe.recv()
            except EOFError:
                return
            if what == "hand over":
                answer = _hand_over(rank, int(figure))
            else:
                now = time.process_time if clock == "processor" else time.perf_counter
                started, runs = now(), 0
                while not runs or now() - started < figure:
                    model(*inputs, **kwargs)
                    runs += 1
                answer = (now() - started) / runs
            pipe.send(answer)


def _hand_over(rank: int, size: int) -> float:
    """Return the seconds that a tensor takes from process 0 to 1 or back."""
    import torch
    import torch.distributed as dist

    value = torch.zeros(size // 4)
    started = time.perf_counter()
    for _ in range(HOPS):
        for source in (0, 1):
            if rank == source:
                dist.send(value, 1 - source)
            else:
                dist.recv(value, source)
    return (time.perf_counter() - started) / (2 * HOPS)
