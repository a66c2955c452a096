"""Configurations: files, flags, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinit.train.core.config import ReinforceConfig, config_to_dict, read_config
from rlinit.train.run import main
from rlinit.train.tasks import protocol
from tests.late import late_imports
from tests.train.tiny_task import TinyParams

with late_imports():
    from rlinit.train.core.run_state import Progress
    from rlinit.train.monitoring import report
    from tests.train.runs import tiny_config


@pytest.fixture(autouse=True)
def tiny_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make "stages" mean the tiny task."""
    monkeypatch.setitem(protocol.TASKS, ("stages", "oneshot"), "tests.train.tiny_task:TinyTask")


def test_plain_data_round_trip(tmp_path: Path) -> None:
    """A configuration written as JSON and read again is the same one."""
    config = tiny_config(tmp_path, minutes=2.5, reinforce=ReinforceConfig(entropy_weight=0.5))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_to_dict(config)))
    assert read_config(path) == config


def test_toml_sets_nested_fields(tmp_path: Path) -> None:
    """Tables of the TOML are the nested dataclasses; whole numbers do for floats."""
    path = tmp_path / "run.toml"
    text = "minutes = 3\n[curriculum]\nsizes = [30, 60]\n[problem]\nhidden = 5\n[optimiser]\nlearning_rate = 1\n"
    path.write_text(text)
    config = read_config(path)
    assert config.minutes == 3.0
    assert config.curriculum.sizes == (30, 60)
    assert config.problem == TinyParams(hidden=5)
    assert config.optimiser.learning_rate == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepz = 3", "--stepz"),
        ("[optimiser]\nlr = 0.1", "--optimiser.lr"),
        ("[problem]\nwidth = 3", "--problem.width"),
        ('steps = "many"', "--steps"),
        ("steps = true", "--steps"),
        ("steps = 0", "steps is 0; expected at least 1"),
        ("samples = 1", "samples is 1; expected at least 2"),
        ('precision = "float16"', "--precision"),
        ("curriculum = 3", "--curriculum"),
        ("[curriculum]\nsizes = ['x']", "--curriculum.sizes"),
        ("[curriculum]\nramp = 1.5", "expected a share"),
        ("[optimiser]\nwarmup = 1.0", "optimiser.warmup is 1.0; expected"),
        ('network = "transformer"', "there is no transformer network for the task 'stages'"),
        ("steps = ", "cannot read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    """Keys that are no flags, wrong types and values out of range end with exit code 2 and name the field."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    try:
        code: object = main(["--config", str(path)])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert code == 2
    assert said in " ".join((printed.out + printed.err).replace("│", " ").split())


def test_missing_file_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration that is not there ends with exit code 2 and one line."""
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_flags_override_the_file_and_smoke_runs(tmp_path: Path) -> None:
    """A smoke run from a file with flags over it writes state, checkpoint, report and the configuration it ran with."""
    path = tmp_path / "run.toml"
    path.write_text("seed = 3\nworkers = 0\n[curriculum]\nsizes = [6]\nbatch_nodes = 60\n")
    run = tmp_path / "run"
    given = ["--config", str(path), "--smoke", "--run-dir", str(run), "--problem.hidden", "4", "--steps", "4"]
    assert main(given) == 0
    config = read_config(run / "config.json")
    assert (config.seed, config.problem.hidden, config.steps, config.validation.small) == (3, 4, 4, True)
    for name in ("state.safetensors", "best.safetensors", "best.json", "report.md"):
        assert (run / name).exists(), name
    assert main(given) == 2
    assert main(["--resume", str(run), "--steps", "6"]) == 0
    said = (run / "report.md").read_text()
    assert "- 6 steps" in said
    assert "--steps 6`" in said


def test_flags_override_what_smoke_sets(tmp_path: Path) -> None:
    """`--smoke --steps 14` takes 14 steps, not the dozen that a smoke run has by itself."""
    run = tmp_path / "run"
    given = ["--smoke", "--steps", "14", "--workers", "0", "--curriculum.sizes", "6"]
    assert main([*given, "--run-dir", str(run)]) == 0
    assert read_config(run / "config.json").steps == 14
    assert "- 14 steps" in (run / "report.md").read_text()


def test_a_report_says_nothing_twice(tmp_path: Path) -> None:
    """Where no step is better than the untrained agent, the report has one row for each validation set."""
    measures = {"easy": {"reward": 0.0, "below_reference": 0.0}, "hard": {"reward": 0.1, "below_reference": 0.1}}
    history = [{"step": step, "seconds": 0.0, "measures": measures} for step in (0, 6)]
    progress = Progress(step=6, best=0.0, best_step=0, history=history)
    card = {"command": "", "config": config_to_dict(tiny_config(tmp_path)), "machine": {"cpu": "", "cores": 1}}
    rows = [line for line in report(card, progress).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(measures)  # a heading and the line below it
    assert len(set(rows)) == len(rows)
