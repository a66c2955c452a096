"""What an incumbent says of the bounds it was given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import rlinit
from rlinit.hardware import Device, Hardware


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
