"""A limit of memory: what would take more is given up and named, and there is a plan all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit import budget
from rlinit.errors import OutOfMemory, RlinitError
from rlinit.exact.solvers.lp_dual_bound import LinearProgram
from rlinit.exact.stages.ideals.enumeration import enumerate_ideals
from rlinit.hardware import Device, Hardware
from rlinit.stages.lowering import lower_stages
from tests.properties.kills import wide

MESH = Hardware.mesh([Device("x"), Device("y")], 1.0)
STAGES = Hardware.pipeline(3, bandwidth=1.0)


def antichain(num_ops: int) -> rlinit.Graph:
    """Return ops that nothing orders, with 2^n ideals."""
    return rlinit.Graph.build([(f"op{v}", {"time_s": 1.0 + v % 7, "out_bytes": 1.0}) for v in range(num_ops)], [])


@pytest.fixture
def grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process seem to have more memory at every look."""
    seen = iter(range(10**9))
    monkeypatch.setattr(budget, "resident_bytes", lambda: 1e6 * next(seen))


@pytest.mark.parametrize("objective", ["pipeline", "latency", "throughput"])
@pytest.mark.usefixtures("grows")
def test_there_is_a_plan_within_a_small_limit(objective: Any) -> None:
    """Phases that the memory ends are named, others run, and the plan is checked."""
    hardware = MESH if objective in ("latency", "throughput") else STAGES
    inputs: Any = {"inputs": 2} if objective == "throughput" else {}
    plan = rlinit.schedule(wide(60), hardware, objective=objective, time_limit_s=2.0, memory_limit_bytes=2e6, **inputs)
    assert plan.values is not None
    assert any("was given up" in note for note in plan.notes)
    assert not any("failed" in note for note in plan.notes)


def test_ideals_ask_before_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for some, those are tried; beyond, the memory is named."""
    monkeypatch.setattr(budget, "resident_bytes", lambda: 0.0)
    problem = lower_stages(antichain(16), STAGES, "pipeline").problem
    with budget.limited_memory(1e6), pytest.raises(OutOfMemory, match="ideals would take"):
        enumerate_ideals(problem, 2_000_000)
    with budget.limited_memory(1e8):
        found = enumerate_ideals(problem, 2_000_000)
    assert found is not None
    assert found.num_ideals > 10_000


def test_linear_programs_ask_before_they_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS knows no limit of memory, so it is not called beyond one."""
    from scipy.sparse import csr_matrix, eye_array

    monkeypatch.setattr(budget, "resident_bytes", lambda: 0.0)
    n = 1000
    ones, nothing = np.ones(n), csr_matrix((0, n))
    program = LinearProgram(ones, csr_matrix(eye_array(n)), ones, nothing, np.zeros(0), 0 * ones, ones)
    with budget.limited_memory(1e5), pytest.raises(OutOfMemory, match="linear program"):
        program.solve(1.0)
    with budget.limited_memory(1e7):
        assert program.solve(1.0).bound <= 0.0


def test_a_phase_is_given_up_alone() -> None:
    """Giving a phase up ends it and what is within it, and nothing else."""
    whole = budget.Budget(100.0)
    phase = whole.share(50.0, phase=True)
    part, inner = phase.share(10.0), phase.share(10.0, phase=True)
    inner.give_up()
    assert (inner.remaining_s, inner.stopped, part.stopped) == (0.0, True, False)
    phase.give_up()
    assert part.stopped
    assert not whole.stopped
    assert not part.cancelled
    whole.cancel()
    assert phase.cancelled


def test_the_process_knows_its_memory() -> None:
    """Figures are those of the machine, and a limit must be a number of bytes."""
    assert budget.resident_bytes() > 1e6
    assert budget.free_bytes() > 1e6
    assert budget.memory_left() == np.inf
    with budget.limited_memory(1e9):
        assert budget.memory_left() <= 1e9
    sized = rlinit.schedule(wide(4), MESH, objective="latency", memory_limit_bytes="2 MiB")
    assert sized.provenance["memory_limit_bytes"] == 2 * 2**20
    with pytest.raises(RlinitError, match="memory_limit_bytes is '2 miles'; expected bytes > 0 such as '16GB'"):
        rlinit.schedule(wide(4), MESH, objective="latency", memory_limit_bytes="2 miles")
    with pytest.raises(RlinitError, match="memory_limit_bytes is -1"):
        rlinit.schedule(wide(4), MESH, objective="latency", memory_limit_bytes=-1)
