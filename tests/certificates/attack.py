"""Mutated plans, graphs, hardware and certificates: ``python -m tests.certificates.attack --cases 10000 --seed 0``.

Each base is a small random problem, scheduled and certified. A mutation changes one place of one of its four files: a
number, a name, an order, a flag, a field. What the stand-alone checker accepts all the same must be true: brute force
on the files as they now are finds no value below the bound, and `rlinit.verify` accepts the schedule.

A *consistent liar* changes what belongs together: it plans and certifies another problem, which differs in one place,
and says that this is the one; or it takes a schedule that is not the best and fits bound, thresholds and multipliers
to its value; or it does what it is told: every number of a changed plan that is refused becomes the one expected, the
bound becomes the value, and what certifies honest plans looks for a proof of it.
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

import rlinit
from rlinit.budget import Budget
from rlinit.certificates import certificate_of, check
from rlinit.certificates.lags import BetweenOps
from rlinit.certificates.writing import _proof
from rlinit.errors import RlinitError
from rlinit.files import check_schema
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.placements.lowering import shard_inputs
from rlinit.plan import Exchange, GroupRules, Plan, Resident, Transfers
from rlinit.stages.groups.lowering import lower_groups
from tests.exact.stages.groups.test_groups import cluster, drawn, least_value
from tests.properties import fuzz
from tests.properties.brute_force import best_placement, best_stages

FILES = ("plan", "graph", "hardware", "certificate")
SHARES = (0.25, 0.15, 0.15, 0.45)
"""How often each file is mutated."""

LIARS = 3
"""Consistent lies of each kind about each problem."""

MOST_REPAIRS = 60
"""Numbers of a plan that a liar replaces by those expected."""

Files = dict[str, Any]


def groups_base(number: int, seed: int) -> Files | None:
    """Return the four files of stages of several devices; None where there is no plan."""
    rng = np.random.default_rng([seed, number, 17])
    ops, devices, nodes, kinds = (int(rng.integers(1, most)) for most in (4, 5, 3, 3))
    options: dict[str, Any] = {
        "replicas": "auto", "tensor_parallel": "auto", "recompute": ("none", "auto", "all")[int(rng.integers(3))],
        "training": (None, "1f1b", "gpipe")[int(rng.integers(3))], "microbatches": int(rng.integers(1, 5)),
        "uniform": bool(rng.random() < 0.2),
    }  # fmt: skip
    if kinds > 1 and not options["uniform"] and rng.random() < 0.5:
        options["replicas"] = "mixed"
    exchange = str(rng.choice(get_args(Exchange)))
    graph = drawn(int(rng.integers(10**6)), ops, exchange=exchange, kinds=kinds)
    hardware = cluster(devices, nodes, float(rng.choice([6.0, 15.0, 40.0, np.inf])), 1.0, kinds)
    try:
        return certified(graph, hardware, options)
    except RlinitError:  # no degree divides the devices for some op
        return None


def base(number: int, seed: int) -> Files | None:
    """Return the four files of a random small problem; None where there is no plan or brute force takes long."""
    if number % 5 == 4:
        return groups_base(number, seed)
    case = fuzz.draw(number, seed)
    if case.large or case.options.get("activations"):
        return None
    graph, hardware, rng = case.graph, case.hardware, np.random.default_rng([seed, number, 16])
    if case.options["objective"] == "throughput" and rng.random() < 0.5:  # loads that can be proven
        times = {batch: column[0] for (device, batch), column in graph.times.items() if device == "d0"}
        graph = Graph.build([(f"op{v}", {"time_s": {"*": times}}) for v in range(hardware.num_devices)], [])
    if case.options["objective"] in ("latency", "throughput") and rng.random() < 0.2:  # some pairs without a path
        rates = np.where(rng.random(hardware.bandwidth.shape) < 0.4, 0.0, hardware.bandwidth)
        hardware = dataclasses.replace(hardware, bandwidth=rates)
    keys = ("objective", "transfers", "resident", "inputs", "seed")
    return certified(graph, hardware, {key: case.options[key] for key in keys if key in case.options})


def certified(graph: Graph, hardware: Hardware, options: dict[str, Any]) -> Files | None:
    """Return the four files of a problem; None where there is no plan."""
    plan = rlinit.schedule(graph, hardware, time_limit_s=5.0, **options)
    if plan.values is None:
        return None
    hardware = hardware.with_stages(plan.num_stages) if plan.num_stages and plan.groups is None else hardware
    certificate = certificate_of(plan, graph, hardware)
    whole = (plan.to_dict(), graph.to_dict(), hardware.to_dict(), certificate)
    return dict(zip(FILES, (json.loads(json.dumps(data)) for data in whole), strict=True))


def asked(plan: Any) -> dict[str, Any]:
    """Return the options of `rlinit.schedule` that a plan answers."""
    options = {"objective": plan["objective"]}
    if plan.get("groups"):
        told = {key: value for key, value in plan["groups"].items() if key not in ("exchange", "workspace_bytes")}
        several = {key: told[key] or "auto" for key in ("replicas", "tensor_parallel")}
        several |= {"replicas": "mixed"} if told.pop("mixed", False) else {}
        return options | told | several | {"training": told["training"] or None}
    if plan["objective"] in ("latency", "throughput"):
        options |= {"transfers": plan["transfer_rule"], "resident": plan["resident"]}
    return options | ({"inputs": plan["inputs"]} if plan["objective"] == "throughput" else {})


def told_of_this(files: Files, rng: np.random.Generator) -> tuple[Files, str] | None:
    """Return the plan and proof of a problem that differs in one place, said to be of this one; None without a plan."""
    other, options, kind = copy.deepcopy(files), asked(files["plan"]), int(rng.integers(3))
    if kind == 0:
        other, what = mutated(files, rng, ("graph", "hardware")[int(rng.integers(2))])
    elif kind == 1 and "inputs" in options:
        sizes = [None, [options["inputs"]], list(range(1, options["inputs"] + 1))][int(rng.integers(3))]
        what = f"batch sizes {sizes}"
        for device in other["hardware"]["device"]:
            device["batch_sizes"] = sizes
    else:
        key = str(rng.choice([key for key in options if key != "objective"] or ["objective"]))
        known: dict[str, Any] = {"transfers": get_args(Transfers), "resident": get_args(Resident), "inputs": (1, 2, 3)}
        options[key] = rng.choice(known.get(key, ("pipeline", "memory"))).item()
        what = f"{key} {options[key]}"
    try:
        for form in ("graph", "hardware"):
            check_schema(other[form], form, RlinitError, form)
        graph, hardware = Graph.from_dict(other["graph"]), Hardware.from_dict(other["hardware"])
        found = certified(graph, hardware, options)
    except RlinitError:
        return None
    if found is None:
        return None
    marks = {key: files["plan"][key] for key in ("graph_fingerprint", "hardware_fingerprint")}
    if kind == 2 and rng.random() < 0.5:  # says what was asked as well
        marks |= {key: files["plan"][key] for key in ("transfer_rule", "resident")}
    return {**files, "plan": found["plan"] | marks, "certificate": found["certificate"] | marks}, f"planned for {what}"


def fitted(files: Files, rng: np.random.Generator) -> tuple[Files, str] | None:
    """Return a schedule that need not be the best as a proven one; None where none is found."""
    graph, hardware = Graph.from_dict(files["graph"]), Hardware.from_dict(files["hardware"])
    options = asked(files["plan"])
    methods = [name for name in fuzz.names_of("method", options["objective"]) if name not in fuzz.COMPLETE]
    method = str(rng.choice(methods))
    try:
        plan = rlinit.schedule(graph, hardware, method=method, time_limit_s=0.2, **options)
    except RlinitError:
        return None
    if plan.values is None:
        return None
    written, certificate = json.loads(json.dumps(plan.to_dict())), copy.deepcopy(files["certificate"])
    written |= {"bounds": written["values"], "status": "optimal"}
    for level, value in enumerate(written["values"]):
        row = certificate["levels"][level]
        while row is not None:
            before = Fraction(files["plan"]["values"][level]) or Fraction(1)
            factor = Fraction(value) / before
            if "threshold" in row:
                row["threshold"] = str(Fraction(row["threshold"]) * factor)
            if "multipliers" in row:
                row["multipliers"] = [str(Fraction(each) * factor) for each in row["multipliers"]]
            row = row.get("proof")
    return {**files, "plan": written, "certificate": certificate}, f"{method} called optimal"


def certified_anew(files: Files, rng: np.random.Generator) -> tuple[Files, str] | None:
    """Return a changed plan with figures, value, bound and proofs that fit what it now says; None without a plan."""
    graph, hardware = Graph.from_dict(files["graph"]), Hardware.from_dict(files["hardware"])
    kind = rng.random()
    changed = mutated(files, rng, "plan", 2) if kind < 0.6 else (told_of_this if kind < 0.9 else fitted)(files, rng)
    if changed is None:
        return None
    bad, what = copy.deepcopy(changed[0]), f"{changed[1]}, certified anew"
    for _ in range(MOST_REPAIRS):
        try:
            read = exact(bad)
            values = check.exact_values(*read[:3])
            break
        except check.Refuted as problem:
            told = re.search(r" is (\S+), not (\S+)$", str(problem))
            if told is None:
                return bad, what
            bad["plan"] = replaced(bad["plan"], *map(float, told.groups()))
        except check.MALFORMED:
            return bad, what
    else:
        return bad, what
    levels: list[Any] = []
    for level, value in enumerate(values):
        try:
            costs = check.Costs(*read[:3], level, values)
            levels.append(_proof(costs, value, value, partial(BetweenOps, graph, hardware), Budget(2.0)))
        except check.Refuted:
            levels.append(None)
    said = [float(value) for value in values]
    marks = {key: files["plan"][key] for key in ("graph_fingerprint", "hardware_fingerprint")}
    bad["plan"] |= marks | {"values": said, "bounds": said, "status": "optimal"}
    return bad | {"certificate": bad["certificate"] | marks | {"levels": levels, "trusted": ["nothing"]}}, what


def replaced(data: Any, before: float, after: float) -> Any:
    """Return data with each number that is the one before replaced by the one after."""
    if isinstance(data, dict):
        return {key: replaced(value, before, after) for key, value in data.items()}
    if isinstance(data, list):
        return [replaced(value, before, after) for value in data]
    same = isinstance(data, int | float) and not isinstance(data, bool) and data == before
    return after if same else data


def exact(files: Files) -> tuple[Any, check.Graph, check.Hardware, Any]:
    """Return the four files as the checker reads them."""
    read = {name: check.parse(json.dumps(data), f"rlinit-{name}", name) for name, data in files.items()}
    return read["plan"], check.Graph(read["graph"]), check.Hardware(read["hardware"]), read["certificate"]


def verdict(files: Files) -> str:
    """Return what the checker says of four files, "" where it refuses them."""
    try:
        return check.check(*exact(files))
    except (check.Refuted, *check.MALFORMED):
        return ""


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a file."""
    if path:
        yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(value, (*path, key))


def mutated(files: Files, rng: np.random.Generator, which: str = "", depth: int = 99) -> tuple[Files, str]:
    """Return the files with one place of one of them changed, and which; of a certain one, not below a depth."""
    which = which or str(rng.choice(FILES, p=SHARES))
    bad = copy.deepcopy(files)
    every = [path for path in places(bad[which]) if len(path) <= depth]
    path = every[int(rng.integers(len(every)))]
    spot = bad[which]
    for key in path[:-1]:
        spot = spot[key]
    value, kind = spot[path[-1]], rng.random()
    if isinstance(spot, dict) and kind < 0.1:
        del spot[path[-1]]
    elif isinstance(spot, dict) and kind < 0.15:
        spot[str(path[-1]) + "_"] = spot.pop(path[-1])
    elif isinstance(spot, list) and kind < 0.2:
        other = int(rng.integers(len(spot)))
        spot[path[-1]], spot[other] = spot[other], value
    elif isinstance(spot, list) and kind < 0.3:
        spot.insert(int(rng.integers(len(spot) + 1)), spot.pop(path[-1]) if kind < 0.25 else value)
    elif isinstance(spot, list) and kind < 0.4:
        del spot[path[-1]]
    else:
        spot[path[-1]] = _other(value, bad, every, which, rng)
    return bad, f"{which} {'.'.join(map(str, path))}: {str(value)[:60]}"


def _other(value: Any, files: Files, every: list[Any], which: str, rng: np.random.Generator) -> Any:
    """Return another value for a place: a little more or less, a wild one, or one from elsewhere in the file."""
    kind = rng.random()
    if kind < 0.15:
        return [None, True, 0, -1, 1e300, "", [], {}, "nan", 1e-300][int(rng.integers(10))]
    if kind < 0.35:
        found: Any = files[which]
        for key in every[int(rng.integers(len(every)))]:
            found = found[key]
        return copy.deepcopy(found)
    factor = [0.5, 0.9, 0.999, 1 - 1e-7, 1 + 1e-7, 1.001, 1.1, 2.0][int(rng.integers(8))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        more = int(rng.integers(-1, 2)) * max(1, abs(value) // 10**6)  # so that it is no rounding
        return value * factor if kind < 0.9 else value + more
    if isinstance(value, str):
        try:
            return str(Fraction(value) * Fraction(factor))
        except (ValueError, ZeroDivisionError):
            return value[:-1]
    return list(reversed(value)) if isinstance(value, list) else value


def lie(files: Files, told: str, optimum: Any) -> str:
    """Return what is false in what the checker accepted, or ""."""
    files = whole(files)
    try:
        graph, hardware = Graph.from_dict(files["graph"]), Hardware.from_dict(files["hardware"])
    except (RlinitError, *check.MALFORMED):
        return ""  # what the checker does not read has another form
    values = [float(value) for value in files["plan"]["values"]]
    try:
        best = optimum(json.dumps([files["graph"], files["hardware"]]), *rules(files["plan"]))
    except (AssertionError, TypeError, ZeroDivisionError):  # an op has no time on some device, or a device no path
        best = (0.0,) * len(values)
    if best is None:
        return "accepts a schedule of an infeasible problem"
    for level, (value, true) in enumerate(zip(values, best, strict=True)):
        if value < true * (1 - fuzz.TOLERANCE):
            return f"value {value} on level {level} is below the optimum {best}"
        if value > true * (1 + fuzz.TOLERANCE):
            break
    if told.startswith("VERIFIED (exact)") and any(best):
        wrong = fuzz.judge_bounds(tuple(map(float, files["plan"]["bounds"] or ())), best, "the certificate")
        if wrong:
            return wrong
    try:
        marks = {"graph_fingerprint": graph.fingerprint(), "hardware_fingerprint": hardware.fingerprint()}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "plan.json").write_text(
                json.dumps(files["plan"] | marks | {"graph_figures": {}, "history": []})
            )
            plan = Plan.load(Path(folder) / "plan.json")
    except (RlinitError, *check.MALFORMED):
        return ""  # a field that claims nothing of the schedule has another form
    try:
        rlinit.verify(plan, graph, hardware)
    except RlinitError as problem:
        # Tensors that are there at one moment up to rounding of times may count or not.
        peak = "held_bytes" in str(problem) and files["plan"].get("resident") == "peak"
        if not peak and not _rounded(str(problem)):
            return f"accepts a plan that rlinit refuses: {problem}"
    return ""


def _rounded(problem: str) -> bool:
    """Return whether an op takes what it should up to the rounding of times that the checker grants."""
    said = re.search(r"runs from (\S+) s to (\S+) s .* takes (\S+) s", problem)
    if said is None:
        return False
    begin, end, seconds = map(float, said.groups())
    return abs(begin + seconds - end) <= float(check.ROUNDING) * end


def whole(data: Any) -> Any:
    """Return a file with 2.0 written as 2, which is the same number."""
    if isinstance(data, dict):
        return {key: whole(value) for key, value in data.items()}
    if isinstance(data, list):
        return [whole(value) for value in data]
    return int(data) if isinstance(data, float) and abs(data) < 2**53 and data == int(data) else data


def rules(plan: Any) -> tuple[Any, ...]:
    """Return what of a plan decides its problem beside graph and hardware."""
    inputs = int(plan.get("inputs") or 1)
    groups = json.dumps(plan["groups"]) if plan.get("groups") else ""
    return plan["objective"], inputs, plan.get("transfer_rule", "parallel"), plan.get("resident", "tensors"), groups


@cache
def optimum_of(problem: str, objective: str, inputs: int, transfers: str, resident: str, groups: str = "") -> Any:
    """Return the best value on each level by brute force, None where nothing is feasible."""
    graph, hardware = Graph.from_dict(json.loads(problem)[0]), Hardware.from_dict(json.loads(problem)[1])
    if groups:
        asked = GroupRules(**json.loads(groups))
        lowered = lower_groups(graph, hardware, asked).problem
        least = least_value(lowered, uniform=asked.uniform)
        return (least,) if least < np.inf else None
    if objective in ("pipeline", "memory"):
        return best_stages(graph, hardware, objective, False)
    shard = shard_inputs(graph, hardware, inputs)
    best = best_placement(graph, hardware, inputs // shard, shard, transfers, resident)
    return None if best is None else (best,)


def attack(cases: int, first: int, seed: int, each: int = 40) -> tuple[list[str], collections.Counter[str]]:
    """Mutate the files of small problems some times each; return the lies accepted, and how often which answer came.

    Parameters
    ----------
    cases
        Mutations in all.
    first, seed
        Where the problems begin.
    each
        Mutations of one problem.
    """
    found: list[str] = []
    answers = collections.Counter[str]()
    number = first
    while answers.total() < cases:
        files = base(number, seed)
        rng = np.random.default_rng([seed, number, 15])
        number += 1
        if files is None:
            continue
        if not verdict(files):
            found.append(f"case {number - 1}: the files as written are refused")
        liars = [mutated] * each + [told_of_this, fitted, certified_anew] * LIARS
        for change in liars:
            changed = change(files, rng)
            if changed is None:
                continue
            bad, what = changed
            told = verdict(bad)
            answers[told.partition(")")[0] + ")" if told else "REFUTED"] += 1
            wrong = lie(bad, told, optimum_of) if told else ""
            if wrong:
                found.append(f"case {number - 1} (seed {seed}), {what}: {wrong}")
                print(found[-1], flush=True)
    return found, answers


def main() -> int:
    """Run from the command line; return 1 where a lie was accepted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found, answers = attack(chosen.cases, chosen.first, chosen.seed)
    print(f"{answers.total()} mutations: {dict(answers)}; {len(found)} lies accepted")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
