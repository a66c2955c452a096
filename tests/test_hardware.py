"""Hardware: presets, files, widest paths, and what is refused."""

from __future__ import annotations

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
    with pytest.raises(InvalidHardware, match="at least one"):
        Hardware.pipeline(0)
    with pytest.raises(InvalidHardware, match="at least one"):
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
