"""What an incumbent says of the bounds it was given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.hardware import Device, Hardware
from rlinit.solving.common.incumbent import for_stages
from rlinit.solving.stage_bounds import bound_phase
from tests.stage_cases import brute_force_pipeline, random_problem


def chain(sizes: list[float]) -> rlinit.Graph:
    """Return a chain of ops of these seconds."""
    names = [f"op{v}" for v in range(len(sizes))]
    ops = [(name, {"time_s": size}) for name, size in zip(names, sizes, strict=True)]
    return rlinit.Graph.build(ops, list(itertools.pairwise(names)))


def test_bounds_by_solvers_are_called_trusted() -> None:
    """A bound that SCIP alone proves is said to rest on it, in the plan and its text; one by the package is not."""
    graph, hardware = chain([3.0, 2.0, 5.0, 4.0, 1.0, 6.5]), Hardware.pipeline(3)
    own = rlinit.schedule(graph, hardware, objective="pipeline", method="ideals")
    program = rlinit.schedule(graph, hardware, objective="pipeline", method="milp")
    assert (own.status, own.trusted) == ("optimal", ())
    assert program.status == "optimal"
    assert program.trusted == (("scip",) if program.bound_source == "milp" else ())
    assert ("(trusted: scip)" in str(program)) == bool(program.trusted)


@pytest.mark.parametrize("options", [{"chunks": 2}, {"training": "interleaved", "chunks": 2, "microbatches": 2}])
def test_a_relaxation_that_a_solver_finds_infeasible_rests_on_it(options: Any) -> None:
    """Three ops of which no device holds two fit nowhere by the word of SCIP, on whatever problem it was asked."""
    ops = [(name, {"time_s": 1.0, "param_bytes": 5.0, "out_bytes": 0.0}) for name in "abc"]
    graph = rlinit.Graph.build(ops, [("a", "b"), ("b", "c")])
    hardware = Hardware.mesh([Device("x", memory_bytes=9.0), Device("y", memory_bytes=9.0)], 1.0)
    if "training" in options:
        options = {**options, "optimizer": 1}
    plan = rlinit.schedule(graph, hardware, **options)
    assert (plan.status, plan.trusted) == ("infeasible", ("scip",))


@pytest.mark.parametrize("name", ["simple", "intervals", "convex-cover", "anchored-cut", "chain-order"])
def test_a_bound_that_is_given_back_still_rests_on_who_proved_it(name: str) -> None:
    """A method that only returns the bound it was told does not make it its own."""
    problem = random_problem(3, 7, 3)
    for source, trusted in (("lp-root", ("scip",)), ("", ("checkpoint",))):
        incumbent = for_stages(problem, Budget(5), 0.0, None)
        too_high = 1.2 * brute_force_pipeline(problem)
        if source:
            incumbent.raise_bound((too_high,), source)
        else:
            incumbent.take_over((too_high,), "simple", ())
        bound_phase(incumbent, name)
        assert incumbent.bounds == (too_high,)
        assert incumbent.trusted == trusted
