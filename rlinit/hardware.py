"""Devices and the links between them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING
from rlinit.devices.efficiency import Efficiency, efficiencies_of
from rlinit.devices.presets import compose, kinds, nearest, papers
from rlinit.errors import InvalidHardware
from rlinit.files import check_schema, read_json, read_text, write_json
from rlinit.limits import LARGEST, LARGEST_BATCH, check_device_count, check_name, check_number, closest
from rlinit.units import DTYPES, parse_quantity, rate_for

__all__ = ["CAPACITY_SLACK", "Device", "Hardware"]

CAPACITY_SLACK = 1.0 + ROUNDING
"""Room for rounding where sums of bytes that are not integers are held against a capacity."""


_SMALLEST = 1.0 / LARGEST
"""Smallest capacity or rate."""

_MIB = float(2**20)
"""Bytes."""


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
        Peak rates and the fixed cost of an op for the roofline model; None: no such model for this device. Operations a
        second are one number for all, or a mapping from the type of numbers ("fp32", "tf32", "fp16", "bf16", "fp8",
        "int8", "int4"); see `rate`.
    io_bandwidth
        Bytes a second in and out of the device as a pipeline stage; inf: it pays no transfer; None: the slowest of
        its links.
    batch_sizes
        Supported batch sizes, without order; None: every one.
    node
        Name of the host the device sits in, or "". Hosts that hold equal devices may be exchanged for each other.
    cost_per_hour
        What an hour of it costs, in any currency; nothing but sweeps looks at it.
    reserve_bytes
        Bytes of the memory that are taken whatever runs: the driver's context, kernels, workspaces. Placements that
        count the peak of live tensors keep them free.
    shares
        Name of a processor, bus or socket that it shares with other devices, or ""; see `Hardware.sharing`.
    slowdown
        Factor, at least 1, on the seconds of all that it does, such as for other work on the same processor.
    host_s
        Least seconds of an op where the host launches every op by itself (eager), as the device waits for it; 0: ops
        follow each other without the host, as in a replayed graph. For the roofline model and measured tables.
    efficiency
        class of ops (`rlinit.devices.efficiency.OP_CLASSES`) -> what they reach of the peak rates; 1 for those not
        named.

    Raises
    ------
    InvalidHardware
        A name that is no text or empty, a rate or memory that is not a number above 0, an unknown type of numbers, a
        cache or launch time below 0, a reserve that leaves no memory, or batch sizes that are not positive integers.
    """

    name: str
    kind: str = ""
    memory_bytes: float = math.inf
    cache_bytes: float = math.inf
    flops_per_s: float | Mapping[str, float] | None = field(default=None, hash=False)
    bytes_per_s: float | None = None
    launch_s: float = 0.0
    io_bandwidth: float | None = None
    batch_sizes: tuple[int, ...] | None = None
    node: str = ""
    cost_per_hour: float | None = None
    reserve_bytes: float = 0.0
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict, hash=False)
    shares: str = ""
    slowdown: float = 1.0
    host_s: float = 0.0

    def __post_init__(self) -> None:
        check_name("the name of a device", self.name, InvalidHardware)
        for what in ("kind", "node", "shares"):
            check_name(f"device {self.name!r}: {what}", getattr(self, what), InvalidHardware, empty=True)
        for what in ("memory_bytes", "bytes_per_s", "io_bandwidth"):
            if getattr(self, what) is not None:
                _check_positive(f"device {self.name!r}: {what}", getattr(self, what))
        self._check_rates()
        check_number(f"device {self.name!r}: cache_bytes", self.cache_bytes, InvalidHardware, unlimited=True)
        check_number(f"device {self.name!r}: launch_s", self.launch_s, InvalidHardware)
        check_number(f"device {self.name!r}: host_s", self.host_s, InvalidHardware)
        check_number(f"device {self.name!r}: slowdown", self.slowdown, InvalidHardware, least=1.0)
        check_number(f"device {self.name!r}: reserve_bytes", self.reserve_bytes, InvalidHardware)
        if self.reserve_bytes >= self.memory_bytes:
            raise InvalidHardware(
                f"device {self.name!r}: reserve_bytes is {self.reserve_bytes:,.0f} of {self.memory_bytes:,.0f}; "
                "expected less than the memory"
            )
        if self.cost_per_hour is not None:
            check_number(f"device {self.name!r}: cost_per_hour", self.cost_per_hour, InvalidHardware)
        if self.batch_sizes is not None and not all(
            isinstance(size, int) and 1 <= size <= LARGEST_BATCH for size in self.batch_sizes or (0,)
        ):
            raise InvalidHardware(
                f"device {self.name!r}: batch_sizes is {str(self.batch_sizes)[:60]}; "
                f"expected integers from 1 to {LARGEST_BATCH}"
            )
        for one in fields(self):  # a file says 16.0 where a caller may say 16: both are the same device
            value = getattr(self, one.name)
            if isinstance(value, int):
                object.__setattr__(self, one.name, float(value))

    def _check_rates(self) -> None:
        """Check the operations a second, and keep a copy of them where they go by type."""
        what, rates = f"device {self.name!r}: flops_per_s", self.flops_per_s
        if not isinstance(rates, Mapping):
            if rates is not None:
                _check_positive(what, rates)
            return
        unknown = [one for one in rates if one not in DTYPES]
        if unknown or not rates:
            said = f"the unknown type {unknown[0]!r}{closest(str(unknown[0]), DTYPES)}" if unknown else "no rate"
            raise InvalidHardware(f"{what} has {said}; expected some of {', '.join(DTYPES)}")
        checked = {one: _check_positive(f"{what} of {one}", rates[one]) for one in DTYPES if one in rates}
        object.__setattr__(self, "flops_per_s", checked)

    def rate(self, dtype: str = "") -> float | None:
        """Return the operations a second on numbers of a type ("fp16"), or of the next wider one there is a rate for.

        "" stands for FP32, or the widest type there is. None: no rate for the type or a wider one.
        """
        return rate_for(self.flops_per_s, dtype)


def _check_positive(what: str, value: object) -> float:
    """Return a capacity or rate, which may be infinite, after checking that one can divide by it."""
    number = check_number(what, value, InvalidHardware, unlimited=True)
    if number < _SMALLEST:
        raise InvalidHardware(f"{what} is {number}; expected a number > 0, at least {_SMALLEST:g}")
    return number


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """Devices and the bandwidth of every ordered pair.

    Parameters
    ----------
    devices
        d devices with distinct names. For stage problems device i is stage slot i.
    bandwidth
        (d, d) bytes/s from row to column; inf: transfers cost nothing; 0: no link. A sparse link graph becomes a
        mesh: where there is no link, the widest path stands for it, whose bandwidth is that of its narrowest link. A
        link that is given stays as it is (measured), also where a detour would be wider.
    latency_s
        (d, d) seconds added to every transfer.
    name
        A name for tables and files.
    sharing
        Name that devices share (`Device.shares`) -> factors on the seconds of each of them where 1, 2, ... of them are
        at work; at least 1, and not decreasing; more of them than there are factors slow each other in proportion to
        the last. For `pipeline`, where all stages that are not empty are at work; other objectives do not count it.

    Raises
    ------
    InvalidHardware
        Factors below 1 or decreasing, or of a name that no device shares. No device, duplicate names, shapes that do
        not fit, negative or NaN rates.
    """

    devices: tuple[Device, ...]
    bandwidth: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    name: str = "hardware"
    sharing: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_sharing()
        if not self.devices:
            raise InvalidHardware("hardware has no devices; expected at least one")
        check_name("the hardware's name", self.name, InvalidHardware, empty=True)
        check_device_count(len(self.devices), InvalidHardware)
        names = [device.name for device in self.devices]
        for name, count in Counter(names).items():
            if count > 1:
                raise InvalidHardware(f"device name {name!r} appears more than once")
        d = len(names)
        for what, matrix in (("bandwidth", self.bandwidth), ("latency_s", self.latency_s)):
            if matrix.shape != (d, d):
                raise InvalidHardware(f"{what} has shape {matrix.shape}; expected ({d}, {d}), one row for each device")
            if np.isnan(matrix).any() or (matrix < 0).any():
                i, j = np.argwhere(np.isnan(matrix) | (matrix < 0))[0]
                raise InvalidHardware(f"{what} from {names[i]!r} to {names[j]!r} is {matrix[i, j]}; expected >= 0")
            i, j = np.unravel_index(np.argmax(np.where(np.isinf(matrix), 0.0, matrix)), (d, d))
            check_number(f"{what} from {names[i]!r} to {names[j]!r}", matrix[i, j], InvalidHardware, unlimited=True)
        low = np.argwhere((self.bandwidth > 0) & (self.bandwidth < _SMALLEST))
        if len(low):
            i, j = low[0]
            _check_positive(f"bandwidth from {names[i]!r} to {names[j]!r}", self.bandwidth[i, j])
        bandwidth, latency = _widest_paths(self.bandwidth, self.latency_s)
        object.__setattr__(self, "bandwidth", bandwidth)
        object.__setattr__(self, "latency_s", latency)

    def _check_sharing(self) -> None:
        """Check the factors of shared resources, and keep them as tuples."""
        for name, factors in self.sharing.items():
            what = f"sharing {name!r}"
            if name not in {device.shares for device in self.devices} - {""}:
                raise InvalidHardware(f"{what}: no device shares it; name it in a device's 'shares'")
            numbers = [check_number(what, factor, InvalidHardware, least=1.0) for factor in factors]
            if not numbers or numbers != sorted(numbers):
                raise InvalidHardware(f"{what} is {list(factors)}; expected factors >= 1 that do not decrease")
        kept = {name: tuple(map(float, factors)) for name, factors in self.sharing.items()}
        object.__setattr__(self, "sharing", kept)

    def crowded(self, used: Collection[str]) -> Hardware:
        """Return the hardware without `sharing`, every device as slow as those that are used make it.

        Parameters
        ----------
        used
            Names of the devices that are at work.
        """
        devices = []
        for device in self.devices:
            if factors := self.sharing.get(device.shares):
                active = max(1, sum(one.shares == device.shares and one.name in used for one in self.devices))
                factor = factors[active - 1] if active <= len(factors) else factors[-1] * active / len(factors)
                device = dataclasses.replace(device, slowdown=device.slowdown * factor)
            devices.append(device)
        return dataclasses.replace(self, devices=tuple(devices), sharing={})

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Name of each node -> those of its devices, both in the order of the hardware; one named "" where none is."""
        found: dict[str, list[str]] = {}
        for device in self.devices:
            found.setdefault(device.node, []).append(device.name)
        return {node: tuple(names) for node, names in found.items()}

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
        """Return devices that are linked pairwise at one bandwidth (bytes/s).

        Parameters
        ----------
        devices
            At least one, with distinct names.
        bandwidth
            Bytes/s of every link in each direction, above 0; inf for links that take no time beyond their latency.
        latency_s
            Seconds before the first byte arrives, at least 0, the same for all pairs.
        name
            Name of the whole, for messages and plans.
        """
        d = len(devices)
        check_device_count(d, InvalidHardware)
        rates = np.full((d, d), check_number("bandwidth", bandwidth, InvalidHardware, unlimited=True))
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

        Parameters
        ----------
        k
            Number of stages, at least 1.
        bandwidth
            Bytes/s between a stage and the host or the next stage, above 0.
        memory
            Bytes of parameters that fit on a stage, above 0.
        cache
            Bytes of parameters that a stage keeps on chip, at least 0.
        flops_per_s
            Operations a second of a stage, for graphs whose ops have flops instead of times.
        bytes_per_s
            Bytes a second between a stage's processor and its own memory, for the same graphs.

        Raises
        ------
        InvalidHardware
            k is no whole number of at least 1, or a rate or capacity is not positive.
        """
        _check_stages(k)
        _check_positive("bandwidth", bandwidth)
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
            k is no whole number of at least 1.
        """
        _check_stages(k)
        tpus = [Device(f"tpu{i}", "edge-tpu", math.inf, 8 * _MIB, 4e12, 32e9, io_bandwidth=320e6) for i in range(k)]
        return cls.mesh(tpus, 320e6, name=f"edge-tpu-{k}")

    @classmethod
    def preset(cls, name: str) -> Hardware:
        """Return hardware by name. Peak rates are those of the vendors' data sheets.

        Joined devices have a rate for each type of numbers, and links with a latency. The named wholes have one rate,
        that of FP32, and Edge TPUs that of INT8, whatever a graph's numbers are, and links without latency, as in the
        papers they are from.

        ==================  ========================================================================================
        name                hardware
        ==================  ========================================================================================
        ``edge-tpu-K``      any number of Edge TPUs in a pipeline, see `edge_tpus`
        ``cpu-t4-a100``     a host with a T4 and an A100, each pair on PCIe 4.0 x16 (31.5 GB/s): DIVIML's server
        ``moirai-inter``    RTX 2080 Ti, T4, P4, RTX 3060 Ti in a host each, with the bandwidths Moirai measured
        ``moirai-intra``    two V100 and two P100 in one host, with the bandwidths Moirai measured
        ``gpt3-nodes``      six hosts, each a CPU, two T4 and two A100 on PCIe 4.0 x16, joined by 100 Gb/s Ethernet
                            between their CPUs
        ``2xrtx3090+cpu``   devices joined to one host, ``4xa100-80g+nvlink``, ``m3-max/rtx4090+cpu/10gbe``,
                            ``2xh100+eager``: see `rlinit.devices.presets`
        ==================  ========================================================================================

        Parameters
        ----------
        name
            One of these.

        Raises
        ------
        InvalidHardware
            An unknown name.

        References
        ----------
        Moirai, table III. DIVIML: section V-A, and the thesis's section 5.2.
        """
        prefix, _, count = name.rpartition("-")
        if prefix == "edge-tpu" and count.isdecimal() and len(count) < 10:
            return cls.edge_tpus(int(count))
        found = papers().get(name) or compose(name)
        if found is None:
            stages = name[len(name.rstrip("0123456789")) :] or "4"
            near = closest(name, (f"edge-tpu-{stages}", *papers(), *kinds())) or nearest(name)
            raise InvalidHardware(
                f"unknown preset {name!r}{near} (expected edge-tpu-K such as edge-tpu-4, one of {', '.join(papers())}, "
                f"or devices joined as in '2xrtx3090+cpu', of {', '.join(kinds())})"
            )
        return cls.from_dict(found)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hardware:
        """Build hardware from the JSON/TOML form; the caller has checked it against the schema.

        Raises
        ------
        InvalidHardware
            A link that names an unknown device, or contents the constructor refuses.
        """
        check_device_count(sum(row.get("count", 1) for row in data["device"]), InvalidHardware)
        reached: dict[int, Mapping[str, Efficiency]] = {}
        devices = [device for row in data["device"] for device in _expand(row, reached)]
        index = {device.name: i for i, device in enumerate(devices)}
        d = len(devices)
        everywhere = data.get("bandwidth", 0.0 if "link" in data else math.inf)
        bandwidth = np.full((d, d), _quantity("bandwidth", everywhere, "bytes/s"))
        latency = np.full((d, d), _quantity("latency_s", data.get("latency_s", 0.0), "seconds"))
        np.fill_diagonal(bandwidth, np.inf)
        np.fill_diagonal(latency, 0.0)
        for link in data.get("link", []):
            for end in ("from", "to"):
                if link[end] not in index:
                    near = closest(link[end], index)
                    raise InvalidHardware(
                        f"link {link['from']!r} -> {link['to']!r} names the unknown device {link[end]!r}{near}"
                    )
            i, j = index[link["from"]], index[link["to"]]
            what = f"link {link['from']!r} -> {link['to']!r}"
            rate = _quantity(f"{what}: bandwidth", link["bandwidth"], "bytes/s")
            delay = _quantity(f"{what}: latency_s", link.get("latency_s", 0.0), "seconds")
            for a, b in [(i, j)] if link.get("one_way") else [(i, j), (j, i)]:
                bandwidth[a, b] = rate
                latency[a, b] = delay
        sharing = {name: tuple(factors) for name, factors in data.get("sharing", {}).items()}
        return cls(tuple(devices), bandwidth, latency, data.get("name", "hardware"), sharing)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (schema `rlinit/schemas/hardware.schema.json`): every device, every link.

        Beyond 64 devices, those of the first to the last are written once, for all pairs that no link names.
        """
        apart = ~np.eye(self.num_devices, dtype=np.bool_)
        usual: dict[str, Any] = {}
        if self.num_devices > _LISTED and (self.bandwidth > 0).all():
            rate, delay = float(self.bandwidth[0, -1]), float(self.latency_s[0, -1])
            usual = {"bandwidth": _rate(rate), "latency_s": delay}
            apart &= (self.bandwidth != rate) | (self.latency_s != delay)
        links = [
            {
                "from": self.devices[i].name,
                "to": self.devices[j].name,
                "bandwidth": _rate(float(self.bandwidth[i, j])),
                "latency_s": float(self.latency_s[i, j]),
                "one_way": True,
            }
            for i, j in np.argwhere(apart & (self.bandwidth > 0)).tolist()
        ]
        return self._named({**usual, **({"link": links} if links or not usual else {})})

    def _named(self, links: dict[str, Any]) -> dict[str, Any]:
        data = {"name": self.name, "device": [_device_dict(device) for device in self.devices], **links}
        sharing = {name: list(factors) for name, factors in self.sharing.items()}
        return data | ({"sharing": sharing} if sharing else {})

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
        text = read_text(path, InvalidHardware)
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            raise InvalidHardware(f"{path} is not valid TOML: {problem}") from None
        check_schema(data, "hardware", InvalidHardware, str(path))
        return cls.from_dict(data)

    def save(self, path: str | Path) -> None:
        """Write the hardware as JSON, atomically.

        Raises
        ------
        InvalidHardware
            The file's name ends in ``.toml``, by which it would be read as TOML.
        """
        if Path(path).suffix == ".toml":
            raise InvalidHardware(f"hardware is written as JSON; name the file {Path(path).with_suffix('.json')}")
        write_json(path, self.to_dict())

    def with_stages(self, k: int) -> Hardware:
        """Return hardware with k stage slots: itself, copies of its only device, or its first k when all are equal.

        Raises
        ------
        InvalidHardware
            k is no whole number of at least 1, or unequal devices of which k cannot be chosen without guessing.
        """
        _check_stages(k)
        if k == self.num_devices:
            return self
        first = self.devices[0]
        same = all(dataclasses.replace(device, name=first.name, node=first.node) == first for device in self.devices)
        off_diagonal = ~np.eye(self.num_devices, dtype=bool)
        rates, delays = self.bandwidth[off_diagonal], self.latency_s[off_diagonal]
        if not same or (len(rates) and (rates.max() > rates.min() or delays.max() > delays.min())):
            raise InvalidHardware(
                f"stages is {k} but {self.name!r} has {self.num_devices} unequal devices; list the devices to use"
            )
        devices = [dataclasses.replace(first, name=_numbered(first.kind or first.name, i), node="") for i in range(k)]
        bandwidth = float(rates[0]) if len(rates) else (first.io_bandwidth or math.inf)
        mesh = Hardware.mesh(
            devices, bandwidth, latency_s=float(delays[0]) if len(delays) else 0.0, name=f"{self.name}-{k}"
        )
        return dataclasses.replace(mesh, sharing=self.sharing)

    def part(self, places: Sequence[int], name: str = "") -> Hardware:
        """Return hardware of some of the devices with their links, and what they share.

        Parameters
        ----------
        places
            Where the devices stand in this hardware, in the order they are to have.
        name
            Of the part; by default that of the whole.

        Raises
        ------
        InvalidHardware
            There is no device at a place.
        """
        if not all(0 <= i < self.num_devices for i in places):
            raise InvalidHardware(f"{self.name!r} has {self.num_devices} devices; expected some of them, got {places}")
        links, devices = np.ix_(places, places), tuple(self.devices[i] for i in places)
        sharing = {key: one for key, one in self.sharing.items() if any(device.shares == key for device in devices)}
        return Hardware(devices, self.bandwidth[links], self.latency_s[links], name or self.name, sharing)

    def io_bandwidth(self, i: int) -> tuple[float, float]:
        """Return (in, out) bytes/s of device i as a pipeline stage: its own figure, or its slowest links."""
        own = self.devices[i].io_bandwidth
        if own is not None:
            return own, own
        others = np.arange(self.num_devices) != i
        if not others.any():
            return math.inf, math.inf
        return float(self.bandwidth[others, i].min()), float(self.bandwidth[i, others].min())


def _numbered(name: str, i: int) -> str:
    """Return the name of one of several devices: ``gpu0``, and ``rtx3090-0`` where the name ends in a digit itself."""
    return f"{name}-{i}" if name[-1:].isdigit() else f"{name}{i}"


def _expand(row: Mapping[str, Any], reached: dict[int, Mapping[str, Efficiency]]) -> list[Device]:
    """Return the devices one table of a file stands for (`count` makes several).

    `reached` has the efficiencies of tables before it, by the identity of what they were read from: presets share them.
    """
    values = {key: value for key, value in row.items() if key != "count"}
    if values.get("batch_sizes") is not None:
        values["batch_sizes"] = tuple(values["batch_sizes"])
    for key, unit in _MEASURES.items():
        value, what = values.get(key), f"device {row['name']!r}: {key}"
        if isinstance(value, Mapping):
            values[key] = {dtype: _quantity(f"{what} of {dtype}", rate, unit) for dtype, rate in value.items()}
        elif value is not None:
            values[key] = _quantity(what, value, unit)
    if "efficiency" in values:
        try:
            said = row["efficiency"]
            values["efficiency"] = reached[id(said)] if id(said) in reached else efficiencies_of(said)
            reached[id(said)] = values["efficiency"]
        except InvalidHardware as problem:
            raise InvalidHardware(f"device {row['name']!r}: {problem}") from None
    device = Device(**values)
    if "count" not in row:
        return [device]
    return [dataclasses.replace(device, name=_numbered(device.name, i)) for i in range(row["count"])]


_MEASURES = {
    "memory_bytes": "bytes",
    "reserve_bytes": "bytes",
    "cache_bytes": "bytes",
    "flops_per_s": "operations/s",
    "bytes_per_s": "bytes/s",
    "launch_s": "seconds",
    "host_s": "seconds",
    "io_bandwidth": "bytes/s",
}
"""Keys of a device that hold a quantity, and what it measures."""


def _quantity(what: str, value: float | str, unit: str) -> float:
    """Return a quantity of a file: a number, text with a unit, or "unlimited" for a rate in bytes a second."""
    if not isinstance(value, str):
        return check_number(what, value, InvalidHardware, unlimited=True)
    if value == "unlimited" and unit == "bytes/s":
        return math.inf
    try:
        return parse_quantity(value, unit)
    except ValueError as problem:
        raise InvalidHardware(f"{what}: {problem}") from None


def _check_stages(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidHardware(f"stages is {k!r:.60}; expected a whole number of at least 1")
    check_device_count(k, InvalidHardware)


def _rate(value: float) -> float | str:
    return "unlimited" if math.isinf(value) else value


_LISTED = 64
"""Devices up to which every link of a mesh is written by itself."""

_USUAL = (("reserve_bytes", 0.0), ("slowdown", 1.0), ("host_s", 0.0))
"""Figures of a device that are not written."""


def _device_dict(device: Device) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for entry in dataclasses.fields(Device):
        value = getattr(device, entry.name)
        if entry.name == "batch_sizes" and value is not None:
            row[entry.name] = list(value)
        elif entry.name == "io_bandwidth" and value is not None and math.isinf(value):
            row[entry.name] = "unlimited"
        elif entry.name == "efficiency":
            if value:
                row[entry.name] = {name: one.to_dict() for name, one in value.items()}
        elif value is not None and value != "" and value != math.inf and (entry.name, value) not in _USUAL:
            row[entry.name] = value
    return row


def _widest_paths(
    bandwidth: NDArray[np.float64], latency_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Replace missing links by the widest paths (ties: the lowest latency), Floyd-Warshall style."""
    rate, delay = bandwidth.astype(np.float64), latency_s.astype(np.float64)
    np.fill_diagonal(rate, np.inf)
    np.fill_diagonal(delay, 0.0)
    if (rate > 0).all():  # every pair has a link of its own, which stays
        return rate, delay
    delay[rate == 0] = np.inf
    for hop in range(len(rate)):
        through = np.minimum(rate[:, hop, None], rate[None, hop, :])
        later = delay[:, hop, None] + delay[None, hop, :]
        better = (through > rate) | ((through == rate) & (rate > 0) & (later < delay))
        rate, delay = np.where(better, through, rate), np.where(better, later, delay)
    delay[rate == 0] = 0.0
    given = (bandwidth > 0) & ~np.eye(len(rate), dtype=bool)
    return np.where(given, bandwidth, rate), np.where(given, latency_s, delay)
