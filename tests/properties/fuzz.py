"""Random small problems against brute force: ``python -m tests.properties.fuzz --cases 20000 --seed 0``.

A case is drawn from its number alone, so that ``--first N --cases 1`` runs it again. Scales from 2^-40 to 2^40 keep
sums exact where costs are whole multiples, so that ties and full memories are what they seem; other cases draw any
numbers. Some cases are too large for brute force: their bounds are held against their values, and their time against
the limit. Each case also damages a file of one of the formats that are read, and its own plan; with some come pipelines
in chunks or of loose ops, training pipelines, memories that just hold a schedule, and language models.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rlinit
from rlinit.errors import CheckpointError, InvalidGraph, RlinitError
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.importers.common.blocks import blocks_of
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import held_bytes, makespan, placement_from_priority
from rlinit.plan import Objective, Plan
from rlinit.solving.splits import SPLIT_BOUNDS, SPLIT_METHODS
from rlinit.tensors import SharedParameter
from tests.properties import mutations
from tests.properties.brute_force import best_placement, best_split, best_stages
from tests.properties.language_models import attack_language_model
from tests.training_cases import CHUNKS, brute_force, random_graph, random_hardware, random_workload

Edge = tuple[str, str] | tuple[str, str, float | str]

TOLERANCE = 1e-8
"""Relative difference that is put down to rounding."""

COMPLETE = ("auto", "warm", "milp", "ideals", "split", "sweep", "cp-sat")
"""Methods that find a schedule of a small problem where there is one."""

LIMITED = ("cp-sat", "ideals", "split", "beam")
"""Methods that say that they are not for some problems."""

LATE_S = 2.0
"""Processor seconds beyond its limit after which a schedule is late. Compiling is not counted, and a late case is run
a second time before it is called late."""


_TIED = 4
"""One case in so many has ops that share parameters."""


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and how it is to be solved."""

    number: int
    graph: Graph
    hardware: Hardware
    options: dict[str, Any]
    large: bool = False

    def __str__(self) -> str:
        return json.dumps(
            {"graph": self.graph.to_dict(), "hardware": self.hardware.to_dict(), "options": self.options}, default=str
        )


def draw(number: int, seed: int = 0) -> Case:
    """Return a case by its number."""
    rng = np.random.default_rng([seed, number])
    large = rng.random() < 0.02
    objective = str(rng.choice(["pipeline", "memory", "latency", "throughput"]))
    staged = objective in ("pipeline", "memory")
    whole = rng.random() < 0.7
    scales = {what: 2.0 ** int(rng.integers(-40, 41)) if rng.random() < 0.5 else 1.0 for what in ("s", "B", "rate")}
    n = int(rng.integers(1, 6 if staged else 5 if objective == "latency" else 4))
    d = int(rng.integers(1, 4 if objective != "throughput" else 3))
    if large:
        n, d = int(rng.integers(20, 400)), int(rng.integers(1, 13))
    inputs = int(rng.choice([1, 2, 3])) if objective == "throughput" else 1

    def number_of(scale: float, most: int = 9, zero: float = 0.2) -> float:
        if rng.random() < zero:
            return 0.0
        return scale * (float(rng.integers(1, most + 1)) if whole else float(rng.lognormal(0.0, 2.0)))

    sizes = sorted({int(size) for size in rng.integers(1, inputs + 1, 2)} | {inputs})
    names = [f"d{i}" for i in range(d)]
    equal = rng.random() < 0.4
    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(n):
        batches = range(1, inputs + 1)
        slow = {b: number_of(scales["s"]) for b in batches}
        per = {name: slow if equal else {b: number_of(scales["s"]) for b in batches} for name in names}
        row: dict[str, Any] = {
            "time_s": per,
            "param_bytes": number_of(scales["B"]),
            "out_bytes": number_of(scales["B"]),
        }
        if rng.random() < 0.1:
            row["forbidden"] = [str(rng.choice(names))]
        if rng.random() < 0.15:
            row["colocate"] = int(rng.integers(2))
        if rng.random() < 0.15:
            row["view"] = True
        ops.append((f"op{v}", row))
    density = rng.random() * (5.0 / n if large else 1.0)
    edges: list[Edge] = [(f"op{u}", f"op{v}") for u in range(n) for v in range(u + 1, n) if rng.random() < density]
    several = rng.random() < 0.3
    if several:
        edges = _several_outputs(ops, edges, lambda: number_of(scales["B"]), rng)
    total = sum(row["param_bytes"] for _, row in ops) or scales["B"]
    devices = []
    for name in names:
        tight = math.ceil(total / scales["B"] * rng.random()) * scales["B"] or scales["B"]
        devices.append(
            Device(
                name,
                memory_bytes=(tight if staged else 2 * tight) if rng.random() < 0.25 else math.inf,
                cache_bytes=number_of(scales["B"]) if rng.random() < 0.5 else math.inf,
                io_bandwidth=[None, math.inf, 2.0 ** int(rng.integers(-2, 3)) * scales["rate"]][int(rng.integers(3))],
                batch_sizes=tuple(sizes) if inputs > 1 else None,
                reserve_bytes=tight / 4 if rng.random() < 0.2 else 0.0,
            )
        )
    if equal:
        devices = [Device(name, "", *_capacities(devices[0])) for name in names]
    rates = np.full((d, d), math.inf)
    delays = np.zeros((d, d))
    same = 2.0 ** int(rng.integers(-3, 4)) * scales["rate"]
    for i in range(d):
        for j in range(d):
            if i != j:
                rates[i, j] = same if equal else rng.choice([same, 4 * same, math.inf, same / 64])
                delays[i, j] = 0.0 if equal or rng.random() < 0.7 else number_of(scales["s"])
    options: dict[str, Any] = {"objective": objective, "seed": int(rng.integers(3))}
    methods, agents = names_of("method", objective), names_of("agent", objective)
    options["method"] = "auto" if rng.random() < 0.25 else str(rng.choice(methods))
    if options["method"] in ("auto", "warm") and rng.random() < 0.3:
        options["agent"] = str(rng.choice(agents))
    options["window"] = ["auto", "full", 0, 1, 3, None][int(rng.integers(6))]
    options["gap"] = [0.0, 0.0, 0.1][int(rng.integers(3))]
    options["jobs"] = 2 if rng.random() < 0.02 else 1
    options["time_limit_s"] = [5.0, 0.02, 0.3, 1.0, 5.0][int(rng.integers(5))]
    if large:
        options["time_limit_s"] = [0.1, 0.5, 2.0][int(rng.integers(3))]
    if objective == "pipeline":
        options["activations"] = bool(rng.random() < 0.2) and not several
    if not staged:
        options["transfers"] = str(rng.choice(["parallel", "exclusive", "blocking"]))
        options["resident"] = str(rng.choice(["peak", "peak", "tensors", "weights"]))
        options["coarsen"] = bool(rng.random() < 0.1) and not several
    if objective == "throughput":
        options["inputs"] = inputs
    return Case(number, Graph.build(ops, edges), Hardware(tuple(devices), rates, delays, "fuzz"), options, large)


def _several_outputs(
    ops: list[tuple[str, dict[str, Any]]], edges: list[Edge], size: Callable[[], float], rng: np.random.Generator
) -> list[Edge]:
    """Give ops further outputs, in place; return the edges, some of which read them or a tensor of their own."""
    for _, row in ops:
        if rng.random() < 0.5:
            row["outputs"] = {port: size() for port in ("p", "q")[: int(rng.integers(1, 3))]}
    ports = {name: sorted(row.get("outputs", {})) for name, row in ops}
    found: list[Edge] = []
    for u, v, *_ in edges:
        choices: list[Edge] = [(u, v), (u, v, size()), *((u, v, port) for port in ports[u])]
        found.append(choices[int(rng.integers(len(choices)))])
    return found


def tied(graph: Graph, rng: np.random.Generator) -> Graph:
    """Return a graph in which up to two sets of ops share parameters, parts of what each has."""
    left = np.nan_to_num(graph.param_bytes)
    shared = []
    for at in range(int(rng.integers(1, 3))):
        count = min(int(rng.integers(2, 4)), graph.num_ops)
        readers = sorted(rng.choice(graph.num_ops, count, replace=False).tolist())
        size = float(left[readers].min()) * float(rng.choice([1.0, 0.5]))
        if count > 1 and size > 0.0:
            left[readers] -= size
            shared.append(SharedParameter(f"w{at}", size, tuple(readers)))
    return dataclasses.replace(graph, shared=tuple(shared))


def _capacities(device: Device) -> tuple[Any, ...]:
    rest = (device.io_bandwidth, device.batch_sizes, "", None, device.reserve_bytes)
    return device.memory_bytes, device.cache_bytes, None, None, 0.0, *rest


def optimum(case: Case) -> tuple[float, ...] | None:
    """Return the best value of a case on each level by brute force, or None where nothing is feasible."""
    objective = case.options["objective"]
    if objective in ("pipeline", "memory"):
        return best_stages(case.graph, case.hardware, objective, case.options.get("activations", False))
    inputs = case.options.get("inputs", 1)
    named = {size for device in case.hardware.devices for size in device.batch_sizes or () if size <= inputs}
    shard = math.gcd(inputs, *named)
    rules = (case.options["transfers"], case.options["resident"])
    best = best_placement(case.graph, case.hardware, inputs // shard, shard, *rules)
    return None if best is None else (best,)


def judge(plan: Plan, best: tuple[float, ...] | None) -> str:
    """Return what is wrong with a plan, or ""."""
    if best is None:
        return "" if plan.values is None else f"value {plan.values} of an infeasible problem"
    if plan.status == "infeasible":
        return f"called infeasible, though {best} can be had: {plan.message}"
    for level, (value, true) in enumerate(zip(plan.values or (), best, strict=False)):
        if value < true * (1.0 - TOLERANCE):
            return f"value {value} on level {level} below the optimum {true}"
        if plan.status == "optimal" and value > true * (1.0 + 2e-6):
            return f"called optimal with {plan.values}, though {best} can be had"
        if value != true:  # by rounding alone, perhaps, but then another schedule is best on the next level
            break
    return judge_bounds(plan.bounds, best, plan.bound_source)


def judge_bounds(bounds: tuple[float, ...] | None, best: tuple[float, ...] | None, source: str) -> str:
    """Return which bound exceeds the optimum, or ""; one level's holds where those before are met."""
    for level, (bound, true) in enumerate(zip(bounds or (), best or (), strict=False)):
        if bound > true * (1.0 + TOLERANCE):
            return f"false bound {bound} on level {level} by {source!r}; the optimum is {best}"
        if bound < true * (1.0 - TOLERANCE):
            break
    return ""


@functools.cache
def names_of(what: str, objective: Objective) -> tuple[str, ...]:
    """Return the names of the bounds, methods or agents there are, from the message about one there is not."""
    graph = Graph.build([("a", {"time_s": 1.0})], [])
    inputs = 1 if objective == "throughput" else None
    try:
        if what == "bound":
            rlinit.bound(graph, Hardware.pipeline(1), objective=objective, method="?", inputs=inputs)
        else:
            wanted: dict[str, Any] = {what: "?"}
            rlinit.schedule(graph, Hardware.pipeline(1), objective=objective, inputs=inputs, **wanted)
    except RlinitError as problem:
        names = str(problem).rpartition("expected ")[2].rstrip(")").split(", ")
        return tuple(name for name in names if " " not in name)
    raise AssertionError(f"an unknown {what} was accepted")


def attack(case: Case, plans: list[Plan]) -> str:
    """Solve a case and prove one bound on it; return what went wrong, or ""; what was planned goes into `plans`."""
    best = None if case.large else optimum(case)
    rng = np.random.default_rng(case.number)
    limit = case.options["time_limit_s"]
    for last in (False, True):
        began = time.process_time()
        try:
            plan = rlinit.schedule(case.graph, case.hardware, **case.options)
            rlinit.verify(plan, case.graph, case.hardware)
        except RlinitError as problem:
            return "" if _fits_not(case, problem) else f"schedule: {type(problem).__name__}: {problem}"
        spent = time.process_time() - began
        if spent <= limit * case.options["jobs"] + LATE_S:
            break
        if last:
            return f"{spent:.1f} s of processor time under a limit of {limit} s, twice"
    plans.append(plan)
    if case.large:
        best = plan.values
        wrong = judge_bounds(plan.bounds, best, plan.bound_source)
    else:
        wrong = judge(plan, best)
    known = ("auto",) if case.options.get("resident") == "peak" else COMPLETE
    exact = case.options["method"] in known
    if not wrong and plan.status == "no_solution" and best is not None and limit > 1.0 and exact:
        wrong = f"no solution in 5 s by {case.options['method']}, though {best} can be had: {plan.message}"
    if wrong or best is None or case.options.get("activations"):
        return wrong
    keys = ("objective", "inputs", "transfers", "resident")
    chosen = {key: case.options[key] for key in keys if key in case.options}
    method = str(rng.choice(names_of("bound", case.options["objective"])))
    try:
        proven = rlinit.bound(case.graph, case.hardware, **chosen, method=method, time_limit_s=limit)
    except RlinitError as problem:
        return f"bound {method}: {type(problem).__name__}: {problem}"
    return judge_bounds(proven.bounds, best, f"bound {method}")


def _fits_not(case: Case, problem: RlinitError) -> bool:
    """Return whether an error says, in one line, that a method is not for such a problem."""
    text = str(problem)
    if isinstance(problem, CheckpointError):
        return repr(case.options.get("agent")) in text and "\n" not in text
    return case.options["method"] in LIMITED and case.options["method"] in text and "\n" not in text


def attack_split(case: Case) -> str:
    """Solve a small pipeline with chunks or loose ops, and prove a bound; return what is wrong, or ""."""
    graph, hardware = case.graph, case.hardware
    rng = np.random.default_rng([case.number, 11])
    order, chunks, contiguous = [("interleaved", 2, True), ("free", 2, True), ("interleaved", 1, False)][
        int(rng.integers(3))
    ]
    if hardware.num_devices > 2:  # brute force over free orders of three devices takes minutes
        order = "interleaved"
    best = best_split(graph, hardware, chunks, order, contiguous)
    form: dict[str, Any] = {"chunks": chunks, "chunk_order": order, "contiguous": contiguous}
    method = str(rng.choice(list(SPLIT_METHODS)))
    limit = 5.0 if method in COMPLETE else 0.3  # a heuristic uses all of it
    plan = rlinit.schedule(graph, hardware, method=method, time_limit_s=limit, **form)
    rlinit.verify(plan, graph, hardware)
    wrong = judge(plan, best)
    if not wrong and best is not None:
        name = str(rng.choice(list(SPLIT_BOUNDS)))
        proven = rlinit.bound(graph, hardware, method=name, **form)
        wrong = judge_bounds(proven.bounds, best, f"bound {name}")
    return f"{form}, {method}: {wrong}" if wrong else ""


def attack_training(number: int, seed: int = 0, *, share: bool = False) -> str:
    """Plan a small training pipeline of its own, drawn from its number; return what is wrong with the plan, or "".

    Parameters
    ----------
    number, seed
        Of the case.
    share
        Whether ops share parameters.
    """
    graph, hardware, asked = drawn_training(number, seed, share=share)
    try:
        plan = rlinit.schedule(graph, hardware, time_limit_s=5.0, **asked)
    except InvalidGraph as problem:
        return "" if "contradict" in str(problem) or "cycle" in str(problem) else f"training: {problem}"
    rlinit.verify(plan, graph, hardware)
    best = best_training(graph, hardware, asked)
    wrong = judge(plan, None if math.isinf(best) else (best,))
    if not wrong and plan.status == "no_solution" and best < math.inf:
        wrong = f"no solution in 5 s, though {best} is the optimum"
    return f"{asked}, {graph.to_dict()}, {hardware.to_dict()}: {wrong}" if wrong else ""


def drawn_training(number: int, seed: int = 0, *, share: bool = False) -> tuple[Graph, Hardware, Any]:
    """Return a small training pipeline by its number, and how it is asked for; see `attack_training`."""
    rng = np.random.default_rng([seed, number, 13])
    scale = float(rng.choice([1e-9, 1.0, 1.0, 1e12]))
    n, k = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    draw_graph = (random_workload, random_graph)[int(rng.integers(2))]
    graph = draw_graph(int(rng.integers(1 << 30)), n, scale=scale)
    graph = tied(graph, np.random.default_rng([seed, number, 23])) if share else graph
    schedule = str(rng.choice(["gpipe", "1f1b", "zero-bubble", "interleaved"]))
    recompute = str(rng.choice(["none", "auto", "auto", "all"]))
    microbatches, factor = int(rng.integers(k, k + 6)), float(rng.choice([1.0, 4.0]))
    total = factor * np.nansum(graph.param_bytes) + microbatches * np.nansum(graph.out_bytes)
    room = max(float(np.ceil(total / scale * rng.uniform(0.3, 1.2))), 1.0) * scale
    hardware = random_hardware(int(rng.integers(1 << 30)), k, room, alike=bool(rng.random() < 0.5), scale=scale)
    asked: Any = {"training": schedule, "microbatches": microbatches, "recompute": recompute, "optimizer": factor}
    if schedule == "interleaved":
        microbatches *= k
        asked |= {"microbatches": microbatches, "chunks": CHUNKS}
    return graph, hardware, asked


def best_training(graph: Graph, hardware: Hardware, asked: Any) -> float:
    """Return the least bottleneck of a training pipeline by brute force; inf where nothing fits."""
    names = blocks_of(graph)
    blocks = {b: [v for v, name in enumerate(names) if name == b] for b in dict.fromkeys(names) if b}
    rules = (asked[key] for key in ("training", "microbatches", "optimizer", "recompute"))
    return brute_force(graph, hardware, blocks, *rules)


def attack_tight(case: Case) -> str:
    """Schedule a small placement whose memory is what a random schedule holds at once; return what is wrong, or ""."""
    options, rng = case.options, np.random.default_rng([case.number, 17])
    rules: dict[str, Any] = {key: options[key] for key in ("inputs", "transfers") if key in options}
    rules["resident"] = "peak"
    free = [dataclasses.replace(device, memory_bytes=math.inf, reserve_bytes=0.0) for device in case.hardware.devices]
    hardware = dataclasses.replace(case.hardware, devices=tuple(free))
    lowered = lower_placement(case.graph, hardware, options["objective"], **rules)
    problem, live = lowered.problem, lowered.live
    device = rng.integers(len(free), size=(problem.num_ops, problem.num_shards))[problem.group]
    placement = placement_from_priority(problem, device, rng.random(problem.num_ops))
    value = makespan(problem, placement)
    if live is None or value == math.inf:
        return ""
    need = (held_bytes(problem, device) + live.peak_bytes(problem, placement)).tolist()
    tight = [dataclasses.replace(one, memory_bytes=size or math.inf) for one, size in zip(free, need, strict=True)]
    hardware = dataclasses.replace(hardware, devices=tuple(tight))
    plan = rlinit.schedule(case.graph, hardware, time_limit_s=2.0, objective=options["objective"], **rules)
    rlinit.verify(plan, case.graph, hardware)
    wrong = judge_bounds(plan.bounds, (value,), plan.bound_source)
    if plan.values is None:
        wrong = f"{plan.status}, though a schedule of {value} fits"
    return f"memories {need}: {wrong}" if wrong else ""


def attack_bounds(case: Case) -> str:
    """Run every bound of a small placement, with its optimum to stop at and without; return what went wrong, or ""."""
    best, options = optimum(case), case.options
    objective: Any = options["objective"]
    rules = {key: options[key] for key in ("inputs", "transfers", "resident") if key in options}
    lowered = lower_placement(case.graph, case.hardware, objective, **rules)
    if best is None or lowered.infeasible:
        return f"called infeasible, though {best} can be had: {lowered.infeasible}" if best is not None else ""
    for name, bound in PLACEMENT_BOUNDS.items():
        for upper in (math.inf, best[0]):
            wrong = judge_bounds((bound(lowered.problem, upper=upper),), best, f"{name} below {upper}")
            if wrong:
                return wrong
    return ""


def mutate(case: Case, plan: Plan | None, files: Sequence[mutations.Format], folder: Path) -> str:
    """Damage the files of a case and one of another format, and read them.

    Parameters
    ----------
    case, plan
        The case, and what was planned for it, if anything.
    files
        The other formats.
    folder
        Where files are written.

    Returns
    -------
    What went wrong, or "": an error of another kind or of several lines, a hang, or a plan that is accepted with a
    value that cannot be had.
    """
    rng = np.random.default_rng([case.number, 7])
    case.graph.save(folder / "g.json")
    case.hardware.save(folder / "hw.json")
    own = [
        mutations.Format("g.json", (folder / "g.json").read_bytes(), Graph.load),
        mutations.Format("hw.json", (folder / "hw.json").read_bytes(), Hardware.load),
    ]
    if plan is not None:
        plan.save(folder / "plan.json")
        taken = functools.partial(_take_plan, case, None if case.large else optimum(case), plan)
        own.append(mutations.Format("plan.json", (folder / "plan.json").read_bytes(), taken))
    for kind in (*own, files[int(rng.integers(len(files)))]):
        wrong = mutations.attack(kind, rng, folder)
        if wrong:
            return wrong
    return ""


def _take_plan(case: Case, best: tuple[float, ...] | None, whole: Plan, path: Path) -> None:
    """Read a damaged plan and verify it; where it is accepted for the same problem, its value must be possible."""
    plan = Plan.load(path)
    rlinit.verify(plan, case.graph, case.hardware)
    rules = ("objective", "inputs", "shard_inputs", "transfer_rule", "resident", "stage_orders")
    same = all(getattr(plan, rule) == getattr(whole, rule) for rule in rules)
    if best is not None and same and plan.values is not None and plan.values[0] < best[0] * (1.0 - TOLERANCE):
        raise AssertionError(f"a plan of value {plan.values} is accepted, though {best} is the optimum")


def run_bounds(first: int, cases: int, seed: int) -> list[tuple[int, str]]:
    """Hold all placement bounds against brute force on some small placements; print and return what went wrong."""
    found = []
    small = (case for number in itertools.count(first) if not (case := draw(number, seed)).large)
    placed = (case for case in small if case.options["objective"] in ("latency", "throughput"))
    for count, case in enumerate(itertools.islice(placed, cases), 1):
        try:
            wrong = attack_bounds(case)
        except Exception:
            wrong = traceback.format_exc(limit=-4)
        if wrong:
            found.append((case.number, wrong))
            print(f"case {case.number} (seed {seed}): {wrong}\n  {case}", flush=True)
        if count % 100 == 0:
            print(f"{count} cases, {len(found)} findings", flush=True)
    return found


def run(first: int, cases: int, seed: int) -> list[tuple[int, str]]:
    """Attack some cases; print and return what went wrong, by number."""
    found = []
    files = mutations.formats()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + cases):
            case, share = draw(number, seed), number % _TIED == 0
            if share:
                graph = tied(case.graph, np.random.default_rng([seed, number, 19]))
                case = dataclasses.replace(case, graph=graph)
            plans: list[Plan] = []
            try:
                wrong = attack(case, plans) or mutate(case, plans[0] if plans else None, files, Path(folder))
                if not wrong and case.options["objective"] == "pipeline" and not case.large:
                    wrong = attack_split(case) or attack_training(number, seed, share=share)
                elif not wrong and case.options["objective"] in ("latency", "throughput") and not case.large:
                    wrong = attack_tight(case)
                elif not wrong:
                    wrong = attack_language_model(number, seed)
            except Exception:
                wrong = traceback.format_exc(limit=-4)
            if wrong:
                found.append((number, wrong))
                print(f"case {number} (seed {seed}): {wrong}\n  {case}", flush=True)
            if number % 100 == 99:
                seconds = time.perf_counter() - began
                print(f"{number + 1 - first} cases, {len(found)} findings, {seconds:.0f} s", flush=True)
    return found


def main() -> int:
    """Run from the command line; return 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bounds", action="store_true", help="placements only, and all of their bounds")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found = (run_bounds if chosen.bounds else run)(chosen.first, chosen.cases, chosen.seed)
    print(f"{chosen.cases} cases, {len(found)} findings")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
