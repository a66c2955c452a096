"""Solving pipelines whose stages may have several devices: replicas, tensor groups and variants of ops.

The dynamic program over ideals is exact; where there are too many ideals, stages are runs of two orders, and the
bound is that of all devices at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np

from rlinit.budget import SIDE_SHARE, Budget
from rlinit.comparison.baselines import OUT_OF_TIME, Baseline
from rlinit.errors import RlinitError
from rlinit.exact.stages.groups.search import (
    area_bound,
    depth_first,
    ideals_of,
    missing_bytes,
    prefixes_of,
    restricted,
    solve_groups,
)
from rlinit.exact.stages.ideals.enumeration import Ideals
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.limits import check_number
from rlinit.plan import Exchange, GroupRules
from rlinit.solving.common.incumbent import Incumbent
from rlinit.solving.common.options import SolveOptions, groups_devices
from rlinit.solving.phases import Condition, Form, Kind, Phase, Strategy
from rlinit.solving.plans import Request
from rlinit.stages.groups.lowering import lower_groups
from rlinit.stages.groups.plan_fields import group_parts
from rlinit.stages.groups.problem import GroupedStages, GroupProblem, group_value, least_of_rows
from rlinit.stages.groups.traced_menus import with_traced_menu
from rlinit.units import format_bytes


@dataclass(slots=True)
class GroupsSearch:
    """What the phases share.

    Parameters
    ----------
    incumbent
        The best plan and bound so far.
    options
        What was asked for.
    too_many
        Whether there turned out to be too many ideals, or too little time for them.
    start, origin
        No plan is refined.
    """

    incumbent: Incumbent[GroupProblem, GroupedStages]
    options: SolveOptions
    too_many: bool = False
    start: None = None
    origin: str = "none"


def _cases(search: GroupsSearch) -> Iterator[GroupProblem]:
    """Yield the problem, or with `uniform` that of each degree and number of replicas."""
    problem = search.incumbent.problem
    if not search.options.uniform:
        yield problem
        return
    for degree, d in product(np.unique(problem.degrees).tolist(), problem.replicas.tolist()):
        case = restricted(problem, degree, d)
        if not _lacks_variants(case):
            yield case


def _lacks_variants(case: GroupProblem) -> bool:
    """Return whether some op has no variant in any form of a case, so that no plan has it."""
    return not least_of_rows(case, case.time_s)[1].any(axis=0).all()


def _solve(search: GroupsSearch, ideals: Ideals, name: str, *, all_ideals: bool) -> None:
    """Close the gap over some ideals; bounds count where they are all there are."""
    incumbent, bounds, complete = search.incumbent, list[float](), True
    known = incumbent.bounds[0] if incumbent.bounds else 0.0
    offer = partial(incumbent.offer, method=name)

    def prove(bound: float) -> None:
        if all_ideals and not search.options.uniform:
            incumbent.raise_bound((bound,), name)

    for problem in _cases(search):
        upper = incumbent.values[0] if incumbent.values else np.inf
        lower = max(known, area_bound(problem)) if all_ideals else area_bound(problem)
        if lower >= upper:
            bounds.append(lower)
            continue
        result = solve_groups(
            problem, ideals, lower=lower, upper=upper, budget=incumbent.budget, on_solution=offer, on_bound=prove
        )
        complete = complete and result.status in ("optimal", "infeasible")
        bounds.append(result.bound[0])
    if not all_ideals:
        return
    if complete and incumbent.values is None:
        incumbent.prove_infeasible(_why(search, ideals), name)
    else:
        incumbent.raise_bound((min(bounds),), name)


def _why(search: GroupsSearch, ideals: Ideals) -> str:
    problem, options = search.incumbent.problem, search.options
    what = f"no plan of at most {problem.num_devices} devices fits"
    alone = len(problem.kinds) == 1
    memory = f"each device's {format_bytes(float(problem.memory_bytes.max()))} of memory" if alone else "their memory"
    needs = [
        f"{format_bytes(size)} more" + ("" if alone else f" on each {kind}")
        for k, kind in enumerate(() if options.uniform else problem.kinds)
        if (size := missing_bytes(problem, ideals, Budget(5.0), k)) is not None
    ]
    return f"{what} {memory}" + (f"; {' or '.join(needs)} would do" if needs else "")


def _runs(search: GroupsSearch) -> None:
    with search.incumbent.in_phase("runs of an order"):
        problem = search.incumbent.problem
        natural, deep = problem.structure.order, depth_first(problem)
        for order in [natural] if np.array_equal(natural, deep) else [natural, deep]:
            _solve(search, prefixes_of(problem, order), "runs of an order", all_ideals=False)


def _all(search: GroupsSearch) -> None:
    incumbent = search.incumbent
    if incumbent.finished:
        return
    with incumbent.in_phase("ideals"):
        ideals = ideals_of(incumbent.problem, incumbent.budget)
        if ideals is None:
            search.too_many = True
            incumbent.note = (
                "there are too many sets of ops for the exact method; the bound is that of all devices at work"
            )
        else:
            _solve(search, ideals, "ideals", all_ideals=True)


_IDEALS = Phase("ideals", _all, because="exact (benchmarks.papers.piper); ledger: 0.57 (0.38 to 0.80) on 10 problems")

_TOO_MANY: Condition[GroupsSearch] = Condition("there are too many ideals", lambda search: search.too_many)

GROUP_METHODS: dict[str, Strategy[GroupsSearch]] = {
    "auto": (
        _IDEALS,
        Phase("runs of an order", _runs, when=(_TOO_MANY,), because="else all ideals are as soon at the best of them"),
    ),
    "ideals": (_IDEALS,),
}
"""Phases by method, and by bound."""


def group_baselines(search: GroupsSearch) -> list[Baseline[GroupedStages]]:
    """Return what pure data parallelism, a pure pipeline, tensor groups alone, Megatron's rule and one shape give.

    Parameters
    ----------
    search
        The search.

    Notes
    -----
    Stages of the rules are runs of the natural order, cut as well as they can be; once one has a plan, the others get a
    share of the time.
    """
    problem, rows = search.incumbent.problem, list[Baseline[GroupedStages]]()
    divides, degrees = problem.microbatches % problem.replicas == 0, np.unique(problem.degrees).tolist()
    divisors = problem.replicas[divides].tolist()
    least, last = degrees[0], degrees[-1]
    shapes = {(degree, d): restricted(problem, degree, d) for degree in degrees for d in divisors}
    alone = np.diag(problem.counts)
    most = {k: d for k, counts in enumerate(alone) for d in divisors if d * least <= counts.sum()}
    apart = replace(
        problem, replicas=problem.replicas[divides], gradient_share=problem.gradient_share[:, divides],
        mixes=problem.mixes[:0], mix_s=problem.mix_s[:, :0],
    )  # fmt: skip
    rules: dict[str, list[GroupProblem]] = {
        "data parallel": [replace(shapes[least, d], counts=np.minimum(alone[k], d * least)) for k, d in most.items()],
        "pipeline": [case for shape, case in shapes.items() if shape == (least, 1)],
        "tensor groups": [case for shape, case in shapes.items() if shape == (last, 1)],
        "Megatron's rule": [shapes[last, d] for d in divisors],
        "uniform": list(shapes.values()),
    }
    if len(alone) > 1 and not search.options.uniform:
        rules |= {
            f"{kind} alone": [replace(apart, counts=counts)] for kind, counts in zip(problem.kinds, alone, strict=True)
        }
    if len(problem.mixes):
        rules["one kind a stage"] = [apart]
    runs, solved, budget = prefixes_of(problem), dict[int, GroupedStages](), search.incumbent.budget
    part = budget.share(SIDE_SHARE * budget.remaining_s)
    for name, cases in rules.items():
        best: GroupedStages | None = None
        value, tight = float("inf"), list[GroupProblem]()
        for case in cases:
            fewest = int(case.degrees[0] * case.replicas[0])
            if _lacks_variants(case) or fewest > case.counts.max():
                continue
            budget = part if solved else budget
            if budget.expired:
                break
            tight.append(case)
            low, plan = area_bound(case), solved.get(id(case))
            if low < value and plan is None:
                plan = solve_groups(case, runs, lower=low, upper=value, budget=budget).assignment
            if plan is not None and (seconds := group_value(problem, plan)[0]) < value:
                best, value, solved[id(case)] = plan, seconds, plan
        note = f"tensor degree {cases[0].degrees[0]}" if cases and name in _OF_ONE_DEGREE else ""
        if best is None:
            rows.append(Baseline(name, None, None, OUT_OF_TIME if budget.expired else _why_not(tight, runs, note)))
        else:
            rows.append(Baseline(name, best, value, note))
            if search.options.keeps_best:
                search.incumbent.offer(best, name)
    return rows


_OF_ONE_DEGREE = ("data parallel", "tensor groups", "Megatron's rule")
"""Rules whose tensor degree is said with them."""

_WHY_S = 0.5
"""Seconds in which the bytes that a rule's plan lacks are looked for."""


def _why_not(cases: Sequence[GroupProblem], runs: Ideals, note: str) -> str:
    """Return why a rule has no plan, by its fewest and its most replicas, after what is said of the rule."""
    budget = Budget(_WHY_S)
    missing = [missing_bytes(case, runs, budget) for case in cases[:: max(1, len(cases) - 1)]]
    lacks = [size for size in missing if size is not None]
    why = "it does not fit" if cases else "no stage may be so"
    if lacks:
        why += f": {format_bytes(min(lacks))} a device are missing"
    return f"{note}, {why}" if note else why


def _note(graph: Graph) -> dict[str, Any]:
    """Return what the graph's first op notes of what is asked for."""
    noted = graph.extras.get(0, {}).get("note")
    return noted if isinstance(noted, dict) else {}


def with_menu(graph: Graph, hardware: Hardware, options: SolveOptions, costs: Any = None) -> Graph:
    """Return the graph that is planned: with a menu made for stages of several devices, where no op has one.

    Parameters
    ----------
    graph, hardware, options
        What is asked for.
    costs
        As for `schedule`.

    Raises
    ------
    InvalidGraph, InvalidHardware
        As for `with_traced_menu`.
    """
    if not groups_devices(options) or graph.menu is not None:
        return graph
    again, optimizer = options.recompute != "none", options.optimizer
    return with_traced_menu(
        graph, hardware, training=options.training, recompute=again, optimizer=optimizer, costs=costs
    )


def rules_of(request: Request) -> GroupRules:
    """Return what stages may be: as was asked for, else as the graph's first op notes.

    A note has `training` and `microbatches`, which options replace, `exchange` and `workspace_bytes`.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    RlinitError
        Training without micro-batches; an exchange, or bytes by degree, that are none.
    """
    options, graph = request.options, request.graph
    noted = _note(graph)
    if options.optimizer not in ("adam", noted.get("optimizer")):
        raise RlinitError("optimizer: the menus of ops say what is held (--optimizer)")
    training = options.training or (str(noted.get("training", "")) if options.training is None else "")
    count = options.microbatches or noted.get("microbatches") or (None if training else request.hardware.num_devices)
    if count is None:
        raise RlinitError("microbatches is None; expected the number of parts of a batch, such as 64 (--microbatches)")
    workspace = noted.get("workspace_bytes", {})
    if not isinstance(workspace, Mapping):
        raise RlinitError(f"workspace_bytes is {workspace!r}; expected bytes by degree")
    exchange, known = noted.get("exchange", "ring"), get_args(Exchange)
    if exchange not in known:
        raise RlinitError(f"note of the graph: exchange is {exchange!r:.40}; expected one of {', '.join(known)}")
    plain = options.training is None and training
    return GroupRules(
        training,
        int(count),
        0 if options.replicas in ("auto", "mixed") else int(options.replicas),
        0 if options.tensor_parallel == "auto" else int(options.tensor_parallel),
        options.uniform,
        "auto" if plain and options.recompute == "none" else options.recompute,
        exchange,
        {str(t): check_number("workspace_bytes", size, RlinitError) for t, size in workspace.items()},
        options.replicas == "mixed",
    )


def group_form(request: Request) -> Form[GroupsSearch]:
    """Return pipelines of stages of several devices, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    RlinitError
        A plan to refine, or a checkpoint, which these pipelines do not take.
    """
    graph, hardware, options = request.graph, request.hardware, request.options
    if request.plan is not None or options.checkpoint is not None or options.refine is not None:
        raise RlinitError(
            "stages of several devices are planned from nothing (without --agent, --checkpoint, --refine)"
        )
    rules = rules_of(request)
    lowered = lower_groups(graph, hardware, rules)
    incumbent = Incumbent(lowered.problem, group_value, request.budget, options.gap, request.progress)
    incumbent.raise_bound((area_bound(lowered.problem),), "area")
    incumbent.notes += [str(said) for said in _note(graph).get("replicated", ())]
    return Form(
        GroupsSearch(incumbent, options),
        "",
        lambda search: GROUP_METHODS[search.options.method],
        lambda known: group_parts(known.assignment, lowered, rules, graph, hardware),
        group_baselines,
    )


GROUPS = Kind(group_form, tuple(GROUP_METHODS), (), "stages", lambda: GROUP_METHODS)
