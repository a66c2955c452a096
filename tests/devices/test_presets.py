"""Hardware by name: devices joined to hosts, hosts by a network, rates by dtype."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rlinit.costs.roofline import op_times, roofline
from rlinit.devices.presets import kinds
from rlinit.errors import InvalidGraph, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.units import DTYPES


@pytest.mark.parametrize("kind", [kind for kind, figures in kinds().items() if "flops_per_s" in figures])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_has_rates_for_every_dtype(kind: str, dtype: str) -> None:
    """A kind alone is hardware, no slower for narrower numbers than for FP32, and reads back as it was."""
    hardware = Hardware.preset(kind)
    rate, wide = hardware.devices[0].rate(dtype), hardware.devices[0].rate("fp32")
    assert rate is not None
    assert wide is not None
    assert rate >= wide
    assert Hardware.from_dict(hardware.to_dict()) == hardware


def test_devices_of_one_host_are_on_its_bus() -> None:
    """Several of a kind are numbered; the slower bus of two devices is their link."""
    hardware = Hardware.preset("2x3090+h100+cpu")
    assert [device.name for device in hardware.devices] == ["rtx3090-0", "rtx3090-1", "h100", "cpu"]
    assert hardware.bandwidth[0, 2] == hardware.bandwidth[0, 1] == hardware.bandwidth[3, 0] == 31.5e9
    assert hardware.bandwidth[2, 3] == 63e9
    assert hardware.latency_s[0, 1] == 10e-6


def test_direct_links_join_devices_of_a_kind() -> None:
    """``nvlink`` is for the pairs that have it; the processor stays on the bus."""
    hardware = Hardware.preset("2xa100-80g+cpu+nvlink")
    assert hardware.bandwidth[0, 1] == 300e9
    assert hardware.bandwidth[0, 2] == 31.5e9
    assert hardware.devices[0].memory_bytes == 80 * 2**30
    assert hardware.devices[0].bytes_per_s == 2039e9
    assert Hardware.preset("2xmi300x+xgmi").bandwidth[0, 1] == 64e9


def test_hosts_are_joined_by_a_network() -> None:
    """Machines by themselves, and hosts behind ``/``, have the network between them and their bus inside."""
    hardware = Hardware.preset("2xrpi5/t4+cpu/10gbe")
    assert [device.node for device in hardware.devices] == ["host0", "host1", "host2", "host2"]
    assert hardware.bandwidth[0, 1] == hardware.bandwidth[1, 2] == 1.25e9
    assert hardware.bandwidth[2, 3] == 15.75e9


def test_two_counts_are_nodes_and_the_devices_of_each() -> None:
    """Direct links inside, a port of InfiniBand a device between; a network that is said counts instead."""
    hardware = Hardware.preset("2x8xa100-80g")
    assert list(map(len, hardware.nodes.values())) == [8, 8]
    assert hardware.bandwidth[0, 7] == 300e9
    assert (hardware.bandwidth[7, 8], hardware.latency_s[7, 8]) == (25e9, 14e-6)
    assert Hardware.preset("2x8xh100").bandwidth[0, 8] == 50e9
    slower = Hardware.preset("2x8xh100/10gbe+eager")
    assert (slower.bandwidth[0, 8], slower.bandwidth[0, 1]) == (1.25e9, 450e9)
    assert slower.devices[0].host_s > 0
    assert Hardware.preset("2x4xl4").bandwidth[0, 1] == 31.5e9
    assert Hardware.preset("1x8xa100").nodes == {"": tuple(f"a100-{i}" for i in range(8))}
    unlike = Hardware.preset("8xa100-80g+nvlink/4xl4/100gbe")
    assert list(map(len, unlike.nodes.values())) == [8, 4]
    with pytest.raises(InvalidHardware, match="from 1 to"):
        Hardware.preset("0x8xa100")
    with pytest.raises(InvalidHardware, match="too many"):
        Hardware.preset("2048x8xa100")


def test_links_of_large_clusters_are_written_by_what_most_are() -> None:
    """Only links inside nodes are listed, and what is read is what was written."""
    hardware = Hardware.preset("16x8xa100-80g")
    written = hardware.to_dict()
    assert len(written["link"]) == 16 * 8 * 7
    assert written["bandwidth"] == 25e9
    assert Hardware.from_dict(written) == hardware


def test_rates_are_widened_where_there_are_no_units() -> None:
    """A T4 has no BF16, an A100 no FP8: they work on the next wider type."""
    assert Hardware.preset("t4").devices[0].rate("bf16") == 8.1e12
    assert Hardware.preset("a100").devices[0].rate("fp8") == 312e12
    assert Device("x", flops_per_s=3.0).rate("int4") == 3.0
    assert Device("x", flops_per_s={"int8": 3.0}).rate("fp32") is None
    assert Device("x", flops_per_s={"int8": 3.0}).rate() == 3.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("2xrpi5", "say the network"),
        ("rpi5+t4", "machine by itself"),
        ("t4+10gbe", "expected no network"),
        ("2xt4+nvlink", "have nvlink"),
        ("a100-81g", "a100-80g"),
        ("0xt4", "expected a count"),
        ("abacus+t4", "unknown preset"),
        ("10gbe", "unknown preset"),
        ("2x3091+cpu", "did you mean '3090'"),
        ("t4+a10/10gbe", "did you mean 'a100'"),
        ("rtx4090-2g", "expected one of rtx4090, rtx4090-24g"),
    ],
)
def test_wrong_names_are_told(name: str, said: str) -> None:
    """A message says what is wrong with a name and what would be right."""
    with pytest.raises(InvalidHardware, match=said):
        Hardware.preset(name)


def test_memory_is_what_the_device_may_take() -> None:
    """A variant replaces the memory and what goes with it; unified memory is shared with the system."""
    large, small = Hardware.preset("m3-max").devices[0], Hardware.preset("m3-max-36g").devices[0]
    assert (large.memory_bytes, large.bytes_per_s) == (96 * 2**30, 400e9)
    assert (small.memory_bytes, small.bytes_per_s) == (27 * 2**30, 300e9)
    assert small.rate("fp16") == 10.7e12


def typed(precision: list[str | None] | None, output: str | None = None) -> Graph:
    """Return a graph of one op that computes and one that only moves, with what is said of their numbers."""
    row = {"flops": 1e9, "param_bytes": 1e3, "out_bytes": 1e3}
    said = {"precision": precision} if precision else {}
    graph = Graph.build([("a", row | said), ("b", row | said | {"flops": 0.0})], [("a", "b")])
    if output is None:
        return graph
    return dataclasses.replace(graph, extras={v: {**graph.extras.get(v, {}), "outputs": [[output, 4]]} for v in (0, 1)})


@pytest.mark.parametrize(
    ("graph", "rate"),
    [
        (typed(["int4", "fp16"]), 65e12),
        (typed(["int8", "int8"]), 130e12),
        (typed(["fp16", "int8"]), 65e12),
        (typed(["int4", None], "float16"), 65e12),
        (typed(None, "uint8"), 130e12),
        (typed(None, "float64"), 8.1e12),
        (typed(None), 8.1e12),
    ],
)
def test_an_op_runs_at_the_rate_of_its_numbers(graph: Graph, rate: float) -> None:
    """The wider type of weights and activations counts, as chosen or as in the file; nothing said goes as FP32."""
    device = dataclasses.replace(Hardware.preset("t4").devices[0], bytes_per_s=None)
    assert roofline(graph, device) == pytest.approx(np.array([1e9 / rate, 0.0]) + device.launch_s)


def test_a_type_without_a_rate_is_told() -> None:
    """An op in FP32 has no time on a device for INT8 alone, and its graph is another one than in INT8."""
    device = Device("npu", flops_per_s={"int8": 1e12})
    with pytest.raises(InvalidGraph, match="no flops_per_s for fp32 or a wider type"):
        op_times(typed(None, "float32"), device)
    assert op_times(typed(["int8", "int8"]), device)[0] == 1e-3
    types = ["fp32", "fp16", "bf16", "int8", "int4"]
    assert len({typed([one, one]).fingerprint() for one in types}) == len(types)


def test_rates_by_type_are_read_from_files(tmp_path: Path) -> None:
    """TOML takes a table of rates with units, JSON gives it back, and unknown types are named."""
    path = tmp_path / "hw.toml"
    text = '[[device]]\nname = "g"\nflops_per_s = {{ fp32 = "8.1 TFLOPS", {} = 65e12 }}\n'
    path.write_text(text.format("fp16"), encoding="utf-8")
    hardware = Hardware.load(path)
    assert hardware.devices[0].flops_per_s == {"fp32": 8.1e12, "fp16": 65e12}
    hardware.save(tmp_path / "hw.json")
    assert Hardware.load(tmp_path / "hw.json") == hardware
    assert hash(hardware) == hash(Hardware.load(path))
    path.write_text(text.format("fp61"), encoding="utf-8")
    with pytest.raises(InvalidHardware, match=r"'fp61'.*'fp16'"):
        Hardware.load(path)
    with pytest.raises(InvalidHardware, match="no rate"):
        Device("g", flops_per_s={})


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "nvme"])
def test_every_kind_takes_its_own_memory_behind_its_name(kind: str) -> None:
    """``4xh100-80g`` is ``4xh100``: the size on the box is no other card; each kind has one that may be said."""
    figures = kinds()[kind]
    if "sold_as" not in figures:
        assert figures["variants"]
        return
    said, plain = Hardware.preset(f"4x{kind}-{figures['sold_as']}"), Hardware.preset(f"4x{kind}")
    assert said.devices == plain.devices
    assert f"{kind}-{figures['sold_as']}" in said.name
    assert 0.9 < plain.devices[0].memory_bytes / 2**30 / float(figures["sold_as"][:-1]) <= 1.0
