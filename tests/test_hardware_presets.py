"""Hardware by name: devices joined to hosts, hosts by a network, rates by dtype."""

from __future__ import annotations

import math

import pytest

from rlinit.errors import InvalidHardware
from rlinit.hardware import Hardware
from rlinit.hardware_presets import DTYPES, kinds


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_has_rates_for_every_dtype(kind: str, dtype: str) -> None:
    """A kind alone is hardware, no slower for narrower numbers than for FP32, and reads back as it was."""
    hardware = Hardware.preset(kind, dtype=dtype)
    wide = Hardware.preset(kind).devices[0].flops_per_s or math.inf
    assert (hardware.devices[0].flops_per_s or 0.0) >= wide
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


def test_rates_are_widened_where_there_are_no_units() -> None:
    """A T4 has no BF16, an A100 no FP8: they work on the next wider type."""
    assert Hardware.preset("t4", dtype="bf16").devices[0].flops_per_s == 8.1e12
    assert Hardware.preset("a100", dtype="fp8").devices[0].flops_per_s == 312e12


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
    ],
)
def test_wrong_names_are_told(name: str, said: str) -> None:
    """A message says what is wrong with a name and what would be right."""
    with pytest.raises(InvalidHardware, match=said):
        Hardware.preset(name)


def test_wholes_have_the_rates_of_their_papers() -> None:
    """A dtype is for joined devices; the presets of papers say so, and so does an unknown dtype."""
    with pytest.raises(InvalidHardware, match="no rates for fp16"):
        Hardware.preset("cpu-t4-a100", dtype="fp16")
    with pytest.raises(InvalidHardware, match="expected one of fp32"):
        Hardware.preset("t4", dtype="fp17")
