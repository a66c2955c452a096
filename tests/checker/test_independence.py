"""The checker shares no code with what it checks."""

from __future__ import annotations

import pytest

from tools.house import imported, library

FOREIGN = (
    "rlinit.solving",
    "rlinit.exact",
    "rlinit.kernels",
    "rlinit.heuristics",
    "rlinit.agent",
    "rlinit.stages",
    "rlinit.placements",
    "rlinit.simulation",
)


def reached(name: str) -> set[str]:
    """Return every module that a module imports, directly or by way of others, packages on the way as well."""
    known = library()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in seen or module not in known:
            continue
        seen.add(module)
        waiting += imported(known[module], known)
        parent = module.rpartition(".")[0]
        waiting += [parent] if parent != "rlinit" else []
    return seen


@pytest.mark.parametrize(
    "name", ["rlinit.checker", "rlinit.checker.stages", "rlinit.checker.placements", "rlinit.checker.training"]
)
def test_the_checker_imports_nothing_it_checks(name: str) -> None:
    """No solver, kernel, lowering or array form is imported, whatever the way."""
    modules = reached(name)
    assert {"rlinit.checker.form", "rlinit.costs.roofline", "rlinit.graph"} <= modules
    assert [module for module in sorted(modules) if module.startswith(FOREIGN)] == []


@pytest.mark.parametrize(
    "name", ["rlinit.stages.plan_fields", "rlinit.placements.plan_fields", "rlinit.stages.training.plan_fields"]
)
def test_plans_are_not_made_by_the_checker(name: str) -> None:
    """Figures of a plan come from the problem's arrays, so that the checker compares two computations."""
    assert [module for module in sorted(reached(name)) if module.startswith("rlinit.checker")] == []
