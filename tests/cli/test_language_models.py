"""``rlinit llm`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlinit
from rlinit import llm
from rlinit.cli.main import main
from rlinit.errors import InvalidGraph, InvalidHardware, RlinitError

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return the path of a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "config.json")


def test_the_split_is_printed_with_its_proof(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table names the devices, the value, the bound, the comparison, and flags for other tools."""
    names = ["--llama-cpp", "t4-0=CUDA0", "t4-1=CUDA1", "cpu=CPU"]
    code = main(["llm", config, "--hw", "2xt4+cpu", "--context", "120000", "--dtype", "fp16", "--first", "cpu", *names])
    out = " ".join(capsys.readouterr().out.split())
    assert code == 0
    for text in (
        "t4-0",
        "optimal",
        "proven >=",
        "tokens a second",
        "most layers on the GPUs",
        "buffers",
        "reserve",
        "free",
        "best single device",
        "-ngl",
        "-ts",
    ):
        assert text in out


def test_json_is_the_plan(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints what --out writes, and the largest context where it is asked for."""
    target = tmp_path / "plan.json"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 2048}))
    code = main(["llm", config, "--hw", "t4", "--dtype", "int4", "--max-context", "--json", "--out", str(target)])
    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (printed.pop("largest"), printed.pop("by_model")) == (2048, True)
    assert printed == json.loads(target.read_text())
    assert main(["llm", config, "--hw", "t4", "--dtype", "int4", "--max-context"]) == 0
    assert "that fits: 2,048; the model's positions end there" in capsys.readouterr().out


def test_stages_of_several_devices_are_asked_for_by_the_same_flags(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is that of rlinit schedule, printed, written and as JSON; limits are for the other kind."""
    hardware, target = ["--hw", "2x4xa100-80g", "--context", "256"], tmp_path / "plan.json"
    asked = ["--training", "1f1b", "--microbatches", "8", "--recompute", "auto", "--zero", "1", "--uniform"]
    assert main(["llm", config, *hardware, *asked, "--out", str(target)]) == 0
    out = capsys.readouterr().out
    assert "replicas" in out
    assert "tokens a second" in " ".join(out.split())
    assert main(["llm", config, *hardware, "--replicas", "2", "--tensor-parallel", "auto", "--json"]) == 0
    assert {stage["replicas"] for stage in json.loads(capsys.readouterr().out)["stages"]} == {2}
    assert main(["llm", config, *hardware, "--max-batch", "--replicas", "2"]) == 2


def test_infeasible_and_wrong_input_have_their_exit_codes(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """3 and what is missing; 2 and what is wrong."""
    assert main(["llm", config, "--hw", "rpi5-4g"]) == 3
    assert "are missing" in capsys.readouterr().out.replace("\n", " ")
    assert main(["llm", config, "--hw", "t4", "--reserve", "much"]) == 2
    assert "--reserve" in capsys.readouterr().err
    assert main(["llm", "nowhere.json", "--hw", "t4"]) == 2


def test_schedule_leads_here(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rlinit schedule` on a configuration does what `rlinit llm` does; in Python one line names the function."""
    assert main(["schedule", config, "--hw", "2xt4", "--objective", "decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["objective"] == "decode"
    (tmp_path / "l8.json").write_text(json.dumps(CONFIG))
    assert main(["schedule", str(tmp_path / "l8.json"), "--hw", "2xt4", "--objective", "decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["objective"] == "decode"
    assert main(["inspect", str(tmp_path / "l8.json")]) == 2
    assert "rlinit llm CONFIG" in capsys.readouterr().err
    assert main(["llm", config, "--hw", "2xt4", "--granularity", "part", "--no-contiguous", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bound_source"] == "branch and bound over counts"
    assert main(["inspect", config]) == 2
    assert "rlinit llm CONFIG" in capsys.readouterr().err
    graph, hardware = rlinit.Graph.build([("a", {"time_s": 1.0})], []), rlinit.Hardware.preset("t4")
    with pytest.raises(RlinitError, match=r"rlinit\.llm\.plan"):
        rlinit.schedule(graph, hardware, objective="decode")  # type: ignore[arg-type]
    with pytest.raises(InvalidGraph, match=r"rlinit\.llm\.plan"):
        rlinit.schedule(llm.load(CONFIG), hardware)  # type: ignore[arg-type]
    with pytest.raises(InvalidHardware, match=r"Hardware\.preset"):
        rlinit.schedule(graph, "t4")  # type: ignore[arg-type]
    with pytest.raises(InvalidGraph, match=r"rlinit\.llm\.load"):
        rlinit.load_graph(tmp_path / "m.gguf")
