"""Configurations: files, flags, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinit.errors import InvalidConfig
from rlinit.train.core.config import TrainConfig, config_from_dict, config_to_dict, read_config, smoke
from rlinit.train.run import main
from rlinit.train.tasks import protocol
from tests.late import late_imports
from tests.train.tiny_task import TinyParams

with late_imports():
    from rlinit.train.core.run_state import Progress
    from rlinit.train.report import write_report
    from tests.train.runs import tiny_config


@pytest.fixture(autouse=True)
def tiny_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make "stages" mean the tiny task."""
    monkeypatch.setitem(protocol.TASKS, ("stages", "oneshot"), "tests.train.tiny_task:TinyTask")


def test_plain_data_round_trip(tmp_path: Path) -> None:
    """A configuration written as JSON and read again is the same one."""
    config = tiny_config(tmp_path, minutes=2.5, algorithm="ppo")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_to_dict(config)))
    assert read_config(path) == config


def test_toml_sets_nested_fields(tmp_path: Path) -> None:
    """Tables of the TOML are the nested dataclasses; whole numbers do for floats."""
    path = tmp_path / "run.toml"
    path.write_text(
        'algorithm = "imitation"\nminutes = 3\n[curriculum]\nsizes = [30, 60]\n[problem]\nhidden = 5\n[optimiser]\n'
        "learning_rate = 1\n"
    )
    config = read_config(path)
    assert config.algorithm == "imitation"
    assert config.minutes == 3.0
    assert config.curriculum.sizes == (30, 60)
    assert config.problem == TinyParams(hidden=5)
    assert config.optimiser.learning_rate == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepz = 3", "there is no stepz"),
        ("[optimiser]\nlr = 0.1", "there is no optimiser.lr"),
        ("[problem]\nwidth = 3", "there is no problem.width"),
        ('steps = "many"', "steps is 'many'; expected int"),
        ("steps = true", "steps is True"),
        ("steps = 0", "steps is 0; expected at least 1"),
        ('algorithm = "magic"', "expected one of imitation, reinforce, ppo"),
        ('precision = "float16"', "float16 on cuda only"),
        ("samples = 1", "at least 2 for a shared baseline"),
        ("curriculum = 3", "curriculum is 3; expected a table"),
        ("[curriculum]\nsizes = []", "expected one or more sizes"),
        ("[optimiser]\nwarmup = 1.0", "optimiser.warmup is 1.0; expected .* --optimiser.warmup"),
        ("[curriculum]\nsizes = 30", "curriculum.sizes is 30"),
        ("[curriculum]\nramp = 1.5", "expected a share"),
        ('network = "transformer"', "there is no transformer network for the task 'stages'"),
        ("steps = ", "cannot read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    """Unknown keys, wrong types and values out of range are errors that name the field."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=said):
        read_config(path)


def test_missing_file_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration that is not there ends with exit code 2 and one line."""
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_flags_override_the_file_and_smoke_runs(tmp_path: Path) -> None:
    """A smoke run from a file with flags over it writes state, checkpoint, report and the configuration it ran with."""
    path = tmp_path / "run.toml"
    path.write_text("seed = 3\nworkers = 0\n[curriculum]\nsizes = [6]\nbatch_nodes = 60\n[validation]\npictures = 0\n")
    run = tmp_path / "run"
    given = ["--config", str(path), "--smoke", "--run-dir", str(run), "--problem.hidden", "4", "--steps", "4"]
    assert main(given) == 0
    config = read_config(run / "config.json")
    assert (config.seed, config.problem.hidden, config.steps, config.validation.small) == (3, 4, 4, True)
    for name in ("state.safetensors", "best.safetensors", "best.json", "report.md", "report.json"):
        assert (run / name).exists(), name
    assert main(given) == 2
    assert main(["--resume", str(run), "--steps", "6"]) == 0
    report = json.loads((run / "report.json").read_text())
    assert report["training"]["steps"] == 6
    assert report["training"]["command"].endswith("--steps 6")


def test_smoke_never_asks_for_more() -> None:
    """Every number that smoke changes gets smaller or stays."""
    config: TrainConfig[TinyParams] = config_from_dict({}, "test")
    small = smoke(config)
    assert small.steps <= config.steps
    assert small.curriculum.batch_nodes <= config.curriculum.batch_nodes
    assert small.imitation.shards <= config.imitation.shards
    assert small.validation.small


def test_flags_override_what_smoke_sets(tmp_path: Path) -> None:
    """`--smoke --steps 14` takes 14 steps, not the dozen that a smoke run has by itself."""
    run = tmp_path / "run"
    given = ["--smoke", "--steps", "14", "--workers", "0", "--curriculum.sizes", "6", "--validation.pictures", "0"]
    assert main([*given, "--run-dir", str(run)]) == 0
    assert read_config(run / "config.json").steps == 14
    assert json.loads((run / "report.json").read_text())["training"]["steps"] == 14


def test_a_report_says_nothing_twice(tmp_path: Path) -> None:
    """Where no step is better than the untrained agent, the report has one row for each validation set."""
    measures = {"easy": {"reward": 0.0, "below_reference": 0.0}, "hard": {"reward": 0.1, "below_reference": 0.1}}
    history = [{"step": step, "seconds": 0.0, "measures": measures} for step in (0, 6)]
    progress = Progress(step=6, best=0.0, best_step=0, history=history)
    write_report(tmp_path, config_to_dict(tiny_config(tmp_path)), "", progress)
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(measures)  # a heading and the line below it
    assert len(set(rows)) == len(rows)
