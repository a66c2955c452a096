"""What becomes of a plan when costs are off: drawn anew within their errors, by class of ops and kind of device.

Errors of one class on one kind of device go together: a factor is drawn for each pair, whose logarithm is normal with
the standard deviation log(1 + error). Beside the plan, others are tried that were found for the costs of some of the
draws.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.costs.roofline import op_times
from rlinit.costs.sources import cost_errors
from rlinit.devices.efficiency import op_class
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.solving.common.options import SolveOptions
from rlinit.solving.phases import Form, kind_of, solve
from rlinit.solving.plans import Request, Solved, checked_plan
from rlinit.units import format_seconds

_RIVALS = 4
"""Draws whose best plans are looked for."""

_RIVAL_S = 1.0
"""Seconds that the search for each of them takes at most."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Values of plans under drawn costs.

    Parameters
    ----------
    plans
        The plan itself, then others.
    values
        (p, d) seconds of each under each draw.
    decisive
        (kind of device, class of ops) -> share of the variance of the plan's value that goes with the draws of its
        costs, the largest first.
    """

    plans: tuple[Plan, ...]
    values: FloatArray
    decisive: dict[tuple[str, str], float]

    @property
    def stays_best(self) -> float:
        """Share of the draws under which no other plan is better by more than a thousandth."""
        return float(np.mean(self.values[0] <= self.values.min(axis=0) * 1.001))

    @property
    def regret(self) -> FloatArray:
        """(d,) relative excess of the plan over the best of all under each draw."""
        return np.asarray(self.values[0] / self.values.min(axis=0) - 1.0)

    @property
    def most_robust(self) -> Plan:
        """The plan of least mean value."""
        return self.plans[int(np.argmin(self.values.mean(axis=1)))]

    def __str__(self) -> str:
        low, high = np.quantile(self.values[0], [0.1, 0.9])
        worst = ", ".join(f"{name} on {kind} {share:.0%}" for (kind, name), share in list(self.decisive.items())[:3])
        return (
            f"costs drawn {self.values.shape[1]} times: 80% of values lie between {format_seconds(low)} and "
            f"{format_seconds(high)}; of {len(self.plans)} plans this one stays the best in {self.stays_best:.0%}, and "
            f"is {self.regret.mean():.2%} above the best in the mean, {np.quantile(self.regret, 0.9):.2%} in a tenth"
            + (f"; what decides: {worst}" if worst else "")
        )


def sensitivity(
    plan: Plan,
    graph: Graph,
    hardware: Hardware,
    *,
    options: SolveOptions | None = None,
    spread: float | None = None,
    draws: int = 100,
    seed: int = 0,
) -> Sensitivity:
    """Return what a plan is worth when costs are off.

    Parameters
    ----------
    plan, graph, hardware
        A plan in seconds with a schedule, and what it was made for.
    options
        The problem; None: as the plan says.
    spread
        Relative error of all costs; None: what is expected of each (`rlinit.costs.sources.cost_errors`).
    draws
        How many.
    seed
        Of the draws.

    Raises
    ------
    RlinitError
        No schedule, the `memory` objective, no draws, or a negative spread.
    """
    if plan.assignment is None or plan.objective == "memory":
        raise RlinitError(f"a {plan.objective} plan that is {plan.status} has no seconds that costs could change")
    if plan.groups is not None:
        raise RlinitError("stages of several devices go by menus, whose errors are not known (--sensitivity)")
    if draws < 1 or (spread is not None and not spread >= 0):
        raise RlinitError(f"draws is {draws} and spread {spread}; expected at least 1, and an error >= 0")
    options = options or options_of(plan)
    keys, factors, drawn = _draw(graph, hardware, options.inputs or 1, spread, draws, seed)
    short = dataclasses.replace(options, time_limit_s=_RIVAL_S, method="auto", agent="auto", seed=seed)
    plans = {_schedule_of(plan): plan}
    for one in drawn[:_RIVALS]:
        request = Request(one, hardware, short, budget=Budget(_RIVAL_S))
        rival = checked_plan(solve(request), request)
        if rival.assignment is not None:
            plans.setdefault(_schedule_of(rival), rival)
    kept = tuple(plans.values())
    values = np.array([[_revalued(rival, one, hardware, options) for one in drawn] for rival in kept])
    logs, own = np.log(factors), np.log(values[0]) - np.log(values[0]).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = logs - logs.mean(axis=0)
        share = (moved * own[:, None]).sum(axis=0) ** 2 / ((moved**2).sum(axis=0) * (own**2).sum())
    order = np.argsort(-np.nan_to_num(share))
    decisive = {keys[at]: float(share[at]) for at in order if share[at] > 0}
    return Sensitivity(kept, values, decisive)


def options_of(plan: Plan) -> SolveOptions:
    """Return the options of a plan's problem."""
    known = {
        **plan.provenance,
        **{name: getattr(plan, name) for name in ("objective", "chunks", "chunk_order", "contiguous")},
    }
    if plan.batches:
        known |= {"inputs": plan.inputs, "transfers": plan.transfer_rule, "resident": plan.resident}
    names = {one.name for one in dataclasses.fields(SolveOptions)} - {"checkpoint", "memory_limit_bytes"}
    return SolveOptions(**{name: value for name, value in known.items() if name in names})


def robust_plan(plan: Plan, graph: Graph, hardware: Hardware, options: SolveOptions) -> Plan:
    """Return of a plan and others the one of least mean value over draws of the costs, with the first one's bound.

    Parameters
    ----------
    plan, graph, hardware, options
        As for `sensitivity`.
    """
    if plan.assignment is None:
        return plan
    found = sensitivity(plan, graph, hardware, options=options, seed=options.seed)
    if found.most_robust is plan:
        return dataclasses.replace(plan, notes=(*plan.notes, str(found)))
    other = _replanned(found.most_robust, graph, hardware, options, plan)
    said = (
        f"chosen for its mean over draws of the costs; the best at the costs as given has {format_seconds(plan.value)}"
    )
    return dataclasses.replace(other, notes=(*other.notes, said, str(found)))


def _search_from(plan: Plan, graph: Graph, hardware: Hardware, options: SolveOptions) -> tuple[Request, Form[Any]]:
    """Return a problem whose search knows the schedule of a plan, of whatever costs, and nothing else."""
    hardware = hardware if options.stages is None else hardware.with_stages(options.stages)
    own = dataclasses.replace(plan, graph_fingerprint=graph.fingerprint(), hardware_fingerprint=hardware.fingerprint())
    request = Request(graph, hardware, dataclasses.replace(options, agent="plan"), own)
    form = kind_of(options).form(request)
    form.search.incumbent.offer(form.search.start, "plan")
    return request, form


def _revalued(plan: Plan, graph: Graph, hardware: Hardware, options: SolveOptions) -> float:
    """Return the seconds that a plan's schedule takes on other costs of the same problem; inf where it has none."""
    values = _search_from(plan, graph, hardware, options)[1].search.incumbent.values
    return float("inf") if values is None else float(values[0])


def _replanned(plan: Plan, graph: Graph, hardware: Hardware, options: SolveOptions, best: Plan) -> Plan:
    """Return the plan of another plan's schedule, checked, with what was proven of the problem with the best one."""
    request, form = _search_from(plan, graph, hardware, options)
    incumbent = form.search.incumbent
    if best.bounds is not None:
        incumbent.take_over(best.bounds, best.bound_source, best.trusted)
    return checked_plan(Solved(incumbent, form.parts(incumbent), str(best.provenance["start"])), request)


def _draw(
    graph: Graph, hardware: Hardware, inputs: int, spread: float | None, draws: int, seed: int
) -> tuple[list[tuple[str, str]], FloatArray, list[Graph]]:
    """Return (kind, class) pairs, their (d, pairs) factors, and the graphs that have the drawn seconds."""
    kinds = {device.kind or device.name: device for device in hardware.devices}
    classes = np.array([op_class(kind) for kind in graph.kinds])
    pairs = [(kind, str(name)) for kind in kinds for name in np.unique(classes)]
    rng, factors, graphs = np.random.default_rng(seed), np.ones((draws, len(pairs))), []
    errors = {kind: cost_errors(graph, device) for kind, device in kinds.items()}
    sigma = np.array(
        [
            np.log1p(spread if spread is not None else float(errors[kind][classes == name].mean()))
            for kind, name in pairs
        ]
    )
    batches = sorted({size for _, size in graph.times} | set(range(1, inputs + 1)))
    plain = {
        (device.name, batch): op_times(graph, device, batch) / device.slowdown
        for device in hardware.devices
        for batch in batches
    }
    for draw in range(draws):
        factors[draw] = np.exp(sigma * rng.standard_normal(len(pairs)))
        of = dict(zip(pairs, factors[draw].tolist(), strict=True))
        times = {}
        for device in hardware.devices:
            scale = np.array([of[device.kind or device.name, str(name)] for name in classes])
            for batch in batches:
                seconds = plain[device.name, batch] * scale
                times[device.name, batch] = np.where(np.isinf(seconds), np.nan, seconds)
        graphs.append(dataclasses.replace(graph, times=times))
    return pairs, factors, graphs


def _schedule_of(plan: Plan) -> str:
    return repr(sorted((plan.assignment or {}).items()))
