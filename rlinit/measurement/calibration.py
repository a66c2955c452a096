"""Predicted against measured: what a plan said its ops and its whole run would take, and what they took.

A `Calibration` is made by `calibrate`, which runs a plan by the local executor, or read from a file. Its `table` holds
the measured seconds, to be put into the cost table that the next plan is made from.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlinit.costs.table import CostRow, CostTable, InvalidCostTable
from rlinit.errors import InvalidPlan
from rlinit.files import read_json, write_json
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.measurement.ops import Measuring, device_versions, figure_of, physical_device, sum_factor, torch_threads
from rlinit.plan import Batch, Plan

if TYPE_CHECKING:
    from rlinit.executors.local import LocalProgram


__all__ = ["Calibration", "OpTiming", "calibrate", "rank_correlation"]

_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class OpTiming:
    """Predicted and measured seconds of one op on one device at one batch size.

    Parameters
    ----------
    op, device, batch
        Name of the op, name of the plan's device, inputs that ran at once.
    predicted_s
        What the plan said.
    measured_s, spread_s, repeats
        Median and interquartile range of so many measurements, scaled so that all ops of the device add up to a run
        (`rlinit.measurement.ops.sum_factor`).
    """

    op: str
    device: str
    batch: int
    predicted_s: float
    measured_s: float
    spread_s: float
    repeats: int

    @property
    def error_s(self) -> float:
        """Measured minus predicted seconds."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predicted and measured times of a plan.

    Parameters
    ----------
    name, objective
        Of the graph and of the plan.
    predicted_s
        What the plan said the whole run takes: the makespan; of stages, the sum of their seconds, since one input goes
        through all of them. One stage is at work at a time then, so that none slows another (`Hardware.sharing`).
    measured_s, spread_s, least_s, repeats
        Median, interquartile range and least of whole runs in which nothing else was measured. On a busy machine the
        median exceeds what its ops add up to, since other work interrupts few ops but most runs.
    ops
        Every op that computes; inputs of the model do not.
    notes
        What the devices are.
    slowdowns
        Device -> its `Device.slowdown`, which measured seconds hold already; 1 for those not named.
    """

    name: str
    objective: Literal["pipeline", "latency", "throughput"]
    predicted_s: float
    measured_s: float
    spread_s: float
    least_s: float
    repeats: int
    ops: tuple[OpTiming, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    slowdowns: Mapping[str, float] = field(default_factory=dict)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's rank correlation of predicted with measured seconds of ops; see `rank_correlation`."""
        return rank_correlation([row.predicted_s for row in self.ops], [row.measured_s for row in self.ops])

    @property
    def factor(self) -> float:
        """Measured over predicted seconds of the whole run; inf where nothing was predicted to take time."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0 else math.inf

    def device_factors(self) -> dict[str, float]:
        """Return for each device the measured over the predicted seconds of its ops; inf as for `factor`."""
        found = {}
        for device in dict.fromkeys(row.device for row in self.ops):
            rows = [row for row in self.ops if row.device == device]
            predicted_s = math.fsum(row.predicted_s for row in rows)
            measured_s = math.fsum(row.measured_s for row in rows)
            found[device] = measured_s / predicted_s if predicted_s > 0 else math.inf
        return found

    def disagreements(self, count: int = 10) -> tuple[OpTiming, ...]:
        """Return the ops whose measured seconds lie furthest from the predicted ones, the furthest first."""
        return tuple(sorted(self.ops, key=lambda row: (-abs(row.error_s), row.op, row.device, row.batch))[:count])

    def table(self) -> CostTable:
        """Return the measured seconds as a cost table; `CostTable.updated` puts them into another one.

        They are divided by the devices' slowdowns, by which plans multiply the seconds of tables.
        """
        rows = []
        for row in self.ops:
            slowdown = self.slowdowns.get(row.device, 1.0)
            seconds, spread_s = row.measured_s / slowdown, row.spread_s / slowdown
            rows.append(CostRow(row.op, row.device, row.batch, seconds, spread_s, row.repeats))
        return CostTable(tuple(rows), " ".join(self.name.split()) or "costs", dict(self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (schema `rlinit/schemas/calibration.schema.json`)."""
        data = {"format": "rlinit-calibration", "version": 1, **dataclasses.asdict(self)}
        del data["slowdowns"]
        return {**data, "ops": [dataclasses.asdict(row) for row in self.ops], "notes": dict(self.notes)} | (
            {"slowdowns": dict(self.slowdowns)} if self.slowdowns else {}
        )

    def save(self, path: str | Path) -> None:
        """Write it as JSON, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote.

        Raises
        ------
        InvalidCostTable
            Unreadable file, truncated JSON, or JSON that breaks the schema; the message gives the path in it.
        """
        data = read_json(path, "calibration", InvalidCostTable)
        rows = tuple(OpTiming(**row) for row in data["ops"])
        return cls(**{key: value for key, value in data.items() if key not in ("format", "version", "ops")}, ops=rows)


def calibrate(
    plan: Plan,
    model: Any,
    inputs: Sequence[Any],
    *,
    graph: Graph | None = None,
    hardware: Hardware | None = None,
    devices: Mapping[str, str] | None = None,
    settings: Measuring | None = None,
) -> Calibration:
    """Run a plan by the local executor and compare its times with what it said.

    The plan runs by turns op by op between readings of the clock, and undisturbed for the time of the whole.

    Parameters
    ----------
    plan, model, inputs, devices
        As for `rlinit.executors.execute`.
    graph, hardware
        What the plan was made for. Stage plans need both: they hold no times of single ops. Placements need the
        hardware where a device has a `slowdown`.
    settings
        Warm-up, repeats, and the time limit of each of the two. Threads are those of each CPU device of the plan, as
        when its costs were measured; None: the devices share what torch uses now.

    Raises
    ------
    InvalidPlan
        As for `rlinit.executors.execute`; also a `memory` plan, which has no times, and a stage plan without graph or
        hardware, or with another one.
    ExecutionFailure
        An op or a device failed.
    """
    from rlinit.executors.local import LocalExecutor
    from rlinit.executors.lowering.torch_program import export_model, op_nodes

    settings = settings or Measuring()
    predicted = _predicted(plan, graph, hardware)
    exported = export_model(model, inputs) if plan.inputs == 1 else model  # several inputs take several exports
    places = _places(plan, devices or {})
    threads = None
    if settings.threads is not None:
        threads = settings.threads * max(1, sum(device == "cpu" for device in places.values()))
    load = partial(LocalExecutor, threads, clock=settings.clock)
    with (
        load(measure=True).load(plan, exported, inputs, graph=graph, devices=devices) as measuring,
        load().load(plan, exported, inputs, graph=graph, devices=devices) as plain,
    ):
        runs, walls = _runs(measuring, plain, inputs, settings)
        owners = op_nodes(list(plan.assignment or ()), graph)
        idle = {owners.get(name) for name in plain.input_names}  # inputs of the model compute nothing
    samples = _samples(runs, plan)
    factors = _sum_factors(runs, samples)
    ops = []
    for key, expected_s in predicted.items():
        if key[0] not in idle and key in samples:
            one, factor = figure_of(samples[key]), factors[key[1]]
            ops.append(OpTiming(*key, expected_s, one.seconds * factor, one.spread_s * factor, one.repeats))
    whole = figure_of(walls)
    slowdowns = (
        {device.name: device.slowdown for device in hardware.devices if device.slowdown > 1.0} if hardware else {}
    )
    return Calibration(
        plan.graph,
        plan.objective,  # type: ignore[arg-type]  # memory plans were refused
        float(_whole_s(plan, hardware)),
        whole.seconds,
        whole.spread_s,
        min(walls),
        whole.repeats,
        tuple(ops),
        _notes(places, settings.threads),
        slowdowns,
    )


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties ranked by their mean; None for fewer than two or all equal numbers.

    Parameters
    ----------
    predicted, measured
        Two rows of equal length, in any unit.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    from scipy.stats import spearmanr

    if len(set(predicted)) < 2 or len(set(measured)) < 2:
        return None
    return float(spearmanr(predicted, measured).statistic)


def _predicted(plan: Plan, graph: Graph | None, hardware: Hardware | None) -> dict[_Key, float]:
    """Return the seconds that the plan expects of each op, device and batch size, alone on what the device shares."""
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to run")
    if plan.objective == "memory":
        raise InvalidPlan("a memory plan has no times to compare with")
    if plan.objective != "pipeline":
        found: dict[_Key, list[float]] = {}
        for batch in plan.batches:
            found.setdefault(_key(batch, plan), []).append(batch.end_s - batch.start_s)
        return {key: max(0.0, math.fsum(values) / len(values)) for key, values in found.items()}
    if graph is None or hardware is None:
        raise InvalidPlan("a stage plan holds no times of single ops; give its graph and its hardware, too")
    if graph.fingerprint() != plan.graph_fingerprint or hardware.fingerprint() != plan.hardware_fingerprint:
        raise InvalidPlan(
            f"the plan was made for another graph or hardware ({plan.graph!r} on {plan.hardware!r}), not for "
            f"{graph.name!r} on {hardware.name!r} as given"
        )
    from rlinit.costs.roofline import op_times

    by_name = {device.name: device for device in hardware.devices}
    seconds = [op_times(graph, by_name[use.device]) for use in plan.stages]
    return {
        (op, plan.stages[int(stage)].device, 1): float(seconds[int(stage)][graph.index(op)])
        for op, stage in plan.assignment.items()
    }


def _whole_s(plan: Plan, hardware: Hardware | None) -> float:
    """Return what a run takes by the plan: its value; of stages the sum, each alone on what it shares with others."""
    if plan.objective != "pipeline" or hardware is None:
        return plan.value
    crowded = hardware.crowded({use.device for use in plan.stages if use.num_ops})
    factors = {
        one.name: busy.slowdown / one.slowdown for one, busy in zip(hardware.devices, crowded.devices, strict=True)
    }
    computing = (use.in_s + use.out_s + (use.work_s + use.overflow_s) / factors[use.device] for use in plan.stages)
    return math.fsum(computing)


def _key(batch: Batch, plan: Plan) -> _Key:
    return batch.op, batch.device, len(batch.shards) * plan.shard_inputs


def _runs(
    measuring: LocalProgram, plain: LocalProgram, inputs: Sequence[Any], settings: Measuring
) -> tuple[list[tuple[Batch, ...]], list[float]]:
    """Run a plan by turns with and without measuring its batches; return these of each run, and seconds of the others.

    By turns, so that a machine that changes its speed meanwhile does so for both.
    """
    runs: list[tuple[Batch, ...]] = []
    walls: list[float] = []
    started = time.perf_counter()
    for at in range(settings.warmup + settings.repeats):
        late = settings.time_limit_s is not None and time.perf_counter() - started > 2 * settings.time_limit_s
        if late and len(walls) >= 2:
            break
        measured, whole = measuring.run(*inputs), plain.run(*inputs)
        if at >= settings.warmup:
            runs.append(measured.batches)
            walls.append(whole.seconds)
    return runs, walls


def _samples(runs: Sequence[Sequence[Batch]], plan: Plan) -> dict[_Key, list[float]]:
    """Return the seconds of each op on each device at each batch size in all runs."""
    samples: dict[_Key, list[float]] = {}
    for batch in chain.from_iterable(runs):
        samples.setdefault(_key(batch, plan), []).append(_seconds(batch))
    return samples


def _seconds(batch: Batch) -> float:
    return max(0.0, batch.end_s - batch.start_s)


def _sum_factors(runs: Sequence[Sequence[Batch]], samples: Mapping[_Key, Sequence[float]]) -> dict[str, float]:
    """Return for each device what medians of its ops are multiplied by to add up to what it does in a run."""
    factors = {}
    for device in {key[1] for key in samples}:
        totals = [math.fsum(_seconds(batch) for batch in run if batch.device == device) for run in runs]
        medians = [
            len(values) / len(runs) * figure_of(values).seconds for key, values in samples.items() if key[1] == device
        ]
        factors[device] = sum_factor(totals, medians)
    return factors


def _places(plan: Plan, devices: Mapping[str, str]) -> dict[str, str]:
    """Return the physical device of each device that runs something, by the rule of the local executor."""
    names = [use.device for use in plan.devices if use.num_batches] or [use.device for use in plan.stages]
    return {name: devices.get(name, name if name.startswith("cuda") else "cpu") for name in names}


def _notes(places: Mapping[str, str], threads: int | None) -> dict[str, str]:
    """Return what the devices are."""
    with torch_threads(threads):
        found = {name: device_versions(physical_device(device)) for name, device in places.items()}
    return {f"device {name}".replace(":", "."): text for name, text in found.items()}
