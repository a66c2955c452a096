"""Random small problems against brute force: ``python -m tests.properties.fuzz --cases 20000 --seed 0``.

A case is drawn from its number alone, so that ``--first N --cases 1`` runs it again. Scales from 2^-40 to 2^40 keep
sums exact where costs are whole multiples, so that ties and full memories are what they seem; other cases draw any
numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

import rlinit
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.plan import Objective, Plan
from tests.properties.brute_force import best_placement, best_stages

TOLERANCE = 1e-8
"""Relative difference that is put down to rounding."""

JUNK = (b"", b"0", b"1e308", b"-", b"9" * 400, b"null", b'"', b"{}", b"\\u0000", b"\\ud800", b"NaN", b"[", b"\xff")
"""What a damaged file has in place of a few bytes."""

STAGE_METHODS = ("auto", "auto", "warm", "milp", "ideals", "agent", "natural", "anneal", "brkga")
PLACEMENT_METHODS = ("auto", "auto", "warm", "milp", "split", "branch-and-bound", "sweep", "agent", "heft")


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and how it is to be solved."""

    number: int
    graph: Graph
    hardware: Hardware
    options: dict[str, Any]

    def __str__(self) -> str:
        return json.dumps(
            {"graph": self.graph.to_dict(), "hardware": self.hardware.to_dict(), "options": self.options}, default=str
        )


def draw(number: int, seed: int = 0) -> Case:
    """Return a case by its number."""
    rng = np.random.default_rng([seed, number])
    objective = str(rng.choice(["pipeline", "memory", "latency", "throughput"]))
    staged = objective in ("pipeline", "memory")
    whole = rng.random() < 0.7
    scales = {what: 2.0 ** int(rng.integers(-40, 41)) if rng.random() < 0.5 else 1.0 for what in ("s", "B", "rate")}
    n = int(rng.integers(1, 6 if staged else 5 if objective == "latency" else 4))
    d = int(rng.integers(1, 4 if objective != "throughput" else 3))
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
        ops.append((f"op{v}", row))
    density = rng.random()
    edges = [(f"op{u}", f"op{v}") for u in range(n) for v in range(u + 1, n) if rng.random() < density]
    total = sum(row["param_bytes"] for _, row in ops) or scales["B"]
    devices = []
    for name in names:
        tight = math.ceil(total / scales["B"] * rng.random()) * scales["B"] or scales["B"]
        devices.append(
            Device(
                name,
                memory_bytes=(tight if staged else 4 * tight) if rng.random() < 0.25 else math.inf,
                cache_bytes=number_of(scales["B"]) if rng.random() < 0.5 else math.inf,
                io_bandwidth=[None, math.inf, 2.0 ** int(rng.integers(-2, 3)) * scales["rate"]][int(rng.integers(3))],
                batch_sizes=tuple(sizes) if inputs > 1 else None,
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
    options["method"] = str(rng.choice(STAGE_METHODS if staged else PLACEMENT_METHODS))
    options["window"] = ["auto", 0, 1, None][int(rng.integers(4))]
    options["gap"] = [0.0, 0.0, 0.1][int(rng.integers(3))]
    options["time_limit_s"] = [None, 0.02, 1.0, 5.0][int(rng.integers(4))] or 5.0
    if objective == "pipeline":
        options["activations"] = bool(rng.random() < 0.2)
    if not staged:
        options["transfers"] = str(rng.choice(["parallel", "exclusive", "blocking"]))
        options["resident"] = str(rng.choice(["tensors", "weights"]))
        options["coarsen"] = bool(rng.random() < 0.1)
        if options["method"] == "branch-and-bound" and (objective, options["transfers"]) != ("latency", "parallel"):
            options["method"] = "auto"
    if objective == "throughput":
        options["inputs"] = inputs
    return Case(number, Graph.build(ops, edges), Hardware(tuple(devices), rates, delays, "fuzz"), options)


def _capacities(device: Device) -> tuple[float, float, None, None, float, float | None, tuple[int, ...] | None]:
    rest = (device.io_bandwidth, device.batch_sizes)
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
        if value > true * (1.0 + TOLERANCE):
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


def bound_methods(objective: Objective) -> list[str]:
    """Return the names of the bounds there are, from the message about one there is not."""
    graph = Graph.build([("a", {"time_s": 1.0})], [])
    try:
        inputs = 1 if objective == "throughput" else None
        rlinit.bound(graph, Hardware.pipeline(1), objective, method="?", inputs=inputs)
    except RlinitError as problem:
        return [name.strip() for name in str(problem).rpartition("expected ")[2].split(",")]
    raise AssertionError("an unknown bound was accepted")


def attack(case: Case, bounds: dict[str, list[str]]) -> str:
    """Solve a case and prove one bound on it; return what went wrong, or ""."""
    best = optimum(case)
    rng = np.random.default_rng(case.number)
    try:
        plan = rlinit.schedule(case.graph, case.hardware, **case.options)
        rlinit.verify(plan, case.graph, case.hardware)
    except RlinitError as problem:
        return f"schedule: {type(problem).__name__}: {problem}"
    wrong = judge(plan, best)
    if not wrong and plan.status == "no_solution" and best is not None and case.options["time_limit_s"] > 1.0:
        wrong = f"no solution in 5 s by {case.options['method']}, though {best} can be had: {plan.message}"
    if wrong or best is None or case.options.get("activations"):
        return wrong
    keys = ("objective", "inputs", "transfers", "resident")
    chosen = {key: case.options[key] for key in keys if key in case.options}
    method = str(rng.choice(bounds[case.options["objective"]]))
    try:
        proven = rlinit.bound(case.graph, case.hardware, **chosen, method=method, time_limit_s=5.0)
    except RlinitError as problem:
        return f"bound {method}: {type(problem).__name__}: {problem}"
    return judge_bounds(proven.bounds, best, f"bound {method}")


def mutate(case: Case, folder: Path) -> str:
    """Damage the files of a case and read them; return what went wrong, or "": an error of another kind, or a hang."""
    rng = np.random.default_rng([case.number, 7])
    case.graph.save(folder / "g.json")
    case.hardware.save(folder / "hw.json")
    for name, load in (("g.json", Graph.load), ("hw.json", Hardware.load)):
        text = bytearray((folder / name).read_bytes())
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(text)))
            junk = [
                b"",
                b"0",
                b"1e308",
                b"-",
                b"9" * 400,
                b"null",
                b'"',
                b"{}",
                b"\\u0000",
                b"\\ud800",
                b"NaN",
                b"[",
                b"\xff",
            ]
            text[at : at + int(rng.integers(0, 4))] = junk[int(rng.integers(len(junk)))]
        (folder / name).write_bytes(bytes(text))
        began = time.perf_counter()
        try:
            with contextlib.suppress(RlinitError):
                load(folder / name)
        except Exception:
            return f"reading {name}: {traceback.format_exc(limit=-3)}\n{bytes(text)!r}"
        if time.perf_counter() - began > 2.0:
            return f"reading {name} took {time.perf_counter() - began:.1f} s: {bytes(text)!r}"
    return ""


def run(first: int, cases: int, seed: int) -> list[tuple[int, str]]:
    """Attack some cases; print and return what went wrong, by number."""
    found = []
    objectives: tuple[Objective, ...] = get_args(Objective)
    bounds: dict[str, list[str]] = {name: bound_methods(name) for name in objectives}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + cases):
            case = draw(number, seed)
            try:
                wrong = attack(case, bounds) or mutate(case, Path(folder))
            except Exception:
                wrong = traceback.format_exc(limit=-4)
            if wrong:
                found.append((number, wrong))
                print(f"case {number} (seed {seed}): {wrong}\n  {case}", flush=True)
            if number % 500 == 499:
                print(
                    f"{number + 1 - first} cases, {len(found)} findings, {time.perf_counter() - began:.0f} s",
                    flush=True,
                )
    return found


def main() -> int:
    """Run from the command line; return 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found = run(chosen.first, chosen.cases, chosen.seed)
    print(f"{chosen.cases} cases, {len(found)} findings")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
