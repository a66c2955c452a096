"""Hardware: presets, files, widest paths, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from rlinit.errors import InvalidHardware
from rlinit.hardware import Device, Hardware

CLUSTER = """
name = "three"
[[device]]
name = "cpu"
io_bandwidth = "unlimited"
[[device]]
name = "gpu"
kind = "t4"
count = 2
memory_bytes = 16e9
[[link]]
from = "cpu"
to = "gpu0"
bandwidth = 4.0
[[link]]
from = "gpu0"
to = "gpu1"
bandwidth = 2.0
latency_s = 0.5
"""


def test_sparse_links_become_a_mesh_by_the_widest_path(tmp_path: Path) -> None:
    """A path of two links is as wide as the narrower one, and as late as both."""
    (tmp_path / "hw.toml").write_text(CLUSTER)
    hardware = Hardware.load(tmp_path / "hw.toml")
    assert [device.name for device in hardware.devices] == ["cpu", "gpu0", "gpu1"]
    assert hardware.bandwidth[0, 2] == hardware.bandwidth[2, 0] == 2.0
    assert hardware.latency_s[0, 2] == 0.5
    assert hardware.io_bandwidth(0) == (math.inf, math.inf)
    assert hardware.io_bandwidth(1) == (2.0, 2.0)


def test_json_round_trip_is_exact(tmp_path: Path) -> None:
    """A saved file reads back equal, with the same fingerprint."""
    (tmp_path / "hw.toml").write_text(CLUSTER)
    for hardware in (Hardware.load(tmp_path / "hw.toml"), Hardware.edge_tpus(6), Hardware.pipeline(1)):
        hardware.save(tmp_path / "hw.json")
        again = Hardware.load(tmp_path / "hw.json")
        assert again == hardware
        assert again.fingerprint() == hardware.fingerprint()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not valid TOML"),
        ("name = 'x'", "device"),
        ("[[device]]\nname = 'a'\nspeed = 3\n", "speed"),
        ("[[device]]\nname = 'a'\nmemory_bytes = -1\n", "memory_bytes"),
        ("[[device]]\nname = 'a'\n[[device]]\nname = 'a'\n", "'a' appears more than once"),
        ("[[device]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'b'\nbandwidth = 1\n", "unknown device 'b'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """Unknown keys, wrong values, duplicate names and unknown devices are named."""
    (tmp_path / "hw.toml").write_text(text)
    with pytest.raises(InvalidHardware, match=message):
        Hardware.load(tmp_path / "hw.toml")


def test_bad_arguments_are_refused() -> None:
    """K < 1, an unknown preset, unreadable files and negative rates are errors with a cure."""
    with pytest.raises(InvalidHardware, match="stages is 0"):
        Hardware.pipeline(0)
    with pytest.raises(InvalidHardware, match="stages is -1"):
        Hardware.edge_tpus(-1)
    with pytest.raises(InvalidHardware, match="edge-tpu-K"):
        Hardware.preset("abacus")
    with pytest.raises(InvalidHardware, match=r"missing\.json"):
        Hardware.load("missing.json")
    with pytest.raises(InvalidHardware, match="bandwidth"):
        Hardware.pipeline(2, bandwidth=-1.0)
    with pytest.raises(InvalidHardware, match="shape"):
        Hardware((Device("a"),), np.ones((2, 2)), np.zeros((1, 1)))
    with pytest.raises(InvalidHardware, match="stages is 0"):
        Hardware.pipeline(2).with_stages(0)


def test_stage_count_can_be_chosen_for_equal_devices_only() -> None:
    """with_stages copies equal devices and refuses to guess among unequal ones."""
    grown = Hardware.edge_tpus(2).with_stages(5)
    assert len(grown) == 5
    assert grown.devices[4].cache_bytes == Hardware.edge_tpus(1).devices[0].cache_bytes
    with pytest.raises(InvalidHardware, match="unequal"):
        Hardware.preset("cpu-t4-a100").with_stages(2)


def test_presets_of_moirai_have_the_measured_bandwidths() -> None:
    """Rows are senders and Gbps become bytes a second."""
    inter = Hardware.preset("moirai-inter")
    assert [device.kind for device in inter.devices] == ["rtx2080ti", "t4", "p4", "rtx3060ti"]
    assert [device.memory_bytes / 2**30 for device in inter.devices] == [11, 16, 8, 8]
    assert inter.bandwidth[0, 1] == 44.26e9 / 8
    assert inter.bandwidth[1, 0] == 42.39e9 / 8
    assert inter.bandwidth[3, 2] == 33.28e9 / 8
    assert len({device.node for device in inter.devices}) == 4
    intra = Hardware.preset("moirai-intra")
    assert [device.kind for device in intra.devices] == ["v100", "v100", "p100", "p100"]
    assert intra.bandwidth[2].tolist() == [630.43e9 / 8, 609.82e9 / 8, math.inf, 571.96e9 / 8]


def test_given_links_stay_beside_wider_detours() -> None:
    """A slow direct link is not replaced by a faster path; a missing one is, latencies included."""
    rates = np.array([[np.inf, 1.0, 8.0], [0.0, np.inf, 4.0], [8.0, 4.0, np.inf]])
    delays = np.array([[0.0, 0.5, 0.25], [0.0, 0.0, 0.125], [1.0, 2.0, 0.0]])
    hardware = Hardware((Device("a"), Device("b"), Device("c")), rates, delays)
    assert hardware.bandwidth.tolist() == [[math.inf, 1.0, 8.0], [4.0, math.inf, 4.0], [8.0, 4.0, math.inf]]
    assert hardware.latency_s.tolist() == [[0.0, 0.5, 0.25], [1.125, 0.0, 0.125], [1.0, 2.0, 0.0]]
    assert Hardware.from_dict(hardware.to_dict()) == hardware


def test_gpt3_nodes_are_joined_through_their_cpus() -> None:
    """Within a host every pair has PCIe; between hosts the Ethernet link limits."""
    hardware = Hardware.preset("gpt3-nodes")
    assert hardware.num_devices == 30
    hosts = [device.node for device in hardware.devices]
    assert sorted(set(hosts)) == [f"n{i}" for i in range(6)]
    assert [device.name for device in hardware.devices[:5]] == [
        "n0.cpu",
        "n0.t4-0",
        "n0.t4-1",
        "n0.a100-0",
        "n0.a100-1",
    ]
    for i, a in enumerate(hosts):
        for j, b in enumerate(hosts):
            assert hardware.bandwidth[i, j] == (math.inf if i == j else 31.5e9 if a == b else 12.5e9)


def test_hardware_is_not_written_under_a_name_it_is_not_read_by(tmp_path: Path) -> None:
    """What is saved is JSON, which a name in .toml would hide."""
    with pytest.raises(InvalidHardware, match=r"name the file .*hw\.json"):
        Hardware.pipeline(2).save(tmp_path / "hw.toml")
    assert not list(tmp_path.iterdir())


def test_batch_sizes_and_node_survive_files(tmp_path: Path) -> None:
    """Absent or null batch sizes mean every one; given ones and hosts read back as written."""
    path = tmp_path / "hw.json"
    hardware = Hardware.mesh([Device("a"), Device("b", batch_sizes=(4, 2), node="left")], 1.0)
    hardware.save(path)
    assert Hardware.load(path) == hardware
    assert Hardware.load(path).devices == hardware.devices
    assert hardware.devices[0].batch_sizes is None
    path.write_text('{"device": [{"name": "a", "batch_sizes": null, "node": "x"}]}')
    assert Hardware.load(path).devices == (Device("a", node="x"),)
    path.write_text('{"device": [{"name": "a", "batch_sizes": []}]}')
    with pytest.raises(InvalidHardware, match="batch_sizes"):
        Hardware.load(path)
    for sizes in ((), (0,), (2, -1)):
        with pytest.raises(InvalidHardware, match="batch_sizes"):
            Device("a", batch_sizes=sizes)


def test_an_unknown_preset_is_told_all_known_ones() -> None:
    """The message lists every preset, and each of them can be had and read back."""
    with pytest.raises(InvalidHardware) as problem:
        Hardware.preset("edge-tpu-")
    for name in ("edge-tpu-4", "cpu-t4-a100", "moirai-inter", "moirai-intra", "gpt3-nodes"):
        assert name in str(problem.value)
        hardware = Hardware.preset(name)
        assert Hardware.from_dict(hardware.to_dict()) == hardware


@pytest.mark.parametrize("name", ["1x8xa100-80g", "2xh100", "t4+a100+cpu", "1x2xh200+1x2xl4", "edge-tpu-4", "mi325x"])
def test_files_of_presets_are_read_back(name: str, tmp_path: Path) -> None:
    """All that a device of the catalogue may have is in the schema."""
    hardware = Hardware.preset(name)
    hardware.save(tmp_path / "hardware.json")
    assert Hardware.load(tmp_path / "hardware.json") == hardware


def test_numbered_devices_keep_their_number_apart() -> None:
    """A kind that ends in a digit gets a dash before the number, as in presets."""
    assert [device.name for device in Hardware.preset("2xrtx3090").with_stages(3).devices][-1] == "rtx3090-2"
    rows = {"device": [{"name": "gpu", "count": 1}, {"name": "t4", "count": 1}], "link": []}
    assert [device.name for device in Hardware.from_dict(rows).devices] == ["gpu0", "t4-0"]


def test_whole_numbers_are_the_same_as_decimals(tmp_path: Path) -> None:
    """A device saved and read again is the device, whatever numbers it was made with."""
    device = Device("d0", memory_bytes=2**34, flops_per_s=10**9, bytes_per_s=10**9, launch_s=0, cache_bytes=5)
    hardware = Hardware.mesh([device, Device("d1")], 10**9)
    hardware.save(tmp_path / "hardware.json")
    again = Hardware.load(tmp_path / "hardware.json")
    assert again == hardware
    assert again.fingerprint() == hardware.fingerprint()


def test_a_part_slows_itself_as_the_whole_does() -> None:
    """A part has the devices named, their links, and what they share; others are refused."""
    devices = [Device(name, shares="cpu" * (name != "c")) for name in "abc"]
    bandwidth = np.arange(1.0, 10.0).reshape(3, 3)
    whole = dataclasses.replace(Hardware.mesh(devices), bandwidth=bandwidth, sharing={"cpu": (1.0, 1.5)})
    part = whole.part([2, 0], "two")
    assert [device.name for device in part.devices] == ["c", "a"]
    assert (part.name, part.sharing) == ("two", {"cpu": (1.0, 1.5)})
    assert (part.bandwidth[0, 1], part.bandwidth[1, 0]) == (whole.bandwidth[2, 0], whole.bandwidth[0, 2])
    assert whole.part([2]).sharing == {}
    with pytest.raises(InvalidHardware, match="has 3 devices; expected some of them, got"):
        whole.part(range(4))
