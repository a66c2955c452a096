"""Devices and the links between them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import InvalidHardware
from rlinit.files import check_schema, read_json, write_json

__all__ = ["Device", "Hardware"]

_MIB = float(2**20)
_GIB = float(2**30)


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Parameters
    ----------
    name, kind
        A unique name, and a kind ("cpu", "t4") that times and exclusions may refer to.
    memory_bytes
        Hard capacity in bytes; inf: none.
    cache_bytes
        Fast memory in bytes; parameters beyond it are streamed on every input. inf: all fits.
    flops_per_s, bytes_per_s, launch_s
        Peak rates and the fixed cost of an op for the roofline model; None: no such model for this device.
    io_bandwidth
        Bytes a second in and out of the device as a pipeline stage; inf: it pays no transfer; None: the slowest of
        its links.
    batch_sizes
        Supported batch sizes; None: all of them.
    """

    name: str
    kind: str = ""
    memory_bytes: float = math.inf
    cache_bytes: float = math.inf
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    launch_s: float = 0.0
    io_bandwidth: float | None = None
    batch_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidHardware("a device has an empty name")
        for what in ("memory_bytes", "flops_per_s", "bytes_per_s", "io_bandwidth"):
            value = getattr(self, what)
            if value is not None and not value > 0:
                raise InvalidHardware(f"device {self.name!r}: {what} is {value}; expected a number > 0")
        for what in ("cache_bytes", "launch_s"):
            if not getattr(self, what) >= 0:
                raise InvalidHardware(f"device {self.name!r}: {what} is {getattr(self, what)}; expected a number >= 0")
        if self.batch_sizes is not None and (not self.batch_sizes or min(self.batch_sizes) < 1):
            raise InvalidHardware(f"device {self.name!r}: batch_sizes is {self.batch_sizes}; expected integers >= 1")


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """Devices and the bandwidth of every ordered pair.

    Parameters
    ----------
    devices
        d devices with distinct names. For stage problems device i is stage slot i.
    bandwidth
        (d, d) bytes/s from row to column; inf: transfers cost nothing; 0: no link. A sparse link graph becomes a
        mesh by the widest path: the bandwidth of a multi-hop path is its smallest link.
    latency_s
        (d, d) seconds added to every transfer.
    name
        A name for tables and files.

    Raises
    ------
    InvalidHardware
        No device, duplicate names, shapes that do not fit, negative or NaN rates.
    """

    devices: tuple[Device, ...]
    bandwidth: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    name: str = "hardware"

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidHardware("hardware has no devices; expected at least one")
        names = [device.name for device in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise InvalidHardware(f"device name {name!r} appears more than once")
        d = len(names)
        for what, matrix in (("bandwidth", self.bandwidth), ("latency_s", self.latency_s)):
            if matrix.shape != (d, d):
                raise InvalidHardware(f"{what} has shape {matrix.shape}; expected ({d}, {d}), one row for each device")
            if np.isnan(matrix).any() or (matrix < 0).any():
                i, j = np.argwhere(np.isnan(matrix) | (matrix < 0))[0]
                raise InvalidHardware(f"{what} from {names[i]!r} to {names[j]!r} is {matrix[i, j]}; expected >= 0")
        bandwidth, latency = _widest_paths(self.bandwidth, self.latency_s)
        object.__setattr__(self, "bandwidth", bandwidth)
        object.__setattr__(self, "latency_s", latency)

    @property
    def num_devices(self) -> int:
        """Number of devices d."""
        return len(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return f"Hardware({self.name!r}, devices=[{', '.join(device.name for device in self.devices)}])"

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Hardware) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.devices)

    def fingerprint(self) -> str:
        """Return a SHA-256 over devices and links."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    # -- construction ------------------------------------------------------------------------------------------

    @classmethod
    def mesh(
        cls,
        devices: Sequence[Device],
        bandwidth: float = math.inf,
        *,
        latency_s: float = 0.0,
        name: str = "mesh",
    ) -> Hardware:
        """Return devices that are linked pairwise at one bandwidth (bytes/s)."""
        d = len(devices)
        rates = np.full((d, d), float(bandwidth))
        np.fill_diagonal(rates, np.inf)
        return cls(tuple(devices), rates, latency_s * (1.0 - np.eye(d)), name)

    @classmethod
    def pipeline(
        cls,
        k: int,
        *,
        bandwidth: float = math.inf,
        memory: float = math.inf,
        cache: float = math.inf,
        flops_per_s: float | None = None,
        bytes_per_s: float | None = None,
    ) -> Hardware:
        """Return k equal stages: `bandwidth` in bytes/s, `memory` and `cache` in bytes.

        Raises
        ------
        InvalidHardware
            k < 1, or a rate or capacity that is not positive.
        """
        if k < 1:
            raise InvalidHardware(f"a pipeline needs at least one stage; got k = {k}")
        if not bandwidth > 0:
            raise InvalidHardware(f"bandwidth is {bandwidth}; expected bytes a second > 0")
        stage = Device("stage", "stage", memory, cache, flops_per_s, bytes_per_s, io_bandwidth=float(bandwidth))
        stages = [dataclasses.replace(stage, name=f"stage{i}") for i in range(k)]
        return cls.mesh(stages, bandwidth, name=f"pipeline-{k}")

    @classmethod
    def edge_tpus(cls, k: int) -> Hardware:
        """Return k Coral Edge TPUs in a pipeline over USB 3.

        Peak 4 TOPS (INT8) and 8 MiB of on-chip memory are the vendor's figures; 32 GB/s of memory bandwidth is the
        baseline of Boroumand et al. (2021); 320 MB/s is a common measured USB 3 bulk rate.

        Raises
        ------
        InvalidHardware
            k < 1.
        """
        if k < 1:
            raise InvalidHardware(f"a pipeline needs at least one Edge TPU; got k = {k}")
        tpus = [Device(f"tpu{i}", "edge-tpu", math.inf, 8 * _MIB, 4e12, 32e9, io_bandwidth=320e6) for i in range(k)]
        return cls.mesh(tpus, 320e6, name=f"edge-tpu-{k}")

    @classmethod
    def preset(cls, name: str) -> Hardware:
        """Return hardware by name: ``edge-tpu-K`` for any K, or ``cpu-t4-a100``.

        ``cpu-t4-a100`` is a host with a T4 and an A100 on PCIe 4.0 x16 (31.5 GB/s); rates are FP32 peaks and memory
        bandwidths from the vendors' data sheets.

        Raises
        ------
        InvalidHardware
            An unknown name.
        """
        prefix, _, count = name.rpartition("-")
        if prefix == "edge-tpu" and count.isdigit():
            return cls.edge_tpus(int(count))
        if name == "cpu-t4-a100":
            cpu = Device("cpu", "cpu", math.inf, flops_per_s=2.0e12, bytes_per_s=100e9, launch_s=1e-6)
            t4 = Device("t4", "t4", 16 * _GIB, flops_per_s=8.1e12, bytes_per_s=320e9, launch_s=5e-6)
            a100 = Device("a100", "a100", 40 * _GIB, flops_per_s=19.5e12, bytes_per_s=1555e9, launch_s=5e-6)
            return cls.mesh([cpu, t4, a100], 31.5e9, name=name)
        raise InvalidHardware(f"unknown preset {name!r}; expected edge-tpu-K (such as edge-tpu-4) or cpu-t4-a100")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hardware:
        """Build hardware from the JSON/TOML form; the caller has checked it against the schema.

        Raises
        ------
        InvalidHardware
            A link that names an unknown device, or contents the constructor refuses.
        """
        devices = [device for row in data["device"] for device in _expand(row)]
        index = {device.name: i for i, device in enumerate(devices)}
        d = len(devices)
        bandwidth = np.full((d, d), float(data.get("bandwidth", 0.0 if "link" in data else math.inf)))
        latency = np.full((d, d), float(data.get("latency_s", 0.0)))
        np.fill_diagonal(bandwidth, np.inf)
        np.fill_diagonal(latency, 0.0)
        for link in data.get("link", []):
            for end in ("from", "to"):
                if link[end] not in index:
                    raise InvalidHardware(
                        f"link {link['from']!r} -> {link['to']!r} names the unknown device {link[end]!r}"
                    )
            i, j = index[link["from"]], index[link["to"]]
            for a, b in [(i, j)] if link.get("one_way") else [(i, j), (j, i)]:
                bandwidth[a, b] = _rate(link["bandwidth"])
                latency[a, b] = float(link.get("latency_s", 0.0))
        return cls(tuple(devices), bandwidth, latency, data.get("name", "hardware"))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (schema `rlinit/schemas/hardware.schema.json`): every device, every link."""
        links = [
            {
                "from": a.name,
                "to": b.name,
                "bandwidth": "unlimited" if np.isinf(self.bandwidth[i, j]) else float(self.bandwidth[i, j]),
                "latency_s": float(self.latency_s[i, j]),
                "one_way": True,
            }
            for i, a in enumerate(self.devices)
            for j, b in enumerate(self.devices)
            if i != j and self.bandwidth[i, j] > 0
        ]
        return {"name": self.name, "device": [_device_dict(device) for device in self.devices], "link": links}

    @classmethod
    def load(cls, path: str | Path) -> Hardware:
        """Read a ``.toml`` or ``.json`` hardware file.

        Raises
        ------
        InvalidHardware
            Unreadable or malformed file, an unknown key (named, with its path), or contents that make no sense.
        """
        if Path(path).suffix != ".toml":
            return cls.from_dict(read_json(path, "hardware", InvalidHardware))
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidHardware(f"cannot read {path}: {problem}") from problem
        except tomllib.TOMLDecodeError as problem:
            raise InvalidHardware(f"{path} is not valid TOML: {problem}") from None
        check_schema(data, "hardware", InvalidHardware, str(path))
        return cls.from_dict(data)

    def save(self, path: str | Path) -> None:
        """Write the hardware as JSON, atomically."""
        write_json(path, self.to_dict())

    def with_stages(self, k: int) -> Hardware:
        """Return hardware with k stage slots: itself, copies of its only device, or its first k when all are equal.

        Raises
        ------
        InvalidHardware
            k < 1, or unequal devices of which k cannot be chosen without guessing.
        """
        if k < 1:
            raise InvalidHardware(f"stages is {k}; expected at least 1")
        if k == self.num_devices:
            return self
        first = self.devices[0]
        same = all(dataclasses.replace(device, name=first.name) == first for device in self.devices)
        off_diagonal = ~np.eye(self.num_devices, dtype=bool)
        rates, delays = self.bandwidth[off_diagonal], self.latency_s[off_diagonal]
        if not same or (len(rates) and (np.ptp(rates) > 0 or np.ptp(delays) > 0)):
            raise InvalidHardware(
                f"stages is {k} but {self.name!r} has {self.num_devices} unequal devices; list the devices to use"
            )
        devices = [dataclasses.replace(first, name=f"{first.kind or first.name}{i}") for i in range(k)]
        bandwidth = float(rates[0]) if len(rates) else (first.io_bandwidth or math.inf)
        return Hardware.mesh(
            devices, bandwidth, latency_s=float(delays[0]) if len(delays) else 0.0, name=f"{self.name}-{k}"
        )

    def io_bandwidth(self, i: int) -> tuple[float, float]:
        """Return (in, out) bytes/s of device i as a pipeline stage: its own figure, or its slowest links."""
        own = self.devices[i].io_bandwidth
        if own is not None:
            return own, own
        others = np.arange(self.num_devices) != i
        if not others.any():
            return math.inf, math.inf
        return float(self.bandwidth[others, i].min()), float(self.bandwidth[i, others].min())


def _expand(row: Mapping[str, Any]) -> list[Device]:
    """Return the devices one table of a file stands for (`count` makes several)."""
    values = {key: value for key, value in row.items() if key != "count"}
    if values.get("batch_sizes") is not None:
        values["batch_sizes"] = tuple(values["batch_sizes"])
    if "io_bandwidth" in values:
        values["io_bandwidth"] = _rate(values["io_bandwidth"])
    device = Device(**values)
    if "count" not in row:
        return [device]
    return [dataclasses.replace(device, name=f"{device.name}{i}") for i in range(row["count"])]


def _rate(value: float | str) -> float:
    return math.inf if isinstance(value, str) else float(value)


def _device_dict(device: Device) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for entry in dataclasses.fields(Device):
        value = getattr(device, entry.name)
        if entry.name == "batch_sizes":
            if value is not None:
                row[entry.name] = list(value)
        elif entry.name == "io_bandwidth" and value is not None and math.isinf(value):
            row[entry.name] = "unlimited"
        elif value is not None and value != "" and value != math.inf:
            row[entry.name] = value
    return row


def _widest_paths(
    bandwidth: NDArray[np.float64], latency_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bandwidths and latencies of the widest paths (ties: the lowest latency), Floyd-Warshall style."""
    rate, delay = bandwidth.astype(np.float64), latency_s.astype(np.float64)
    np.fill_diagonal(rate, np.inf)
    np.fill_diagonal(delay, 0.0)
    delay[rate == 0] = np.inf
    for hop in range(len(rate)):
        through = np.minimum(rate[:, hop, None], rate[None, hop, :])
        later = delay[:, hop, None] + delay[None, hop, :]
        better = (through > rate) | ((through == rate) & (rate > 0) & (later < delay))
        rate, delay = np.where(better, through, rate), np.where(better, later, delay)
    delay[rate == 0] = 0.0
    return rate, delay
