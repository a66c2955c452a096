"""Sweeps: a row for each hardware, streamed to a file from which a killed sweep goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from joblib import parallel_config

import rlinit
from rlinit.cli.main import main
from rlinit.errors import RlinitError
from rlinit.sweeping.figure import draw_sweep
from rlinit.sweeping.rows import SweepRow

ROOT = Path(__file__).resolve().parents[2]


def chain() -> rlinit.Graph:
    """Return eight equal ops in a row."""
    ops = [(f"v{i}", {"time_s": 1.0, "param_bytes": 2.0, "out_bytes": 0.0}) for i in range(8)]
    return rlinit.Graph.build(ops, [(f"v{i}", f"v{i + 1}") for i in range(7)], name="chain")


def test_rows_are_those_of_the_plans() -> None:
    """Values, bounds and speed-ups over one device are what the plans say; costs are added up where all have one."""
    priced = rlinit.Hardware.mesh([rlinit.Device("a", cost_per_hour=1.5), rlinit.Device("b", cost_per_hour=2.0)], 1.0)
    rows = rlinit.sweep(chain(), [*(rlinit.Hardware.pipeline(k) for k in (1, 2, 4)), priced])
    assert [row.value for row in rows] == [8.0, 4.0, 2.0, 4.0]
    assert [row.speed_up for row in rows] == [1.0, 2.0, 4.0, 2.0]
    assert [row.over(rows[0]) for row in rows] == [1.0, 2.0, 4.0, 2.0]
    assert [row.cost_per_hour for row in rows] == [None, None, None, 3.5]
    assert {row.status for row in rows} == {"optimal"}
    assert all(row.bound == row.value for row in rows)


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """Rows of a killed process are kept, a line it was writing is not, and only what is missing is solved."""
    out = tmp_path / "rows.jsonl"
    code = (
        "import rlinit, time, sys\n"
        "from tests.sweeping.test_runs import chain\n"
        "hw = [rlinit.Hardware.pipeline(k) for k in (1, 2, 3, 4)]\n"
        f"rlinit.sweep(chain(), hw, out={str(out)!r}, progress=lambda row: time.sleep(600 * (row.devices == 2)))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline and (not out.exists() or out.read_text().count("\n") < 2):
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert out.read_text().count("\n") == 2
    with out.open("a") as file:
        file.write('{"key": "cut o')
    solved: list[SweepRow] = []
    hardware = [rlinit.Hardware.pipeline(k) for k in (1, 2, 3, 4)]
    rows = rlinit.sweep(chain(), hardware, out=out, progress=solved.append)
    assert [row.devices for row in solved] == [3, 4]
    assert [row.value for row in rows] == [8.0, 4.0, 3.0, 2.0]
    assert [json.loads(line)["devices"] for line in out.read_text().splitlines()] == [1, 2, 3, 4]
    assert rlinit.sweep(chain(), hardware, out=out, progress=solved.append) == rows
    assert len(solved) == 2
    other = rlinit.sweep(chain(), hardware[:1], out=out, objective="memory")
    assert other[0].value == 16.0  # another objective is another row


def test_backends_of_joblib_carry_it() -> None:
    """What `parallel_config` says is followed, and rows come back in the order asked for."""
    hardware = [rlinit.Hardware.pipeline(k) for k in (4, 1, 2, 1)]
    with parallel_config("threading", n_jobs=2):
        rows = rlinit.sweep(chain(), hardware)
    assert [row.value for row in rows] == [2.0, 8.0, 4.0, 8.0]


def test_a_dask_cluster_carries_it(tmp_path: Path) -> None:
    """Pairs of models and hardware go over a local cluster of another process."""
    distributed = pytest.importorskip("dask.distributed", reason="Dask is not installed (extra: dask)")
    other, out = dataclasses.replace(chain(), name="other"), tmp_path / "rows.jsonl"
    hardware = [rlinit.Hardware.pipeline(k) for k in (1, 2, 4)]
    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster), parallel_config("dask"):
        rows = rlinit.sweep([chain(), other], hardware, out=out)
    assert [row.value for row in rows] == [8.0, 4.0, 2.0] * 2
    assert out.read_text().count("\n") == len({row.key for row in rows})


def test_pairs_that_do_not_go_together_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model without times on some hardware is refused in its own row, and the others go on."""
    plain = rlinit.Graph.build([("a", {"flops": 1e9, "param_bytes": 0.0, "out_bytes": 0.0})], [], name="plain")
    hardware = [rlinit.Hardware.pipeline(1), rlinit.Hardware.preset("t4")]
    rows = rlinit.sweep([plain, chain()], hardware)
    assert [row.status for row in rows] == ["refused", "optimal", "optimal", "optimal"]
    assert "no time on device" in rows[0].message
    plain.save(tmp_path / "plain.json")
    chain().save(tmp_path / "chain.json")
    hardware[0].save(tmp_path / "hw.json")
    models = [str(tmp_path / "plain.json"), str(tmp_path / "chain.json")]
    assert main(["sweep", *models, "--hw", str(tmp_path / "hw.json"), "--hw", "t4"]) == 0
    printed = capsys.readouterr().out
    assert "refused" in printed
    assert "no time on device" in printed
    draw_sweep(rows, tmp_path / "sweep.svg")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """No hardware, a file that is not of a sweep, more devices than there are."""
    with pytest.raises(RlinitError, match="at least one kind"):
        rlinit.sweep(chain(), [])
    with pytest.raises(RlinitError, match="at least one model"):
        rlinit.sweep([], [rlinit.Hardware.pipeline(1)])
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(RlinitError, match="line 1, is no row of a sweep"):
        rlinit.sweep(chain(), [rlinit.Hardware.pipeline(1)], out=tmp_path / "notes.txt")
    with pytest.raises(RlinitError, match="cannot draw"):
        draw_sweep([], tmp_path / "plot.png")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stages, devices and several --hw give a table, JSON, a picture and rows; wrong ranges are refused."""
    model, plot, out = tmp_path / "chain.json", tmp_path / "sweep.svg", tmp_path / "rows.jsonl"
    chain().save(model)
    (tmp_path / "hw.toml").write_text("[[device]]\nname='d'\ncount=3\ncost_per_hour=2.5\n")
    hw = str(tmp_path / "hw.toml")
    assert main(["sweep", str(model), "--hw", hw, "--stages", "1..3", "--plot", str(plot), "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "x first" in table
    assert "an hour" in table
    assert plot.read_text().startswith("<?xml")
    assert out.read_text().count("\n") == 3
    arguments = ["sweep", str(model), "--hw", hw, "--devices", "1..3", "--objective", "latency", "--json"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["cost_per_hour"] for row in rows] == [2.5, 5.0, 7.5]
    assert [row["value"] for row in rows] == [8.0, 8.0, 8.0]
    assert main(["sweep", str(model), "--hw", hw, "--hw", "edge-tpu-2", "--objective", "memory", "--json"]) == 0
    assert [row["hardware"] for row in json.loads(capsys.readouterr().out)] == ["hw", "edge-tpu-2"]
    for wrong in (["--stages", "3..1"], ["--stages", "x"], ["--stages", "1", "--devices", "1"], ["--devices", "4"]):
        assert main(["sweep", str(model), "--hw", hw, *wrong]) == 2
    assert main(["sweep", str(model)]) == 2


def test_a_dtype_goes_by_each_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    """A network of the zoo is INT8 on Edge TPUs and FP32 on GPUs, whichever is named first."""

    def values(*hardware: str) -> dict[str, float]:
        where = [text for one in hardware for text in ("--hw", one)]
        assert main(["sweep", "zoo:mobilenetv2", *where, "--method", "natural", "--json"]) == 0
        return {row["hardware"]: row["value"] for row in json.loads(capsys.readouterr().out)}

    alone = values("edge-tpu-2") | values("2xt4")
    assert values("edge-tpu-2", "2xt4") == alone
    assert list(values("2xt4", "edge-tpu-2").items()) == [(name, alone[name]) for name in ("2xt4", "edge-tpu-2")]
