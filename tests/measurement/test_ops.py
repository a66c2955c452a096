"""Measuring ops and transfers on the CPU, and the cache of figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinit.costs.roofline import op_times
from rlinit.costs.table import InvalidCostTable
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.executors import ExecutionFailure
from rlinit.graph import Graph
from rlinit.hardware import Device
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.cache import Figure, MeasuredCache
from rlinit.measurement.ops import Measuring, figure_of, measure_ops, sum_factor
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn

    from tests.executors.models import Branching, Chain, TinyTransformer


FAST = Measuring(warmup=1, repeats=3, threads=1)


def measurable(model: nn.Module, *inputs: Any) -> tuple[nn.Module, tuple[Any, ...], Graph]:
    """Return a model in eval mode, its inputs, and its graph."""
    model = model.eval()
    return model, inputs, from_program(export_program(model, inputs))


@pytest.fixture(scope="module")
def chain() -> tuple[nn.Module, tuple[Any, ...], Graph]:
    """Return a small convolutional network."""
    return measurable(Chain(2, 8), torch.randn(1, 3, 16, 16))


def test_every_op_gets_a_figure(chain: tuple[nn.Module, tuple[Any, ...], Graph]) -> None:
    """Each op has a row with repeats and spread for each device and batch size, and the graph is then fully timed."""
    model, inputs, graph = chain
    table = measure_ops(model, inputs, graph, devices={"a": "cpu", "b": "cpu"}, batches=(1, 4), settings=FAST)
    assert len(table) == 4 * graph.num_ops
    assert {(row.device, row.batch) for row in table.rows} == {(d, b) for d in "ab" for b in (1, 4)}
    for row in table.rows:
        assert row.seconds > 0 or row.op == "x"
        assert row.repeats >= FAST.repeats
        assert table.get(row.op, "a", row.batch).seconds == table.get(row.op, "b", row.batch).seconds  # type: ignore[union-attr]
    timed = table.apply(graph)
    assert (op_times(timed, Device("a"), 4) >= 0).all()
    assert "1 threads" in table.notes["device a"]
    assert len(table.noise()) == 4


def test_equal_ops_share_a_figure(chain: tuple[nn.Module, tuple[Any, ...], Graph]) -> None:
    """Ops of one kind, shape and arguments are one measurement, made as often as there are such ops."""
    model, inputs, graph = chain
    table = measure_ops(model, inputs, graph, settings=FAST)
    rows = {op: table.get(op, "cpu") for op in ("conv2d", "conv2d_1", "conv2d_2")}
    assert rows["conv2d_1"] == rows["conv2d_1"]
    assert rows["conv2d_1"].repeats == rows["conv2d_2"].repeats == 2 * FAST.repeats  # type: ignore[union-attr]
    assert rows["conv2d"].repeats == FAST.repeats  # type: ignore[union-attr]


def test_branches_of_control_flow_tell_ops_apart() -> None:
    """Control-flow ops of equal shapes with other branches are measured apart."""
    model, inputs, graph = measurable(Branching(), torch.randn(8, 8))
    table = measure_ops(model, inputs, graph, settings=FAST)
    conds = [row for op, row in ((op, table.get(op, "cpu")) for op in graph.names) if op.startswith("cond")]
    assert [row.repeats for row in conds if row] == [FAST.repeats] * 2


def test_costly_ops_measure_as_costly() -> None:
    """A matrix product 64 times as large takes longer."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 8))
    _, inputs, graph = measurable(model, torch.randn(256, 64))
    table = measure_ops(model, inputs, graph, settings=FAST)
    small, large, _ = (table.get(op, "cpu").seconds for op in graph.names[1:])  # type: ignore[union-attr]
    assert large > small


def test_the_cache_is_used_and_keyed(
    tmp_path: Path, chain: tuple[nn.Module, tuple[Any, ...], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run measures nothing; other threads have figures of their own; a grown model measures what is new."""
    model, inputs, graph = chain
    first = measure_ops(model, inputs, graph, settings=FAST, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    (path,) = tmp_path.iterdir()
    keys = set(json.loads(path.read_text())["figures"])
    assert any("conv2d" in key and "float32" in key for key in keys)
    with monkeypatch.context() as patch:
        patch.setattr("rlinit.executors.local.LocalExecutor.load", None)
        again = measure_ops(model, inputs, graph, settings=FAST, cache=tmp_path)
    assert again.rows == first.rows
    measure_ops(model, inputs, graph, settings=Measuring(1, 2, threads=2), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    other, _, wider = measurable(Chain(2, 9), *inputs)
    measure_ops(other, inputs, wider, settings=FAST, cache=tmp_path)
    assert set(json.loads(path.read_text())["figures"]) > keys
    assert measure_ops(model, inputs, graph, settings=FAST, cache=tmp_path).rows == first.rows


def test_a_damaged_cache_is_refused(tmp_path: Path) -> None:
    """A file that is no cache, truncated, or holds impossible figures is an error that names the file."""
    cache = MeasuredCache(tmp_path / "new", "a cpu")
    assert cache.read() == {}
    cache.add({"op": Figure(1.0, 0.1, 3)})
    cache.add({"other": Figure(0.0, 0.0, 1)})
    whole = cache.path.read_text()
    assert cache.read() == {"op": Figure(1.0, 0.1, 3), "other": Figure(0.0, 0.0, 1)}
    for text in (
        "",
        whole[:40],
        "[]",
        whole.replace("1.0", "-1.0"),
        whole.replace("1.0", "1" + "0" * 400),
        whole.replace("1.0", "NaN"),
        whole.replace("3", '"3"'),
    ):
        cache.path.write_text(text)
        with pytest.raises(InvalidCostTable, match=cache.path.name):
            cache.read()


def test_tokens_and_module_ops_are_measured() -> None:
    """Integer inputs keep their values at other batch sizes, and ops made of several nodes are measured whole."""
    model = TinyTransformer(1).eval()
    inputs = (torch.randint(0, 50, (1, 7)),)
    graph = from_program(export_program(model, inputs), granularity="module")
    table = measure_ops(model, inputs, graph, batches=(3,), settings=FAST)
    assert {row.op for row in table.rows} == set(graph.names)
    assert all(row.batch == 3 for row in table.rows)


def test_programs_with_a_dynamic_batch_are_measured_at_any_size() -> None:
    """A program exported once for all batch sizes is measured at each; larger ones take longer."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4)).eval()
    inputs = (torch.randn(2, 256),)
    program = torch.export.export(model, inputs, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    graph = from_program(program)
    table = measure_ops(program, inputs, graph, batches=(1, 512), settings=FAST)
    assert len(table) == 2 * graph.num_ops
    seconds = {row.key: row.seconds for row in table.rows}
    assert seconds["linear", "cpu", 512] > seconds["linear", "cpu", 1]


def test_wrong_wishes_are_refused(chain: tuple[nn.Module, tuple[Any, ...], Graph]) -> None:
    """Absent devices, impossible batch sizes, foreign graphs and models without memory are named."""
    model, inputs, graph = chain
    with pytest.raises(InvalidPlan, match="'tpu:0'"):
        measure_ops(model, inputs, graph, devices={"a": "tpu:0"})
    if not torch.cuda.is_available():
        with pytest.raises(InvalidPlan, match="this machine does not have"):
            measure_ops(model, inputs, graph, devices=("cuda:0",))
    with pytest.raises(InvalidPlan, match="expected some"):
        measure_ops(model, inputs, graph, devices=())
    with pytest.raises(InvalidPlan, match="batch sizes >= 1"):
        measure_ops(model, inputs, graph, batches=(0,))
    with pytest.raises(InvalidPlan, match="fixed batch size"):
        measure_ops(export_program(model, inputs), inputs, graph, batches=(2,))
    with pytest.raises(InvalidPlan, match="made for another"):
        measure_ops(Chain(3, 8).eval(), inputs, measurable(nn.Linear(3, 4), torch.randn(1, 3))[2])
    with torch.device("meta"):
        ghost = Chain(2, 8).eval()
    with pytest.raises(InvalidPlan, match="meta device"):
        measure_ops(ghost, (inputs[0].to("meta"),), graph, settings=FAST)
    with pytest.raises(InvalidPlan, match="repeats 1"):
        Measuring(repeats=1)


def test_a_failing_op_is_named() -> None:
    """An op that fails while it is measured is named with its device."""
    model = nn.Embedding(4, 2).eval()
    _, _, graph = measurable(model, torch.tensor([1]))
    with pytest.raises(ExecutionFailure, match=r"'embedding' failed on device 'cpu'"):
        measure_ops(model, (torch.tensor([9]),), graph, settings=FAST)


def test_threads_are_given_back(chain: tuple[nn.Module, tuple[Any, ...], Graph]) -> None:
    """Measuring leaves torch's number of threads as it was, also when it fails."""
    model, inputs, graph = chain
    before = torch.get_num_threads()
    measure_ops(model, inputs, graph, settings=Measuring(0, 2, threads=before + 1))
    assert torch.get_num_threads() == before
    with pytest.raises(RlinitError):
        measure_ops(model, (torch.randn(1, 2, 16, 16),), graph, settings=Measuring(0, 2, threads=before + 1))
    assert torch.get_num_threads() == before


def test_figures_are_median_and_quartiles() -> None:
    """The figure of 1..5 has median 3 and interquartile range 2; one sample spreads by nothing."""
    assert figure_of([5.0, 1.0, 4.0, 2.0, 3.0]) == Figure(3.0, 2.0, 5)
    assert figure_of([7.0]) == Figure(7.0, 0.0, 1)
    assert np.isfinite(figure_of([0.0, 1e-9, 1e12]).spread_s)


def test_figures_add_up_to_a_pass() -> None:
    """Ops that are interrupted now and then, one of them in each pass, add up to what a pass takes all the same."""
    rng = np.random.default_rng(0)
    passes = rng.uniform(1.0, 1.1, (31, 8))
    passes[np.arange(31), rng.integers(0, 8, 31)] += 2.0
    medians = np.median(passes, axis=0)
    total = float(np.median(passes.sum(axis=1)))
    assert medians.sum() < 0.9 * total
    assert medians.sum() * sum_factor(passes.sum(axis=1).tolist(), medians.tolist()) == pytest.approx(total)
    assert sum_factor([1.0], [2.0]) == 1.0
    assert sum_factor([], []) == sum_factor([0.0], [0.0]) == 1.0
