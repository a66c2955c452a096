"""Hardware by name: ``2xrtx3090+cpu``, ``4xa100-80g+nvlink``, ``8x8xa100-80g``, ``m3-max/rtx4090+cpu/10gbe``.

A name is hosts, separated by ``/``; a host is devices, joined by ``+``; a device is a kind in the file beside this one,
with a count before it (``2x``) and, where it matters or is known, its memory behind it (``-80g``). ``nvlink`` or
``xgmi`` among them links devices of one kind directly; ``1gbe``, ``10gbe``, ``25gbe``, ``100gbe`` say the network
between hosts, ``ib100``, ``ib200``, ``ib400``, ``ib800`` InfiniBand of so many Gb/s for each device. Two counts
(``8x8xa100-80g``) are nodes of a cluster and the devices of each: with direct links inside where the kind has them, and
between them, where no network is said, InfiniBand as in the vendor's machines, the slowest of those where kinds differ.
``1x8xa100-80g+1x4xl4`` has nodes of two kinds. ``eager`` among them says that the host
launches every op by itself, which then takes 10 us or more on a GPU; without it ops follow each other as in a replayed
graph.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Any

from rlinit.errors import InvalidHardware
from rlinit.limits import MAX_DEVICES, check_device_count, closest
from rlinit.units import parse_quantity

_FABRICS = {"ib100": 100e9 / 8, "ib200": 200e9 / 8, "ib400": 400e9 / 8, "ib800": 800e9 / 8}
_NETWORKS = {"1gbe": 1e9 / 8, "10gbe": 10e9 / 8, "25gbe": 25e9 / 8, "100gbe": 100e9 / 8, **_FABRICS}
_USUAL_FABRIC = "ib200"
"""Of a cluster of kinds that do not say `fabric`: DGX A100 has a port of 200 Gb/s for each of its eight GPUs."""
_PEERS = ("nvlink", "xgmi")
_EAGER = "eager"
_LATENCY_S = {"bus": 10e-6, "peer": 5e-6, "network": 50e-6, "fabric": 14e-6}
"""Of a transfer: a copy by the driver, over a direct link, a message over TCP, a step of NCCL between nodes.

Round numbers among public measurements: submitting a copy takes 5 to 7 us (cudaMemcpyAsync, arXiv:2602.21548, section
5.2); NVIDIA's p2pBandwidthLatencyTest has 6 (the host's clock) to 20 us (the GPUs') without direct links, and with them
2, once submitted (github.com/NVIDIA/cuda-samples/issues/230). That of TCP is ours; NCCL's is that of its own model of
costs (tuning.cc, hardware latency of a network in the simple protocol).
"""

_LAUNCH_S = 5e-6
"""Of a kernel on a GPU, a round number of ours."""

_HOST_S = 10e-6
"""Between launches of ops by PyTorch's host code, a round number of ours. All-reduces of a few bytes by vLLM take 16 us
more on H100s launched so than from a graph, and 39 us on A100s (aiconfigurator's ``custom_allreduce_perf``)."""

_RESERVE = "1GB"
"""Of a GPU's memory for the driver's context, loaded kernels and workspaces: the low end of the 1 to 2 GB that the
guide of Hugging Face transformers to training on one GPU gives for kernels alone."""


@functools.cache
def kinds() -> Mapping[str, Mapping[str, Any]]:
    """Return kind -> its figures, as in the file."""
    return _file("presets.toml")


@functools.cache
def papers() -> Mapping[str, Mapping[str, Any]]:
    """Return name -> the hardware of a paper, in the form of a hardware file."""
    return _file("papers.toml")


@functools.cache
def _file(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("rlinit.devices").joinpath(name).read_text(encoding="utf-8"))


_KEPT = (
    "name",
    "kind",
    "memory_bytes",
    "reserve_bytes",
    "flops_per_s",
    "bytes_per_s",
    "launch_s",
    "host_s",
    "efficiency",
    "node",
)
"""Figures of a device that hardware has."""


def compose(name: str) -> dict[str, Any] | None:
    """Return the JSON form of hardware from its name; None where a part of the name is no device.

    Raises
    ------
    InvalidHardware
        An unknown variant, a link that no two devices have, hosts without a network, or devices in the host of
        one that is a host by itself.
    """
    hosts, networks, peers, eager = [], [], set(), False
    clusters = set[str]()
    for text in _hosts_of(name):
        rows: list[dict[str, Any]] = []
        count, inside = _nodes(text)
        for token in inside.split("+"):
            if token in _NETWORKS:
                networks.append(token)
            elif token in _PEERS:
                peers.add(token)
            elif token == _EAGER:
                eager = True
            else:
                found = _devices(token)
                if found is None:
                    return None
                rows += found
        hosts += [[dict(row) for row in one] for _ in range(count or 1) for one in _hosts(rows)]
        if count is not None:
            clusters |= {row["fabric"] for row in rows}
            peers |= {row["peer"] for row in rows if sum(one["kind"] == row["kind"] for one in rows) > 1} - {None}
    check_device_count(sum(map(len, hosts)), InvalidHardware)
    if clusters and len(hosts) > 1 and not networks:
        networks = [min(clusters, key=lambda one: _NETWORKS[one])]
    if not hosts:
        return None
    if len(hosts) > 1 and len(networks) != 1:
        raise InvalidHardware(
            f"{name!r} is {len(hosts)} hosts; say the network between them once, such as '{name}/10gbe'"
        )
    if len(hosts) == 1 and networks:
        raise InvalidHardware(f"{name!r} is one host; expected no network")
    devices = [row for rows in hosts for row in rows]
    for at, rows in enumerate(hosts):
        for row in rows:
            row["node"] = f"host{at}" if len(hosts) > 1 else ""
    for row in devices:
        row["host_s"] = _HOST_S if eager and row["family"] != "cpu" else None
    _name_devices(devices)
    links = [_link(a, b, peers) for rows in hosts for at, a in enumerate(rows) for b in rows[:at]]
    _refuse_unused(name, peers, hosts)
    between = {}
    for one in networks:
        delay = _LATENCY_S["fabric" if one in _FABRICS else "network"]
        between = {"bandwidth": _NETWORKS[one], "latency_s": delay}
    kept = [{key: row[key] for key in _KEPT if row[key] is not None} for row in devices]
    return {"name": name, "device": kept, "link": links, **between}


def _hosts_of(name: str) -> list[str]:
    """Return the names of hosts: those between "/", and nodes with two counts that "+" joins."""
    return re.split(r"/|\+(?=\d{1,4}x\d{1,4}x)", name.lower())


def _nodes(text: str) -> tuple[int | None, str]:
    """Return the nodes that a host stands for and the name of one; None where the name has no second count.

    Raises
    ------
    InvalidHardware
        No node.
    """
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4}x.+)", text)
    if match is None:
        return None, text
    if not 1 <= int(match[1]) <= MAX_DEVICES:
        raise InvalidHardware(f"{text!r}: expected from 1 to {MAX_DEVICES} nodes")
    return int(match[1]), match[2]


def nearest(name: str) -> str:
    """Return ``"; did you mean 'x'?"`` for the first part of a name that is no device, "" where none is near."""
    for token in re.split("[/+]", name.lower()):
        plain = re.sub(r"^(\d{1,4}x){1,2}", "", token)
        if (
            token not in (*_NETWORKS, *_PEERS, _EAGER)
            and _known(plain) is None
            and _known(plain.rpartition("-")[0]) is None
        ):
            return closest(plain, [*kinds(), *(kind.removeprefix("rtx") for kind in kinds())])
    return ""


def _devices(token: str) -> list[dict[str, Any]] | None:
    """Return the devices of ``COUNTxKIND-VARIANT``; None where there is no such kind."""
    match = re.fullmatch(r"(?:(\d{1,4})x)?(.+)", token)
    if match is None:
        return None
    count, text = int(match[1] or 1), match[2]
    plain, variant = text, ""
    if _known(text) is None:
        plain, _, variant = text.rpartition("-")
    kind = _known(plain)
    if kind is None:
        return None
    if not 1 <= count <= MAX_DEVICES:
        raise InvalidHardware(f"{token!r}: expected a count from 1 to {MAX_DEVICES}")
    figures = dict(kinds()[kind])
    if variant and variant != figures.get("sold_as"):
        sizes = [*figures.get("variants", ()), *([figures["sold_as"]] if "sold_as" in figures else [])]
        known = [f"{plain}-{one}" for one in sizes]
        if text not in known:
            expected = f"one of {', '.join([plain, *known])}" if known else repr(plain)
            raise InvalidHardware(f"there is no {token!r}{closest(text, known)}; expected {expected}")
        figures |= {"memory_bytes": f"{variant[:-1]}GiB"} | figures.get("of_variant", {}).get(variant, {})
    row = {
        "kind": kind,
        "memory_bytes": parse_quantity(figures["memory_bytes"], "bytes") * figures.get("usable_share", 1.0),
        "reserve_bytes": parse_quantity(figures.get("reserve_bytes", _RESERVE), "bytes"),
        "bytes_per_s": parse_quantity(figures["bytes_per_s"], "bytes/s"),
        "flops_per_s": dict(figures["flops_per_s"]) if "flops_per_s" in figures else None,
        "launch_s": figures.get("launch_s", _LAUNCH_S),
        "family": figures.get("family", "gpu"),
        "efficiency": _efficiency(figures.get("family", "gpu")),
        "host": figures.get("host", False),
        "bus": parse_quantity(figures["bus_bytes_per_s"], "bytes/s") if "bus_bytes_per_s" in figures else None,
        "peer": figures.get("peer"),
        "fabric": figures.get("fabric", _USUAL_FABRIC),
        "peer_rate": parse_quantity(figures.get("peer_bytes_per_s", "0B/s"), "bytes/s"),
    }
    return [dict(row) for _ in range(count)]


@functools.cache
def _efficiency(family: str) -> dict[str, Any]:
    """Return what ops reach on a family: what was fitted to measured tables wins over what was looked up."""
    looked_up, fitted = _file("efficiency.toml"), _file("measured.toml")
    if family in looked_up and family != "gpu":
        return dict(looked_up[family])
    return {**looked_up["gpu"], **fitted["gpu"], **fitted[family]}


def _known(text: str) -> str | None:
    """Return the kind that a text names, with or without the maker's prefix."""
    return next((kind for kind in (text, f"rtx{text}") if kind in kinds()), None)


def _hosts(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the devices host by host: those that are a machine by themselves each in one of its own."""
    alone = [row for row in rows if row["host"]]
    if alone and len(alone) < len(rows):
        raise InvalidHardware(
            f"{alone[0]['kind']!r} is a machine by itself; separate hosts by '/', as in 'm3-max/t4+cpu/10gbe'"
        )
    return [[row] for row in alone] or ([rows] if rows else [])


def _name_devices(devices: list[dict[str, Any]]) -> None:
    """Call devices by their kind, and number those of a kind of which there are several."""
    count = Counter(row["kind"] for row in devices)
    numbers = {kind: itertools.count() for kind in count}
    for row in devices:
        kind = row["kind"]
        row["name"] = kind if count[kind] == 1 else f"{kind}-{next(numbers[kind])}"


def _link(a: Mapping[str, Any], b: Mapping[str, Any], peers: set[str]) -> dict[str, Any]:
    """Return the link of two devices of a host: a direct one, or the slower bus of the two."""
    if a["kind"] == b["kind"] and a["peer"] in peers:
        rate, delay = a["peer_rate"], _LATENCY_S["peer"]
    else:
        buses = [row["bus"] for row in (a, b) if row["bus"] is not None]
        rate, delay = min(buses, default=min(a["bytes_per_s"], b["bytes_per_s"])), _LATENCY_S["bus"]
    return {"from": a["name"], "to": b["name"], "bandwidth": rate, "latency_s": delay}


def _refuse_unused(name: str, peers: set[str], hosts: list[list[dict[str, Any]]]) -> None:
    for peer in sorted(peers):
        pairs = [(a, b) for rows in hosts for at, a in enumerate(rows) for b in rows[:at] if a["kind"] == b["kind"]]
        if not any(a["peer"] == peer for a, _ in pairs):
            raise InvalidHardware(f"{name!r}: no two devices of a kind in one host have {peer}")
