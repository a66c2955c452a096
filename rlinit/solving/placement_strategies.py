"""Strategies of placement problems: what each method does, its phases, their shares of the time left, and when.

*Ledger* beside a phase: the integral of the gap over 1 s, with it over without it (``benchmarks.ledger --problem
placements``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from rlinit.coarsening.contraction import coarsen, contract_problem, expand_placement
from rlinit.comparison.baselines import Baseline
from rlinit.comparison.placements import placement_baselines
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.exact.placements.split.search import MAX_BLOCK_OPS
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.heuristics.placements.memory.peak_memory import PeakMemory
from rlinit.heuristics.placements.memory.peak_relief import has_few_schedules
from rlinit.placements.lowering import LoweredPlacement, lower_placement
from rlinit.placements.plan_fields import placement_from_plan, placement_parts
from rlinit.placements.ports import carriers
from rlinit.placements.problem import Placement
from rlinit.solving import placement_phases as phases
from rlinit.solving import placement_proofs as proofs
from rlinit.solving.common.incumbent import PlacementIncumbent, for_placement
from rlinit.solving.phases import NO_SCHEDULE, TIMED, Condition, Form, Kind, Phase, Strategy, follow, sequence
from rlinit.solving.placement_phases import PlacementSearch, run_heuristic
from rlinit.solving.placement_proofs import MAX_CONSTRAINT_OPS, bound_phase, has_constraints
from rlinit.solving.plans import Request

_FEW_OPS = 60
"""Ops up to which CP-SAT goes first, and (times shards) the full program is worth its time, unless asked for by name.
"""

_EASY_BLOCK_OPS = 24
"""Ops of the largest block up to which blocks are mostly searched to the end, which leaves nothing to do."""

_CONSTRAINT_PAIRS = 3_000
"""Pairs of an op and a device that may run it up to which CP-SAT is tried: more take seconds to write down alone."""


def _num_timed(search: PlacementSearch) -> int:
    """Return the number of ops, without those that start when the op before them ends (`carriers`)."""
    return int((carriers(search.problem) < 0).sum())


def _easy(search: PlacementSearch) -> bool:
    parallel = search.problem.transfers == "parallel"
    return search.largest_block <= _EASY_BLOCK_OPS and not search.memory_binds and parallel


_NO_PLAN: Condition[PlacementSearch] = Condition(
    "no plan of this problem was given to refine", lambda search: search.origin != "plan"
)
_FREE_AGENT: Condition[PlacementSearch] = Condition(
    "the agent is not named", lambda search: search.options.agent == "auto"
)
_UNTIMED: Condition[PlacementSearch] = Condition("there is no time limit", lambda search: not search.options.timed)
_ONE_SHARD: Condition[PlacementSearch] = Condition("no op is split", lambda search: search.problem.num_shards == 1)
_SHARDS: Condition[PlacementSearch] = Condition(
    "ops are split into shards", lambda search: search.problem.num_shards > 1
)
_BINDS: Condition[PlacementSearch] = Condition("memory binds", lambda search: search.memory_binds)
_FEW_SCHEDULES: Condition[PlacementSearch] = Condition(
    "live tensors fill a device, few ops and choices of devices",
    lambda search: search.tensors_bind and has_few_schedules(search.problem),
)
_FULL: Condition[PlacementSearch] = Condition("live tensors fill a device", lambda search: search.tensors_bind)
_EASY: Condition[PlacementSearch] = Condition(
    f"blocks of at most {_EASY_BLOCK_OPS} ops, memory that does not bind, no queues", _easy
)
_NOT_EASY: Condition[PlacementSearch] = Condition(f"not: {_EASY.text}", lambda search: not _easy(search))
_BLOCKS: Condition[PlacementSearch] = Condition(
    f"blocks of at most {MAX_BLOCK_OPS} ops", lambda search: search.largest_block <= MAX_BLOCK_OPS
)
_SMALL_PROGRAM: Condition[PlacementSearch] = Condition(
    f"at most {_FEW_OPS} ops times shards",
    lambda search: search.problem.num_ops * search.problem.num_shards <= _FEW_OPS,
)

_UNTIMED_OR_SMALL: Condition[PlacementSearch] = Condition(
    f"{_UNTIMED.text}, or {_SMALL_PROGRAM.text}", lambda search: _UNTIMED.holds(search) or _SMALL_PROGRAM.holds(search)
)

_CONSTRAINTS: Condition[PlacementSearch] = Condition(
    f"OR-Tools is there, no op is split, at most {_CONSTRAINT_PAIRS:,} pairs of op and device",
    lambda search: has_constraints(search) and np.isfinite(search.problem.op_time_s).sum() <= _CONSTRAINT_PAIRS,
)
_FEW: Condition[PlacementSearch] = Condition(
    f"at most {_FEW_OPS} ops with a time", lambda search: _num_timed(search) <= _FEW_OPS
)
_MIDDLING: Condition[PlacementSearch] = Condition(
    f"more than {_FEW_OPS} and at most {MAX_CONSTRAINT_OPS} ops with a time",
    lambda search: _FEW_OPS < _num_timed(search) <= MAX_CONSTRAINT_OPS,
)


def _bound(name: str, late: bool = False) -> Callable[[PlacementSearch], None]:
    """Return the phase of one bound."""

    def run(search: PlacementSearch) -> None:
        bound_phase(search.incumbent, name, late)

    return run


def _heuristic(name: str) -> Callable[[PlacementSearch], None]:
    """Return the phase of one heuristic, where the schedule then comes from."""

    def run(search: PlacementSearch) -> None:
        run_heuristic(search, name)
        search.origin = name

    return run


_CLOSING = (
    Phase(
        "bound around",
        _bound("around"),
        because="holds path and load: the load before an op, its time, and the load after it",
    ),
    Phase("bound joined", _bound("joined"), because="the linear program with what the chain proves"),
)
"""Bounds on the full problem that hold the others, the cheapest first."""

_PATH = Phase("bound path", _bound("path", late=True), because="linear time; runs however short the limit is")
"""What every method begins with."""

_LOAD = Phase(
    "bound load",
    _bound("load", late=True),
    because="closes the gap where devices are busy all the time; where the limit is over, by the first weights; "
    "ledger: 0.96 (0.89 to 1.02) on 37 problems",
)

_OPENING: Strategy[PlacementSearch] = (
    Phase(
        "coarse schedule",
        phases.named_start,
        when=(_NO_PLAN,),
        because="the best of two heuristics, a few milliseconds; ledger: 0.89 (0.76 to 1.01) on 37 problems",
    ),
    Phase(
        "learned agent",
        phases.auto_agent,
        when=(_NO_PLAN, _FREE_AGENT),
        because="over 1 s the primal integral is 48% smaller, the value 0.9% better, and 76% and 5% where transfers "
        "exclude each other or block devices; over 0.1 s 33% and 3.0% (benchmarks.learning.strategy latency-agent); "
        "ledger: 0.92 (0.88 to 0.95) on 37 problems",
    ),
)

_COARSE: Strategy[PlacementSearch] = (*_OPENING, _LOAD)

_AUTO: Strategy[PlacementSearch] = (
    *_OPENING,
    Phase(
        "first search",
        partial(phases.local_search, moves=phases.FIRST_MOVES),
        0.5,
        (TIMED, _ONE_SHARD),
        because="over 1 s the primal integral is 24% smaller than with the loads first, which take as long "
        "(benchmarks.learning.strategy first-search); ledger: 1.01 (0.96 to 1.06) on 34 problems",
    ),
    _LOAD,
    Phase(
        "every schedule",
        phases.every_schedule,
        0.3,
        (_FEW_SCHEDULES,),
        because="searches and programs know live tensors by estimates or not at all: 6% of problems of 2 to 6 ops "
        "with the memory of a random schedule had no plan (tests.properties.fuzz)",
    ),
    Phase(
        "trial makespans",
        proofs.trials,
        0.2,
        (_FEW, _ONE_SHARD),
        because="closes 53 of 88 graphs of 10 to 30 tasks with communication, each within a second "
        "(benchmarks.families.task_graphs communication)",
    ),
    Phase(
        "constraint program",
        proofs.constraint_program,
        0.5,
        (_FEW, _CONSTRAINTS),
        because="proves graphs of 10 to 30 tasks on 2 to 16 processors in 0.02 s (benchmarks.families.task_graphs)",
    ),
    Phase(
        "bound flow",
        _bound("flow"),
        0.1,
        (_ONE_SHARD,),
        because="dual ascent: after 0.1 s 1.4% above what the linear program proves in as long, and about where that "
        "is after 1 s (benchmarks.learning.multipliers); ledger: 0.93 (0.86 to 0.98) on 32 problems",
    ),
    Phase(
        "splits by loads",
        phases.load_splits,
        0.4,
        (_BINDS, _SHARDS),
        because="moves of single shards stall where devices are full; multipliers price their memory "
        "(benchmarks.papers.diviml --part table4 --inputs 128)",
    ),
    Phase("local search", phases.local_search, 0.05, (_EASY,), because="blocks will be searched to the end"),
    Phase(
        "local search",
        phases.local_search,
        0.2,
        (_NOT_EASY,),
        because="most of what it finds comes early (benchmarks.papers.diviml --part table1); bounds prune by its "
        "value; ledger: 0.92 (0.88 to 0.96) on 35 problems",
    ),
    Phase(
        "blocks",
        phases.single_op_blocks,
        0.7,
        (_BLOCKS, _EASY),
        because="exact where blocks are searched to the end: 30 of 30 networks in 2.4 s at most "
        "(benchmarks.papers.diviml --part small)",
    ),
    Phase(
        "constraint program",
        proofs.constraint_program,
        0.5,
        (_MIDDLING, _CONSTRAINTS),
        because="from a good schedule it closes 100 tasks, and flexible job shops of 240 operations, in seconds "
        "(benchmarks.families.task_graphs); ledger, 10 s: 0.56 (0.46 to 0.67) on 2 problems, both proven by it alone",
    ),
    Phase(
        "blocks",
        phases.single_op_blocks,
        0.35,
        (_BLOCKS, _NOT_EASY),
        because="bounds the whole even where it is not exact; ledger: 0.92 (0.84 to 0.98) on 16 problems",
    ),
    sequence("bounds around and joined", _CLOSING, 0.45, (_UNTIMED_OR_SMALL,), because="they hold all others"),
    Phase("full program", proofs.full_program, when=(_SMALL_PROGRAM,), because="closes only on few ops"),
    Phase(
        "search and bounds by turns",
        proofs.by_turns,
        when=(TIMED,),
        inside=lambda search: (proofs.TURNS, search),
        because="which of value and bound is weak depends on the graph: networks with cells of two inputs, and "
        "randomly wired ones, need most of the time for the bound (benchmarks.families.placements imported); "
        "ledger: 0.99 (0.98 to 1.01) on 34 problems",
    ),
)

PLACEMENT_METHODS: dict[str, Strategy[PlacementSearch]] = {
    "auto": _AUTO,
    "agent": (_LOAD, Phase("learned agent", phases.learned, because="it was asked for by name")),
    "sweep": (*_COARSE, Phase("local search", phases.local_search, because="it was asked for by name")),
    "milp": (_LOAD, Phase("full program", proofs.full_program, because="it was asked for by name")),
    "split": (
        _LOAD,
        Phase("heuristic heft", _heuristic("heft"), because="its value leaves out what cannot matter in a block"),
        Phase("blocks", phases.split_blocks, because="it was asked for by name"),
    ),
    "cp-sat": (_LOAD, Phase("constraint program", proofs.constraint_program, because="it was asked for by name")),
}
"""Methods of several phases by name."""

_RELIEF = Phase(
    "relief of memory",
    phases.relieve_memory,
    when=(NO_SCHEDULE, _FULL),
    because="moving ops off overfull devices finds a schedule where no method did",
)
"""What every method ends with."""


def _bounding() -> dict[str, Strategy[PlacementSearch]]:
    """Return the phases of each bound by name."""
    named = {name: (Phase(f"bound {name}", _bound(name)),) for name in PLACEMENT_BOUNDS}
    return {"auto": tuple(phase for (phase,) in named.values()), **named}


def placement_strategy(method: str) -> Strategy[PlacementSearch]:
    """Return the phases of a method: one of `PLACEMENT_METHODS`, or a heuristic alone, after the cheapest bounds."""
    heuristic = Phase(f"heuristic {method}", _heuristic(method), because="it was asked for by name")
    return (_PATH, *PLACEMENT_METHODS.get(method, (_LOAD, heuristic)))


def placement_form(request: Request) -> Form[PlacementSearch]:
    """Return placements, for latency and throughput, as the driver takes them.

    Parameters
    ----------
    request
        What is asked for.
    """
    graph, hardware, options, plan = request.graph, request.hardware, request.options, request.plan
    objective: Literal["latency", "throughput"] = "throughput" if options.objective == "throughput" else "latency"
    lowered = lower_placement(
        graph, hardware, objective, inputs=options.inputs, transfers=options.transfers, resident=options.resident
    )
    problem = lowered.problem
    refined = None if lowered.infeasible else plan
    options = options if plan is None else dataclasses.replace(options, agent="auto")
    start = None if refined is None else placement_from_plan(refined, problem, graph, hardware)
    peak = None if lowered.live is None else PeakMemory(problem, lowered.live)
    incumbent = for_placement(problem, request.budget, options.gap, request.progress, peak)

    def parts(known: PlacementIncumbent) -> dict[str, Any]:
        said: dict[str, Any] = {"inputs": options.inputs or 1, "shard_inputs": problem.shard_inputs}
        said |= {"transfer_rule": options.transfers, "resident": options.resident}
        if known.assignment is not None:
            said |= placement_parts(problem, known.assignment, graph, hardware, lowered.live)
        return said

    search = PlacementSearch.of(incumbent, options, start, peak)
    prints = (graph.fingerprint(), hardware.fingerprint())
    if plan is not None and (plan.graph_fingerprint, plan.hardware_fingerprint) != prints:
        search.origin = "plan of another problem"
    return Form(
        search,
        lowered.infeasible,
        partial(_checked_strategy, graph),
        parts,
        partial(_baselines, lowered, graph, hardware),
    )


def _baselines(
    lowered: LoweredPlacement, graph: Graph, hardware: Hardware, search: PlacementSearch
) -> list[Baseline[Placement]]:
    """Return the baselines; where the plan may be one, the search begins with the best of them."""
    incumbent, found = search.incumbent, []
    for one in placement_baselines(incumbent.problem, graph, hardware, incumbent.budget, lowered.live):
        found.append(one)
        if search.options.keeps_best:
            incumbent.offer(one.schedule, one.name)
    return found


def _checked_strategy(graph: Graph, search: PlacementSearch) -> Strategy[PlacementSearch]:
    """Return the phases of the method that was asked for, which takes the problem."""
    _check_method(search)
    options = search.options
    return (*(_coarse_strategy(graph) if options.coarsen else placement_strategy(options.method)), _RELIEF)


def _check_method(search: PlacementSearch) -> None:
    if search.options.method == "cp-sat":
        proofs.check_constraints(search)


def _coarse_strategy(graph: Graph) -> Strategy[PlacementSearch]:
    """Return the phases of a search of the coarse problem, which bounds the whole one.

    What is proven about the coarse problem holds for schedules that keep fused ops together, so none of it is taken.
    """

    def search_coarse(search: PlacementSearch) -> None:
        incumbent = search.incumbent
        with incumbent.in_phase("coarsen"):
            coarse = coarsen(graph, chains=True, max_bytes=float(incumbent.problem.capacity_bytes.max()))
            problem = contract_problem(coarse, incumbent.problem)
        method = "sweep" if search.options.method == "auto" else search.options.method
        options = dataclasses.replace(search.options, method=method)
        with incumbent.in_phase(f"search of {problem.num_ops} coarse ops"):
            inner = for_placement(problem, incumbent.budget, incumbent.target_gap, None)
            inner_search = PlacementSearch.of(inner, options, None)
            _check_method(inner_search)
            follow(placement_strategy(method), inner_search)
            search.origin = inner_search.origin
            incumbent.notes += inner.notes
            if inner.assignment is not None:
                incumbent.offer(expand_placement(coarse, incumbent.problem, inner.assignment), f"coarse {inner.method}")

    return (
        Phase("search of the coarse problem", search_coarse, 0.6, because="it has a fraction of the ops"),
        Phase(
            "coarse schedule",
            phases.named_start,
            when=(NO_SCHEDULE,),
            because="what is fused may fit no device beside the rest, though its ops do",
        ),
        _PATH,
        _LOAD,
        sequence("bounds around and joined", _CLOSING, because="nothing proven of the coarse problem holds"),
    )


PLACEMENTS = Kind(
    placement_form, (*PLACEMENT_METHODS, *PLACEMENT_HEURISTICS), PLACEMENT_HEURISTICS, "latency", _bounding
)
