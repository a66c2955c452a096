"""Checkpoints of a search: what is kept, what is gone on from, and what a kill loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from tests.properties import kills
from tests.properties.kills import MESH, STAGES, wide


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("latency", {}),
        ("throughput", {"inputs": 2}),
        ("pipeline", {}),
        ("pipeline", {"chunks": 2}),
        ("pipeline", {"activations": True}),
        ("pipeline", {"training": "1f1b", "microbatches": 4}),
        ("memory", {}),
    ],
)
def test_a_search_goes_on_from_its_checkpoint(objective: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """The file is the plan that came out, and a later call begins with its schedule and bound."""
    graph, path = wide(14), tmp_path / "saved.json"
    hardware = MESH if objective in ("latency", "throughput") else STAGES
    first = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=1.0, checkpoint=path, **options)
    saved = rlinit.Plan.load(path)
    assert (saved.values, saved.bounds) == (first.values, first.bounds)
    rlinit.verify(saved, graph, hardware)
    again = rlinit.schedule(graph, hardware, objective=objective, time_limit_s=0.5, checkpoint=path, **options)
    assert again.history[0].bounds == first.bounds
    assert again.values is not None
    assert first.values is not None
    assert again.values[0] <= first.values[0]
    assert (again.bounds or (0.0,))[0] >= (first.bounds or (0.0,))[0]


def test_the_solver_that_is_trusted_is_remembered(tmp_path: Path) -> None:
    """A bound that rests on SCIP's word rests on it after going on, too."""
    graph, path = wide(8), tmp_path / "saved.json"
    first = rlinit.schedule(graph, MESH, objective="latency", method="milp", checkpoint=path)
    assert first.trusted == ("scip",)
    again = rlinit.schedule(graph, MESH, objective="latency", method="heft", checkpoint=path)
    assert (again.status, again.trusted) == (first.status, ("checkpoint", "scip"))
    third = rlinit.schedule(graph, MESH, objective="latency", method="heft", checkpoint=path)
    assert (third.bound_source, third.trusted) == (again.bound_source, again.trusted)


@pytest.mark.parametrize("objective", ["latency", "pipeline"])
def test_a_bound_of_a_file_is_said_to_rest_on_it(objective: Any, tmp_path: Path) -> None:
    """Whoever raises the bound in the file gets it back by the file's word; what is proven anew rests on nothing."""
    graph, path = wide(14), tmp_path / "saved.json"
    hardware, method = (MESH, "heft") if objective == "latency" else (STAGES, "natural")
    asked: Any = {"objective": objective, "method": method, "checkpoint": path}
    first = rlinit.schedule(graph, hardware, **asked)
    assert first.bounds is not None
    assert first.values is not None
    assert first.bounds < first.values
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"bounds": first.values, "status": "optimal"}))
    forged = rlinit.schedule(graph, hardware, **asked)
    assert (forged.status, forged.trusted) == ("optimal", ("checkpoint",))
    path.write_text(json.dumps(written))
    again = rlinit.schedule(graph, hardware, **asked)
    assert (again.bounds, again.trusted) == (first.bounds, ())


@pytest.mark.parametrize(
    "damage",
    [
        {"bounds": []},
        {"bounds": [1.0, 2.0]},
        {"bounds": [1e9]},
        {"values": None, "assignment": None, "stages": [], "status": "no_solution", "bounds": [1e9, 1e9]},
        {"assignment": {f"op{v}": 99 for v in range(8)}},
        {"assignment": {f"op{v}": "x" for v in range(8)}},
    ],
)
def test_a_damaged_checkpoint_is_refused_in_a_line(damage: dict[str, Any], tmp_path: Path) -> None:
    """Too many levels, a bound above the value, a stage that is not there: the file is named, nothing crashes."""
    path = tmp_path / "saved.json"
    rlinit.schedule(wide(8), STAGES, checkpoint=path, method="natural")
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(RlinitError, match=r"saved\.json"):
        rlinit.schedule(wide(8), STAGES, checkpoint=path)


def test_layers_that_differ_are_another_problem(tmp_path: Path) -> None:
    """What may be recomputed as a whole decides the value, though the fingerprints of the graphs are equal."""

    def layered(module: str) -> rlinit.Graph:
        row = {"time_s": 1.0, "param_bytes": 1.0, "out_bytes": 8.0, "module": module}
        return rlinit.Graph.build([("a", row), ("b", row), ("c", row)], [("a", "b"), ("b", "c")])

    path = tmp_path / "saved.json"
    asked: Any = {"training": "1f1b", "microbatches": 4, "recompute": "all", "checkpoint": path}
    whole = rlinit.schedule(layered("layers.0.x"), Hardware.pipeline(1, bandwidth=1.0), **asked)
    assert whole.value > 3.0
    with pytest.raises(RlinitError, match="of another problem: layers"):
        rlinit.schedule(layered(""), Hardware.pipeline(1, bandwidth=1.0), **asked)


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    """Bounds are believed, so the problem has to be the same one."""
    path = tmp_path / "saved.json"
    rlinit.schedule(wide(8), MESH, objective="latency", method="heft", checkpoint=path)
    with pytest.raises(RlinitError, match="of another problem: graph"):
        rlinit.schedule(wide(9), MESH, objective="latency", checkpoint=path)
    with pytest.raises(RlinitError, match="of another problem: transfers"):
        rlinit.schedule(wide(8), MESH, objective="latency", transfers="exclusive", checkpoint=path)
    path.write_text("{")
    with pytest.raises(RlinitError, match=r"saved\.json"):
        rlinit.schedule(wide(8), MESH, objective="latency", checkpoint=path)


def test_a_file_that_cannot_be_written_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan comes all the same, and says that its checkpoint is not there."""
    monkeypatch.setattr(rlinit.Plan, "save", _full)
    plan = rlinit.schedule(wide(8), MESH, objective="latency", method="heft", checkpoint=tmp_path / "saved.json")
    assert plan.values is not None
    assert any("no space" in note for note in plan.notes)


def test_a_writing_that_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full for a moment costs one writing, not all that follow."""
    save, tried = rlinit.Plan.save, []

    def once(plan: rlinit.Plan, path: Path) -> None:
        tried.append(path)
        if len(tried) == 1:
            _full()
        save(plan, path)

    monkeypatch.setattr(rlinit.Plan, "save", once)
    path = tmp_path / "saved.json"
    plan = rlinit.schedule(wide(60), MESH, objective="latency", time_limit_s=1.5, checkpoint=path)
    assert len(tried) >= 2
    assert not any("checkpoint" in note for note in plan.notes)
    assert rlinit.Plan.load(path).values == plan.values


def _full(*_arguments: object) -> None:
    raise OSError("no space left on device")


def test_a_kill_loses_the_last_interval_at_most(tmp_path: Path) -> None:
    """Whenever the process is killed, the file holds a whole plan, as good as what was known an interval before."""
    kills.compile_search(kills.PROBLEMS[0])
    rng = np.random.default_rng()
    assert sum(
        kills.kill_search(tmp_path / "saved.json", kills.PROBLEMS[0], 1, rng.uniform(2.6, 3.6)) for _ in range(2)
    )
