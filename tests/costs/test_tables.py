"""Measured tables: what is read, what is refused, and what lies between the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit import llm
from rlinit.costs.measured_graph import with_costs
from rlinit.costs.sources import cost_sources
from rlinit.costs.table import InvalidCostTable
from rlinit.costs.tables import by_kind, load
from rlinit.datasets.published.location import instances_root
from tests.costs.tables_case import milliseconds, products, write, write_tables

MEASURED = (instances_root() or Path("nowhere")) / "gpu-measurements"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of made-up tables."""
    return write_tables(tmp_path_factory.mktemp("tables") / "runtime-1.0")


def test_measured_shapes_come_back(folder: Path) -> None:
    """What was measured is given as it was, and counts as measured."""
    found = load(folder).product([16, 4096], [256, 4096], [1024, 64])
    assert found is not None
    assert found.source.tolist() == [0, 0]
    flops, moved = 2.0 * 16 * 256 * 1024, 2.0 * (16 * 1024 + 256 * 1024 + 16 * 256)
    assert found.seconds[0] == pytest.approx(1e-3 * milliseconds(flops, moved), rel=1e-12)


def test_between_and_beyond(folder: Path) -> None:
    """Between rows the law is met within its kinks; beyond a factor of two the estimate says so and grows with work."""
    tables = load(folder)
    m, n, k = 700.0, 2000.0, 3000.0
    found = tables.product(m, n, k)
    assert found is not None
    law = 1e-3 * milliseconds(2 * m * n * k, 2 * (m * k + n * k + m * n))
    assert found.seconds[0] == pytest.approx(law, rel=0.25)
    assert found.source[0] == 1
    far = tables.product([2.0**14, 2.0**15], 4096, 4096)
    assert far is not None
    assert far.source.tolist() == [2, 2]
    assert far.seconds[1] / far.seconds[0] == pytest.approx(2.0, rel=0.1)
    assert (far.spread[0] <= found.spread[0]).any()
    assert tables.product(1, 64, 64, "int4") is None
    with pytest.raises(InvalidCostTable, match="above 0"):
        tables.product(0, 64, 64)


def test_attention_and_collectives(folder: Path) -> None:
    """Lengths of generation count the new token; messages are numbers, not bytes."""
    tables = load(folder)
    found = tables.attention("generation", 4, 256, 32, 8, 128)
    assert found is not None
    assert found.source[0] == 0
    prompt = tables.attention("prompts", 1, 1024, 32, 8, 128)
    assert prompt is not None
    pairs = 1024 * 1025 / 2
    moved = 4.0 * 1024 * 8 * 128 + 4.0 * 1024 * 32 * 128
    assert prompt.seconds[0] == pytest.approx(1e-3 * milliseconds(4.0 * 32 * 128 * pairs, moved))
    gathered = tables.collective("all_gather", 8, 2**26)
    assert gathered is not None
    assert gathered.source[0] == 0
    assert gathered.seconds[0] == pytest.approx(1e-5 + 2**26 * 7 / 8 / 2e11)
    assert tables.collective("alltoall", 8, 1e6) is None


def test_repeated_rows_and_kernels(tmp_path: Path) -> None:
    """Of repeated rows the median counts, of kernels the fastest, and the reader says how many there are."""
    rows = products()
    shape = {"m": 16, "n": 64, "k": 64}
    rows = [row for row in rows if {name: row[name] for name in shape} != shape]
    base = {**rows[0], **shape}
    rows += [base | {"latency": ms} for ms in (0.004, 0.005, 0.9)]
    rows += [base | {"kernel_source": "other", "latency": 0.007}]
    write(tmp_path / "gemm_perf.csv", rows)
    tables = load(tmp_path)
    found = tables.product(16, 64, 64)
    assert found is not None
    assert found.seconds[0] == pytest.approx(5e-6)
    assert "3 rows repeat a shape" in tables.notes[0]


def _without(name: str) -> Callable[[list[dict[str, Any]]], object]:
    return lambda rows: [row.pop(name) for row in rows]


def _with(**cells: object) -> Callable[[list[dict[str, Any]]], object]:
    return lambda rows: rows[3].update(cells)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without("latency"), "column 'latency' is missing"),
        (_without("m"), "column 'm' is missing"),
        (_with(latency="nan"), "row 4: latency is nan"),
        (_with(latency=-1.0), "row 4: latency is -1"),
        (_with(k="many"), "column 'k' holds text"),
        (lambda rows: [row.update(latency=1e3 * row["latency"]) for row in rows], "in milliseconds"),
        (lambda rows: [row.update(latency=1e-3 * row["latency"]) for row in rows], "in milliseconds"),
        (lambda rows: [row.update(device="a toaster") for row in rows], "name its kind"),
    ],
)
def test_bad_tables_get_one_line(damage: Callable[[list[dict[str, Any]]], object], said: str, tmp_path: Path) -> None:
    """The line names the file or the column, and what is expected."""
    rows = products()
    damage(rows)
    write(tmp_path / "gemm_perf.csv", rows)
    with pytest.raises(InvalidCostTable, match=said) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
    ],
)
def test_devices_are_known_by_name(name: str, kind: str, tmp_path: Path) -> None:
    """Of kinds whose names are in the device's the longest is meant; text files are read, too."""
    write(tmp_path / "gemm_perf.txt", [row | {"device": name} for row in products()])
    assert load(tmp_path).device == kind


def test_a_number_goes_on(tmp_path: Path) -> None:
    """An L40 is no L4."""
    write(tmp_path / "gemm_perf.csv", [row | {"device": "NVIDIA L40"} for row in products()])
    with pytest.raises(InvalidCostTable, match="name its kind"):
        load(tmp_path)
    assert load(tmp_path, device="l40s").device == "l40s"


def test_folders(tmp_path: Path) -> None:
    """The newest runtime is read, collectives may stand above it, and one kind of device has one table."""
    for name in ("runtime-0.9", "runtime-0.14"):
        write_tables(tmp_path / "h100" / name)
    (tmp_path / "h100" / "runtime-0.14" / "nccl_perf.csv").rename(tmp_path / "h100" / "nccl_perf.csv")
    tables = load(tmp_path / "h100")
    assert tables.name == "h100 runtime-0.14"
    assert tables.collective("all_reduce", 2, 1e6) is not None
    with pytest.raises(InvalidCostTable, match="no measured tables"):
        load(tmp_path)
    with pytest.raises(InvalidCostTable, match="two tables of h100"):
        by_kind([tables, tables])
    with pytest.raises(InvalidCostTable, match="expected folders"):
        by_kind(3)
    assert set(by_kind({"mine": tables})) == {"mine"}


def test_graphs_get_measured_products(folder: Path) -> None:
    """A product is known by its figures; what has a time keeps it, and the plan says what its seconds rest on."""
    m, n, k = 256, 1024, 4096
    graph = rlinit.Graph.build(
        [
            ("x", {"op": "input", "out_bytes": 2 * m * k, "flops": 0.0}),
            (
                "product",
                {
                    "op": "linear",
                    "flops": 2.0 * m * n * k,
                    "param_bytes": 2 * k * n,
                    "out_bytes": 2 * m * n,
                    "precision": ["bf16", "bf16"],
                },
            ),
            ("other", {"op": "relu", "flops": 1e6, "out_bytes": 2 * m * n, "precision": ["bf16", "bf16"]}),
        ],
        [("x", "product"), ("product", "other")],
    )
    hardware = rlinit.Hardware.preset("2xh100")
    tables = load(folder)
    priced = with_costs(graph, hardware, tables, (1, 4))
    expected = tables.product([m, 4 * m], n, k)
    assert expected is not None
    assert [priced.times["h100", batch][1] for batch in (1, 4)] == expected.seconds.tolist()
    assert np.isnan(priced.times["h100", 1][[0, 2]]).all()
    rows = cost_sources(priced, hardware.devices[0])
    assert (rows[0].source, rows[0].num_ops) == ("measured tables, measured", 1)
    plan = rlinit.schedule(graph, hardware, objective="latency", costs=folder)
    rlinit.verify(plan, with_costs(graph, hardware, folder), hardware)
    assert plan.costs["measured"] > 0.3
    assert sum(plan.costs.values()) == pytest.approx(1.0)
    assert "measured" in str(plan)
    assert with_costs(graph, rlinit.Hardware.preset("2xt4"), tables).times == {}


def test_language_models_use_tables(folder: Path) -> None:
    """Parts that tables have are measured, the interval is narrower for it, and ties with rules are told as such."""
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 1024, "num_attention_heads": 32}
    model = llm.load(
        {**config, "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 4096}, prompt=64, output=8
    )
    plain, priced = (llm.plan(model, "2xh100", costs=costs) for costs in (None, [folder]))
    assert set(plain.costs) == {"modelled"}
    assert priced.costs["interpolated"] + priced.costs["measured"] > 0.9
    for plan in (plain, priced):
        assert plan.interval[0] < plan.value < plan.interval[1]
        assert sum(plan.costs.values()) == pytest.approx(1.0)
    assert priced.interval[1] / priced.interval[0] < plain.interval[1] / plain.interval[0]
    assert not priced.is_surely_below(priced.value * 1.001)
    assert priced.is_surely_below(priced.value * 3)
    assert priced.to_dict()["costs"] == priced.costs
    for costs in (None, [folder]):
        assert llm.plan(model, "2xh100+eager", costs=costs).value > priced.value  # which takes ops of microseconds


def test_tables_have_the_floor_of_ops_launched_by_the_host(folder: Path) -> None:
    """Tables are of ops that follow each other; a host that launches each makes none faster than that takes."""
    row = {"op": "linear", "flops": 2.0 * 64**3, "param_bytes": 2 * 64**2, "out_bytes": 2 * 64**2}
    graph = rlinit.Graph.build(
        [("x", {"op": "input", "out_bytes": 2 * 64**2, "precision": ["bf16", "bf16"]}),
         ("y", {**row, "precision": ["bf16", "bf16"]})],
        [("x", "y")],
    )  # fmt: skip
    plain, eager = (
        with_costs(graph, rlinit.Hardware.preset(name), folder).times["h100", 1][1] for name in ("h100", "h100+eager")
    )
    assert plain < eager == 1e-5


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the published measurements are not at hand")
@pytest.mark.parametrize("system", ["a100_sxm", "h100_sxm", "l40s"])
def test_published_tables(system: str) -> None:
    """They are read, for the device that they are of, and predict what they measured."""
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow (extra: tables)")
    tables = load(MEASURED / system)
    assert tables.device == system.partition("_")[0]
    found = tables.product([1, 100], 4096, 5000)
    assert found is not None
    assert ((found.spread > -0.2) & (found.spread < 0.2)).all()
