"""``rlinit serve`` on small fleets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinit.cli.main import main
from tests.llm.test_serving import rates


def test_a_layout_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the spans; the file is what a front end routes by."""
    path, out = tmp_path / "rates.json", tmp_path / "layout.json"
    path.write_text(json.dumps(rates()), encoding="utf-8")
    assert main(["serve", str(path), "--out", str(out)]) == 0
    assert "5.00 tokens a second; bound 5.00, at most 0.0" in capsys.readouterr().out
    assert json.loads(out.read_text())["flow"][0] == {"from": "source", "to": "a", "tokens_per_s": 5.0}
    assert main(["verify", str(out), str(path)]) == 0
    assert capsys.readouterr().out.startswith("VERIFIED (exact) serving")
    out.write_text(out.read_text().replace('"bound": 5.', '"bound": 4.'), encoding="utf-8")
    assert main(["verify", str(out), str(path)]) == 1
    assert "REFUTED: prices does not refute" in capsys.readouterr().out
    assert main(["serve", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == {"a": [0, 2], "b": [2, 3]}
    flags = ["--llama-cpp", "a=CPU", "b=CUDA0", "--threads", "6"]
    assert main(["serve", str(path), *flags]) == 0
    assert "100.0% of the requests: --device CUDA0 -ngl 2 -t 6\n" in capsys.readouterr().out
    assert main(["serve", str(path), "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["llama_cpp"][0]["devices"] == ["a", "b"]
    assert main(["serve", str(path), *flags[:2]]) == 2
    assert "device 'b' has no name of llama.cpp" in capsys.readouterr().err


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of infeasible problems; a missing file gets one line."""
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(rates() | {"layers": 9}), encoding="utf-8")
    assert main(["serve", str(path)]) == 3
    assert "9 are needed" in capsys.readouterr().out
    assert main(["serve", str(tmp_path / "none.json")]) == 2
