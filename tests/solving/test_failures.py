"""A part of the search that fails is noted and passed over: what was found before it is never lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.budget import Budget
from rlinit.errors import CheckpointError, SolverFailure
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.placements.lowering import lower_placement
from rlinit.solving import placement_phases, placement_proofs, stage_bounds, stage_phases, stage_strategies
from rlinit.solving.common.incumbent import for_stages
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment
from tests.draws import draws
from tests.placement_cases import brute_force_placement
from tests.stage_cases import brute_force_memory


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts fail as they may for users."""
    monkeypatch.delenv("RLINIT_STRICT")


def layers(seed: int = 0, num_ops: int = 16) -> rlinit.Graph:
    """Return a wide graph with random costs, which no method of moments closes."""
    rng = np.random.default_rng(seed)
    ops = [
        (f"op{v}", {"time_s": float(rng.random()), "out_bytes": float(rng.random()), "param_bytes": float(v % 7)})
        for v in range(num_ops)
    ]
    edges = [(f"op{u}", f"op{v}") for v in range(num_ops) for u in {v - 3 - v % 5, v - 7} if u >= 0]
    return rlinit.Graph.build(ops, edges)


def failing(error: Exception) -> Callable[..., Any]:
    """Return a function that raises."""

    def fail(*_arguments: object, **_options: object) -> Any:
        raise error

    return fail


ERRORS = (
    SolverFailure("SCIP failed: SCIP: error in LP solver!"),
    Exception("SCIP: error in input data!"),
    ValueError("A_ub must not contain inf"),
    np.linalg.LinAlgError("Eigenvalues did not converge"),
    MemoryError(),
)


@pytest.mark.usefixtures("production")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_stage_plan_survives_every_exact_part(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, ideals and bounds that fail are notes in a plan that is whole, saved and loaded again."""
    for name in ("solve_ideals", "solve_pipeline_milp"):
        monkeypatch.setattr(stage_phases, name, failing(error))
    for name in ("interval_bound", "anchored_cut_bound", "spectral_bound", "guess_bound"):
        monkeypatch.setattr(stage_bounds, name, failing(error))
    graph, hardware = layers(), rlinit.Hardware.pipeline(4, bandwidth=2.0)
    for method, parts in (
        ("auto", ("few ideals", "bound intervals", "bound spectral", "all ideals")),
        ("warm", ("window of 1 levels", "bound spectral", "bound guess")),
    ):
        plan = rlinit.schedule(graph, hardware, method=method)
        rlinit.verify(plan, graph, hardware)
        assert plan.status == "feasible"
        assert plan.method in ("anneal", "fill", "agent", "natural")
        for part in parts:
            assert any(note.startswith(f"{part} failed") and type(error).__name__ in note for note in plan.notes), part


@pytest.mark.usefixtures("production")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["auto", "milp", "sweep"])
def test_a_placement_survives_every_exact_part(
    error: Exception, method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The heuristics' schedule is returned, and the notes say what failed."""
    for name in ("solve_split", "sweep_placements"):
        monkeypatch.setattr(placement_phases, name, failing(error))
    for name in ("solve_placement_milp", "solve_constraints", "DestructiveSearch"):
        monkeypatch.setattr(placement_proofs, name, failing(error))
    bounds = dict.fromkeys(PLACEMENT_BOUNDS, failing(error))
    monkeypatch.setattr(placement_proofs, "PLACEMENT_BOUNDS", bounds)
    hardware = rlinit.Hardware.mesh([rlinit.Device("one"), rlinit.Device("two")], 2.0)
    plan = rlinit.schedule(layers(), hardware, objective="latency", method=method)
    assert plan.status == ("no_solution" if method == "milp" else "feasible")
    assert any(note.startswith("bound path failed") for note in plan.notes)
    plan.save(tmp_path / "plan.json")
    assert rlinit.Plan.load(tmp_path / "plan.json").notes == plan.notes


@pytest.fixture
def many_ideals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no dynamic program, and no program of a small problem, close the gap before the bounds are asked."""
    monkeypatch.setattr(stage_strategies, "FEW_PLACES", 0)
    monkeypatch.setattr(stage_phases, "solve_ideals", lambda *_, **__: None)
    monkeypatch.setattr(stage_bounds, "interval_bound", lambda *_, lower, **__: lower)


@pytest.mark.usefixtures("production", "many_ideals")
def test_a_false_bound_is_dropped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound above the value does not close the gap, lose the plan, or stay in it; the others do."""
    monkeypatch.setattr(stage_bounds, "spectral_bound", lambda *_, **__: 1e9)
    graph, hardware = layers(), rlinit.Hardware.pipeline(4, bandwidth=2.0)
    plan = rlinit.schedule(graph, hardware)
    assert 0.0 < plan.bound <= plan.value
    assert any("1000000000.0" in note and "spectral" in note for note in plan.notes)
    rlinit.verify(plan, graph, hardware)


@pytest.mark.usefixtures("production")
def test_a_false_bound_is_dropped_when_a_schedule_refutes_it() -> None:
    """A bound that is false shows when a better schedule comes; what other methods proved stays."""
    problem = lower_stages(layers(), rlinit.Hardware.pipeline(2, bandwidth=2.0), "pipeline").problem
    incumbent = for_stages(problem, Budget(), 0.0, None)
    incumbent.raise_bound((1.0,), "true")
    incumbent.raise_bound((1e6,), "false")
    assert incumbent.bounds == (1e6,)
    stage = np.zeros(problem.num_nodes, np.int64)
    assert incumbent.offer(StageAssignment(stage, problem.stage_class), "test")
    assert (incumbent.bounds, incumbent.bound_source) == ((1.0,), "true")
    assert len(incumbent.notes) == 1


@pytest.mark.usefixtures("many_ideals")
def test_in_tests_a_false_bound_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict mode, which the tests run in, hides nothing."""
    monkeypatch.setattr(stage_bounds, "spectral_bound", lambda *_, **__: 1e9)
    with pytest.raises(SolverFailure, match="spectral"):
        rlinit.schedule(layers(), rlinit.Hardware.pipeline(4, bandwidth=2.0))


@pytest.mark.usefixtures("production", "many_ideals")
def test_a_proof_that_nothing_fits_is_refuted_by_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of infinity with a schedule at hand is a failure of that bound, not of the plan."""
    monkeypatch.setattr(stage_bounds, "spectral_bound", lambda *_, **__: np.inf)
    plan = rlinit.schedule(layers(), rlinit.Hardware.pipeline(4, bandwidth=2.0))
    assert plan.status in ("feasible", "optimal")
    assert any("nothing fits" in note for note in plan.notes)


@pytest.mark.usefixtures("production")
def test_what_the_caller_did_wrong_still_raises() -> None:
    """Checkpoints that cannot be read, and errors of a progress callback, are no failed parts."""
    graph, hardware = layers(), rlinit.Hardware.pipeline(3, bandwidth=2.0)
    with pytest.raises(CheckpointError):
        rlinit.schedule(graph, hardware, method="agent", agent="no/such.safetensors")
    with pytest.raises(KeyError, match="of the callback"):
        rlinit.schedule(graph, hardware, progress=failing(KeyError("of the callback")))


@pytest.mark.usefixtures("production")
def test_a_bound_that_fails_is_a_note() -> None:
    """`bound` returns what it has and says what failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_bounds, "spectral_bound", failing(ValueError("no convergence")))
        proven = rlinit.bound(layers(), rlinit.Hardware.pipeline(3, bandwidth=2.0), method="spectral")
    assert proven.bounds == (0.0,)
    assert "no convergence" in proven.notes[0]


@pytest.mark.usefixtures("production")
def test_a_link_without_limit_one_way_loses_no_plan() -> None:
    """Coefficients of 1e10 and infinite rates side by side: the plan is whole, and its bound is one."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        times = [{"x": float(rng.uniform(29, 49)), "y": float(rng.uniform(29, 49))} for _ in range(4)]
        ops: list[tuple[str, dict[str, Any]]] = [
            (f"op{v}", {"time_s": times[v], "out_bytes": 1.9e10 if v == 0 else 1.0}) for v in range(4)
        ]
        graph = rlinit.Graph.build(ops, [("op0", "op1"), ("op0", "op2"), ("op1", "op3"), ("op2", "op3")])
        bandwidth = np.array([[np.inf, np.inf], [1.0, np.inf]])
        hardware = rlinit.Hardware((rlinit.Device("x", "x"), rlinit.Device("y", "y")), bandwidth, np.zeros((2, 2)))
        best = brute_force_placement(lower_placement(graph, hardware, "latency").problem)
        for method in ("sweep", "auto"):
            plan = rlinit.schedule(graph, hardware, objective="latency", method=method)
            rlinit.verify(plan, graph, hardware)
            assert plan.bound <= best * (1 + 1e-9)
            assert plan.value >= best * (1 - 1e-9)
        assert rlinit.bound(graph, hardware, "latency", method="chain").value <= best * (1 + 1e-9)


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 2.0**40, 1e13, 1.1e14]),
    fractional=st.booleans(),
    method=st.sampled_from(["auto", "ideals", "milp", "anneal"]),
)
@settings(max_examples=draws(60), deadline=None)
def test_memory_of_any_size_is_compared_one_way(seed: int, scale: float, fractional: bool, method: str) -> None:
    """Peaks above 1e12 bytes and fractions of bytes: the plan stands, and closed ones have the brute-force value."""
    rng = np.random.default_rng(seed)
    n = 6

    def draw() -> float:
        return float(rng.random() * scale) if fractional else float(rng.integers(0, 4) + scale)

    ops = [(f"n{v}", {"time_s": 1.0, "param_bytes": draw(), "out_bytes": float(rng.integers(0, 9))}) for v in range(n)]
    edges = [(f"n{u}", f"n{v}") for u in range(n) for v in range(u + 1, n) if rng.random() < 0.35]
    graph = rlinit.Graph.build(ops, edges)
    hardware = rlinit.Hardware.pipeline(3, cache=scale if seed % 2 else float("inf"))
    plan = rlinit.schedule(graph, hardware, objective="memory", method=method)
    truth = brute_force_memory(lower_stages(graph, hardware, "memory").problem)
    assert plan.values is not None
    assert plan.values[0] >= truth[0] * (1 - 1e-12)
    if plan.status == "optimal":
        assert plan.values[0] == pytest.approx(truth[0], rel=1e-6, abs=0.0)


@pytest.mark.parametrize("method", ["auto", "split"])
@pytest.mark.parametrize("transfers", ["parallel", "exclusive"])
def test_blocks_of_which_one_fits_nowhere_prove_that_nothing_fits(method: Any, transfers: Any) -> None:
    """Three ops of which no two fit one of two memories: infeasible, not a plan with an infinite bound."""
    graph = rlinit.Graph.build(
        [
            ("a", {"time_s": 3.0, "param_bytes": 2, "out_bytes": 5}),
            ("b", {"time_s": 3.0, "param_bytes": 6, "out_bytes": 2}),
            ("c", {"time_s": 1.0, "out_bytes": 7}),
        ],
        [("b", "c")],
    )
    hardware = rlinit.Hardware.mesh([rlinit.Device(name, memory_bytes=14) for name in "xy"], 1.0)
    plan = rlinit.schedule(
        graph, hardware, objective="latency", method=method, transfers=transfers, resident="tensors", time_limit_s=5
    )
    assert plan.status == "infeasible"
    assert "memory" in plan.message
