"""Finds, for each level of a plan's value, a proof of its bound that the stand-alone checker accepts.

What is written is never taken from a solver: each proof is one of `rlinit.certificates.check.PROOFS`, found here and
tried there, cheapest first. Where none reaches the bound, the certificate names what the bound rests on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from rlinit.arrays import SAFETY
from rlinit.budget import Budget
from rlinit.certificates import check
from rlinit.certificates.lags import BetweenOps
from rlinit.certificates.latency_program import LatencyProgram
from rlinit.certificates.learning import Learning
from rlinit.certificates.programs import LoadProgram, exact_plan
from rlinit.certificates.proof import MOST_PAIRS
from rlinit.certificates.proof import Proof as TreeProof
from rlinit.certificates.tree import tree_proof
from rlinit.errors import InvalidPlan
from rlinit.files import write_json
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan

Proof = dict[str, Any]

_DENOMINATOR = 10**9
"""Largest denominator of a multiplier."""

_LONG = 10**100
"""Common denominator of the multipliers from which they are rounded to parts of a power of 10."""

_MOST_SMALL, _MOST_PARTS = 200, 40
"""Sizes of small items, and parts of a device, that are tried at most for a packing."""

_FIRST = 0.1
"""Share of the time for a tree, which closes most problems soon; two other searches have half of what is left each."""

_LOADED = Fraction(9, 10)
"""Part of a bound that balanced loads reach where their cases are worth a search."""


def write_certificate(
    path: str | Path, plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float = 60.0
) -> tuple[str, ...]:
    """Write a certificate of a plan's bounds as JSON; return what they still rest on, nothing where all are proven.

    Parameters
    ----------
    path
        The file, which ``python tools/check.py plan.json graph.json hardware.json FILE`` reads.
    plan
        A plan with a schedule, or one that is infeasible, as `verify` accepts it.
    graph, hardware
        What the plan is for.
    time_limit_s
        Of the search for proofs.

    Raises
    ------
    InvalidPlan
        Nothing is known of schedules, the checker refuses the plan, or no proof was found that there is no schedule;
        the message says why.
    """
    certificate = certificate_of(plan, graph, hardware, time_limit_s)
    write_json(path, certificate)
    return tuple(certificate["trusted"])


def certificate_of(plan: Plan, graph: Graph, hardware: Hardware, time_limit_s: float = 60.0) -> dict[str, Any]:
    """Return the certificate that `write_certificate` writes: a proof for each level, None where there is none.

    Parameters
    ----------
    plan
        A plan with a schedule, or one that is infeasible, as `verify` accepts it.
    graph, hardware
        What the plan is for.
    time_limit_s
        Of the search for proofs.

    Raises
    ------
    InvalidPlan
        As `write_certificate` raises.
    """
    budget, between = Budget(time_limit_s), partial(BetweenOps, graph, hardware)
    written, raw_graph, raw_hardware, values = exact_plan(plan, graph, hardware)
    levels: list[Proof | None] = []
    if plan.status == "infeasible":
        bare = check.costs_of(written, raw_graph, raw_hardware, 0, (Fraction(0),) * 3)
        bare.expired = lambda: budget.expired
        levels.append(_refutation(bare))
        if None in levels:
            rests = ", ".join(plan.trusted) or plan.bound_source or "the search"
            raise InvalidPlan(f"no proof was found that there is no schedule, which rests on {rests}: {plan.message}")
    for level, value in enumerate(values):
        bound = written["bounds"][level] if plan.bounds else Fraction(0)
        try:
            costs = check.costs_of(written, raw_graph, raw_hardware, level, values)
            costs.expired = lambda: budget.expired
            levels.append(None if None in levels else _proof(costs, bound, value, between, budget))
        except check.Refuted:  # a bound of a kind that it does not check
            levels.append(None)
    return {
        "format": "rlinit-certificate",
        "version": 1,
        "graph_fingerprint": plan.graph_fingerprint,
        "hardware_fingerprint": plan.hardware_fingerprint,
        "levels": levels,
        "trusted": list(plan.trusted or [plan.bound_source or "nothing"]) if None in levels else [],
    }


def _proof(
    costs: check.Costs | check.Groups,
    bound: Fraction,
    value: Fraction,
    between: Callable[[], BetweenOps],
    budget: Budget,
) -> Proof | None:
    """Return the cheapest proof that reaches a bound up to what floats round; None where none does."""
    wanted = bound * (1 - check.ROUNDING)
    if wanted <= 0:
        return {"kind": "zero"}
    if isinstance(costs, check.Groups):
        return _group_proof(costs, wanted, value)
    simple = list(_simple_proofs(costs)) if costs.level == 0 else []
    for proof in (*simple, *({"kind": "quantum", "proof": proof} for proof in simple)):
        if _reaches(proof, costs, wanted):
            return proof
    if costs.runs_once:
        searched = filter(None, _latency_proofs(costs, wanted, value, between, budget))
        return next((proof for proof in searched if proof["kind"] == "tree" or _reaches(proof, costs, wanted)), None)
    # A value that is optimal in floats may lie above the optimum by their rounding.
    thresholds = tuple(dict.fromkeys((min(value, max(bound, value * (1 - check.ROUNDING))), wanted)))
    for threshold in thresholds:
        for proof in chain(_packings(costs, threshold), _whole_packings(costs, threshold)):
            if _reaches(proof, costs, wanted):
                return proof
    found = (_states(costs, threshold) for threshold in thresholds if threshold >= wanted)
    return next((proof for proof in found if proof is not None), None)


def _latency_proofs(
    costs: check.Costs, wanted: Fraction, value: Fraction, between: Callable[[], BetweenOps], budget: Budget
) -> Iterator[Proof | None]:
    """Yield what searches find in turn: a tree soon, loads in cases where they are near the bound, clauses, a tree."""
    yield tree_proof(costs, wanted, between, budget.share(_FIRST * budget.remaining_s))
    with contextlib.suppress(check.Refuted):
        if _reaches({"kind": "load", "multipliers": _multipliers(costs.times)}, costs, wanted * _LOADED):
            loads = LoadProgram(costs)
            goal, part = math.ceil(wanted / loads.unit), budget.share(budget.remaining_s / 2)
            if (search := TreeProof(loads, goal, part)).run():
                cases = list(search.cases_of_loads(loads.on))
                yield {"kind": "quantum", "proof": {"kind": "load", "cases": cases}}
    with contextlib.suppress(check.Refuted):
        check.need(len(costs.times) ** 2 * costs.num_devices <= MOST_PAIRS, "too many pairs to look at at once")
        program = LatencyProgram(costs, value, 0.0)
        goal, part = math.ceil(wanted / program.unit), budget.share(budget.remaining_s / 2)
        if (learning := Learning(program, goal, part)).run():
            yield {"kind": "clauses", "threshold": str(wanted), "clauses": learning.clauses.for_checker()}
    yield tree_proof(costs, wanted, between, budget)


def _group_proof(costs: check.Groups, wanted: Fraction, value: Fraction) -> Proof | None:
    """Return a proof that no stages of several devices are below the plan's value, else below its bound."""
    area: Proof = {"kind": "area"}
    if check.prove(area, costs) >= min(value, wanted):
        return area
    for threshold in (value, wanted):
        states = check.group_states(costs, threshold)
        if states is not None:
            return {"kind": "groups", "threshold": str(threshold), "states": states}
    return None


def _refutation(costs: check.Costs | check.Groups) -> Proof | None:
    """Return a proof that there is no schedule; None where none was found."""
    if isinstance(costs, check.Groups):
        with contextlib.suppress(check.Refuted):
            states = check.group_states(costs, None)
            return None if states is None else {"kind": "groups", "states": states}
        return None
    shares = check.shares_of_memory(costs)
    multipliers = [] if {None} in map(set, shares) else _multipliers(shares)
    threshold = check.horizon(costs)
    if _reaches(room := {"kind": "room", "multipliers": multipliers}, costs, threshold):
        return room
    with contextlib.suppress(check.Refuted):
        if (count := check.count_places(costs)) is not None:
            return {"kind": "places", "places": count}
    with contextlib.suppress(check.Refuted):
        return _states(costs, threshold)
    return None


def _reaches(proof: Proof, costs: check.Costs, wanted: Fraction) -> bool:
    try:
        return bool(check.prove(proof, costs) >= wanted)
    except check.Refuted:
        return False


def _simple_proofs(costs: check.Costs) -> Iterator[Proof]:
    """Yield the proofs that are a sum: the longest op and balanced load."""
    yield {"kind": "op"}
    yield {"kind": "load", "multipliers": _multipliers(costs.times)}


def _multipliers(loads: list[list[Any]]) -> list[str]:
    return [str(each) for each in _load_multipliers(loads)]


def _load_multipliers(loads: list[list[Any]]) -> list[Fraction]:
    """Return one multiplier a device that makes the load bound largest: the dual of the assignment's linear program."""
    d, n = len(loads[0]) if loads else 1, len(loads)
    if all(len(set(row)) == 1 for row in loads):
        return [Fraction(1, d)] * d
    rows: list[int] = []
    columns: list[int] = []
    times: list[float] = []
    for v, row in enumerate(loads):
        for i, seconds in enumerate(row):
            if seconds is not None:  # z[v] <= y[i] * time(v, i)
                rows += [len(times)] * 2
                columns += [v, n + i]
                times.append(float(seconds))
    unit = max(times, default=0.0) or 1.0
    entries = [entry for seconds in times for entry in (1.0, -seconds / unit)]
    above: Any = coo_array((entries, (rows, columns)), shape=(len(times), n + d)).tocsr()
    whole = np.concatenate([np.zeros(n), np.ones(d)])[None, :]
    solved = linprog(
        np.concatenate([-np.ones(n), np.zeros(d)]),
        A_ub=above,
        b_ub=np.zeros(len(times)),
        A_eq=whole,
        b_eq=np.ones(1),
        method="highs",
    )
    if solved.x is None:
        return [Fraction(1, d)] * d
    shares = [Fraction(max(0.0, float(y))).limit_denominator(_DENOMINATOR) for y in solved.x[n:]]
    if sum(shares).denominator > _LONG:  # of many unlike devices
        shares = [Fraction(round(share * _DENOMINATOR**2), _DENOMINATOR**2) for share in shares]
    return [share / sum(shares) for share in shares]


def _packings(costs: check.Costs, threshold: Fraction) -> Iterator[Proof]:
    """Yield the packing whose ops ask for most beyond the devices there are, if any does; then those by parts."""
    if costs.level or not costs.times:
        return
    sizes = sorted(costs.least(v) for v in range(len(costs.times)))
    floats = np.array([float(size / threshold) for size in sizes])
    sums = np.concatenate([[0.0], np.cumsum(floats)])
    small = np.unique(np.concatenate([[0.0], floats[floats <= 0.5]]))
    first = np.searchsorted(floats, small)
    large = np.searchsorted(floats, 1.0 - small, side="right")
    asked = len(sizes) - large + np.maximum(0.0, sums[large] - sums[first])

    def proof(chosen: int) -> Proof:
        exact = sizes[first[chosen]] if small[chosen] > 0 else Fraction(0)
        return {"kind": "packing", "threshold": str(threshold), "small": str(exact)}

    yield proof(int(np.argmax(asked)))
    for chosen in range(0, len(small), -(-len(small) // _MOST_SMALL)):
        shares = floats[first[chosen] : large[chosen]]
        for parts in range(1, _MOST_PARTS):
            if len(sizes) - large[chosen] + np.floor((parts + 1) * shares).sum() / parts > costs.num_devices - SAFETY:
                yield proof(chosen) | {"parts": str(parts)}


def _whole_packings(costs: check.Costs, threshold: Fraction) -> Iterator[Proof]:
    """Yield packings that refute all up to a multiple of the quantum of times, so that the next one is proven."""
    with contextlib.suppress(check.Refuted):  # overflow has no quantum
        if quantum := check.quantum_of(costs):
            last = (-(-threshold // quantum) - 1) * quantum
            if last > 0:
                yield from (
                    {"kind": "quantum", "proof": proof} for proof in _packings(costs, last * (1 + check.ROUNDING))
                )


def _states(costs: check.Costs, threshold: Fraction) -> Proof | None:
    """Return the proof by states, which the checkers' own search is; None if whole stages below it reach all ops."""
    if costs.objective not in ("pipeline", "memory") or costs.scattered:
        return None
    reached = check.reached_states(costs, threshold)
    return None if reached is None else {"kind": "states", "threshold": str(threshold), "reached": reached}
