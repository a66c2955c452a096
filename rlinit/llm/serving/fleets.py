"""Devices that serve a model, what each passes by the layers that it holds, and what their links let through."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidConfig
from rlinit.limits import check_number

__all__ = ["Fleet", "load_fleet"]

SOURCE, SINK = "source", "sink"

_SLOWER = 2.0
"""Ratio of the rates of links from which on the slower ones are taken to be between networks, in the search alone."""

_BY_LAYERS, _BY_FIRST = "tokens_per_s_by_layers_held", "tokens_per_s_by_first_layer"

_MOST_NETWORKS = 8
"""Networks that the search tells apart."""


class Runs(NamedTuple):
    """How devices of the cost model can be run, where a pass takes each sequence through all layers once.

    Parameters
    ----------
    batches
        (Q,) sequences that a device works on at once.
    seconds
        (d, Q, L) of each layer.
    rooms
        (d, L, L + 1) sequences under way whose cache a device takes beside j layers from a first one on.
    longest_s
        Seconds of a pass at most.
    """

    batches: FloatArray
    seconds: FloatArray
    rooms: FloatArray
    longest_s: float = math.inf

    def part(self, devices: list[int]) -> Runs:
        """Return those of some devices.

        Parameters
        ----------
        devices
            Their numbers.
        """
        return self._replace(seconds=self.seconds[devices], rooms=self.rooms[devices])


class Kinds(NamedTuple):
    """Devices that may be exchanged for each other.

    Parameters
    ----------
    rates
        (K, L, L + 1) tokens a second that one passes from a first layer on, by how many layers it holds; its links
        together let as much in and out.
    members
        Devices of each kind.
    networks
        (K,) number of the network that they are in.
    """

    rates: FloatArray
    members: tuple[tuple[int, ...], ...]
    networks: IntArray

    @property
    def counts(self) -> IntArray:
        """(K,) how many devices there are of each."""
        return np.array([len(members) for members in self.members])


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Devices that serve a model, by rates.

    Parameters
    ----------
    layers
        Of the model.
    devices
        Their names.
    rates
        (d, L + 1) tokens a second that each passes when it holds j layers, 0 where it cannot; or (d, L, L + 1) where
        that depends on which layer is the first.
    links
        (from, to) -> tokens a second; ``source`` and ``sink`` are ends. Without a link nothing passes.
    partial
        Whether a request may enter a device inside its span, at the layer behind the last one that was used.
    sizes
        (L,) of the layers against each other, by which a device's price is shared out in bounds; fewer are repeated.
    seconds
        Of the shape of `rates`: how long a token is in the device; None: not known.
    delays
        (from, to) -> seconds that a token takes over a link; what is not named takes none.
    caches
        Of two pools: what they move over links, as `Traffic.to_dict` says it, for a checker.
    runs
        What rates that none exceeds are from; None: not known.
    between
        (d + 1, d + 1) the links: from each device and the source, to each device and the sink.

    Raises
    ------
    InvalidConfig
        No layer, names that are taken twice, a rate that grows with the layers held, or a device that holds no layer.
    """

    layers: int
    devices: tuple[str, ...]
    rates: FloatArray
    links: Mapping[tuple[str, str], float] = field(repr=False)
    partial: bool = False
    sizes: FloatArray = field(default_factory=lambda: np.ones(1), repr=False)
    seconds: FloatArray | None = field(default=None, repr=False)
    delays: Mapping[tuple[str, str], float] = field(default_factory=dict, repr=False)
    caches: Mapping[str, Any] | None = field(default=None, repr=False)
    runs: Runs | None = field(default=None, repr=False)
    between: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InvalidConfig("the model has no layers; expected at least one")
        if len(set(self.devices)) < len(self.devices) or {SOURCE, SINK} & set(self.devices):
            raise InvalidConfig(f"devices: expected different names, none of them {SOURCE!r} or {SINK!r}")
        last = len(self.devices)
        index = {name: at for at, name in enumerate(self.devices)} | {SOURCE: last, SINK: last}
        between = np.zeros((last + 1, last + 1))
        for (a, b), rate in self.links.items():
            if a in index and b in index:
                between[index[a], index[b]] = rate
        object.__setattr__(self, "between", between)
        object.__setattr__(self, "sizes", np.resize(self.sizes, self.layers))
        for name, table in zip(self.devices, self.rates, strict=True):
            rows = table if table.ndim == 2 else table[None]
            if not rows[:, 1:].any():
                raise InvalidConfig(f"device {name!r}: it cannot hold one layer; leave it out")
            grows = np.argwhere(rows[:, 2:] > rows[:, 1:-1])
            if len(grows):
                start, j = int(grows[0, 0]), int(grows[0, 1]) + 2
                raise InvalidConfig(
                    f"device {name!r}: with {j} layers it passes {rows[start, j]:g} tokens a second, more than with "
                    f"{j - 1}; expected rates that do not grow with the layers held"
                )

    def rate(self, device: int, start: int, end: int) -> float:
        """Return the tokens a second that a device passes when it holds layers `start` .. `end` - 1.

        Parameters
        ----------
        device
            Its number.
        start, end
            From 0 on.
        """
        table = self.rates[device]
        return float(table[end - start] if table.ndim == 1 else table[start, end - start])

    def seconds_of(self, spans: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """Return how long a token is in each device of a layout.

        Parameters
        ----------
        spans
            Device -> (first layer, the one after its last).
        """
        assert self.seconds is not None
        index = {name: at for at, name in enumerate(self.devices)}
        return {name: float(self.seconds[index[name], start, end - start]) for name, (start, end) in spans.items()}

    def follows(self, before: tuple[int, int], after: tuple[int, int]) -> bool:
        """Return whether a request may go from a device that holds one span to one that holds another.

        Parameters
        ----------
        before, after
            (first layer, the one after its last).
        """
        return before[1] == after[0] or (self.partial and after[0] < before[1] < after[1])

    def limits(self, device: int) -> tuple[float, float, float, float]:
        """Return what links let into a device from the source and from others, and out to the sink and to others.

        Parameters
        ----------
        device
            Its number.
        """
        *into, source = self.between[:, device].tolist()
        *out, sink = self.between[device].tolist()
        return source, math.fsum(into), sink, math.fsum(out)

    def limited_rates(self, device: int) -> FloatArray:
        """Return (L, L + 1) tokens a second from a first layer on, cut to what the device's links let in and out.

        Parameters
        ----------
        device
            Its number.
        """
        table: FloatArray = np.array(np.broadcast_to(self.rates[device], (self.layers, self.layers + 1)))
        source, into, sink, out = self.limits(device)
        start, held = np.arange(self.layers)[:, None], np.arange(self.layers + 1)
        most_in = np.where(start == 0, source + (into if self.partial else 0.0), into)
        most_out = np.where(start + held == self.layers, sink, out)
        np.minimum(table, np.minimum(most_in, most_out), out=table)
        table[(start + held > self.layers) | (held == 0)] = 0.0
        return table

    def networks(self) -> IntArray:
        """Return (d,) the network of each device: slow links are between networks, fast ones within."""
        from scipy.sparse.csgraph import connected_components

        count, between = len(self.devices), self.between[:-1, :-1]
        rates = np.unique(between[~np.eye(count, dtype=bool)])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = rates[1:] / rates[:-1]
        alone: IntArray = np.zeros(count, np.int64)
        if not len(ratios) or ratios.max() < _SLOWER:
            return alone
        least = rates[1 + int(np.argmax(ratios))]
        number, found = connected_components(between >= least, directed=False)
        return alone if number > _MOST_NETWORKS else found.astype(np.int64)

    def kinds(self) -> Kinds:
        """Return the kinds of devices: those of equal rates and limits in the same network."""
        networks = self.networks()
        found: dict[object, list[int]] = {}
        for at in range(len(self.devices)):
            found.setdefault((self._tables(at), self.limits(at), int(networks[at])), []).append(at)
        members = tuple(map(tuple, found.values()))
        rates = np.array([self.limited_rates(some[0]) for some in members])
        return Kinds(rates, members, networks[[some[0] for some in members]])

    def _tables(self, at: int) -> tuple[bytes, ...]:
        """Return what is equal for devices with the same rates and ways to be run."""
        runs = () if self.runs is None else (self.runs.seconds[at], self.runs.rooms[at])
        return tuple(table.tobytes() for table in (self.rates[at], *runs))

    def to_dict(self) -> dict[str, Any]:
        """Return what `load_fleet` reads; of devices that are alike, the first one has the rates."""

        def rows(table: FloatArray) -> dict[str, float]:
            return {str(held): rate for held, rate in enumerate(table.tolist()) if rate > 0}

        devices: list[dict[str, Any]] = []
        first: dict[object, str] = {}
        for at, (name, table) in enumerate(zip(self.devices, self.rates, strict=True)):
            like = first.setdefault(self._tables(at), name)
            row: dict[str, Any] = {"name": name}
            if like != name:
                row["like"] = like
            else:
                row |= {_BY_LAYERS: rows(table)} if table.ndim == 1 else {_BY_FIRST: [rows(one) for one in table]}
                if self.runs is not None:
                    held = [
                        rooms[1 : self.layers + 1 - start] for start, rooms in enumerate(self.runs.rooms[at].tolist())
                    ]
                    row |= {"seconds_by_batch": self.runs.seconds[at].tolist(), "sequences_by_first_layer": held}
            devices.append(row)
        links = [{"from": a, "to": b, "tokens_per_s": rate} for (a, b), rate in self.links.items()]
        found = {"layers": self.layers, "devices": devices, "links": links}
        if self.runs is not None:
            found |= {"batches": self.runs.batches.tolist()}
            found |= {"longest_s": self.runs.longest_s} if self.runs.longest_s < math.inf else {}
        return found | ({} if self.caches is None else {"caches": self.caches})

    def part(self, devices: list[int]) -> Fleet:
        """Return some of the devices with the links between them.

        Parameters
        ----------
        devices
            Their numbers.
        """
        names = tuple(self.devices[at] for at in devices)
        known = {*names, SOURCE, SINK}
        links = {pair: rate for pair, rate in self.links.items() if known.issuperset(pair)}
        seconds = None if self.seconds is None else self.seconds[devices]
        runs = None if self.runs is None else self.runs.part(devices)
        return replace(self, devices=names, rates=self.rates[devices], links=links, seconds=seconds, runs=runs)

    def half(self, devices: list[int], cut: int, most: float, ahead: bool) -> Fleet:
        """Return some of the devices for the layers on one side of a cut, counted from the cut on.

        Parameters
        ----------
        devices
            Their numbers.
        cut
            The first layer behind it.
        most
            Tokens a second that a device passes over the cut.
        ahead
            Whether the layers are those before the cut; their links are turned round.
        """
        count = cut if ahead else self.layers - cut
        rates = self.rates[devices][:, : count + 1]
        if self.rates.ndim == 3:
            rates = np.zeros((len(devices), count, count + 1))
            for start, end in combinations(range(count + 1), 2):
                rates[:, start, end - start] = self.rates[devices, cut - end if ahead else cut + start, end - start]
            rates[..., 1:] = np.minimum.accumulate(rates[..., 1:], axis=-1)
        kept = np.flatnonzero(rates.reshape(len(devices), -1).any(axis=1)).tolist()
        part, links = self.part([devices[at] for at in kept]), {}
        for (a, b), rate in part.links.items():
            before, after = (b, a) if ahead else (a, b)
            before, after = SOURCE if before == SINK else before, SINK if after == SOURCE else after
            links[before, after] = most if before == SOURCE else rate
        sizes = self.sizes[:cut][::-1] if ahead else self.sizes[cut:]
        return Fleet(count, part.devices, rates[kept], links, sizes=sizes)


def load_fleet(source: str | Path | Mapping[str, Any]) -> Fleet:
    """Return a fleet from JSON: ``layers``, ``devices`` with ``tokens_per_s_by_layers_held``, and ``links``.

    Parameters
    ----------
    source
        The file, or what it holds.

    Raises
    ------
    InvalidConfig
        A file that cannot be read, a missing field, or a value that makes no sense; the message names it.
    """
    if isinstance(source, Mapping):
        data: Any = source
    else:
        try:
            data = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as problem:
            raise InvalidConfig(f"cannot read {source}: {problem}") from None
    try:
        layers, rows, links = data["layers"], list(data["devices"]), list(data["links"])
    except (KeyError, TypeError) as problem:
        raise InvalidConfig(f"rates: {problem} is missing; expected layers, devices and links") from None
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise InvalidConfig(f"rates: layers is {layers!r}; expected a whole number >= 1")
    named = {str(_field(row, "name")): row for row in reversed(rows)}
    rows = [{**named.get(str(row.get("like", row["name"])), {}), **row} for row in rows]
    by_first = any(_BY_FIRST in row for row in rows)
    rates = np.zeros((len(rows), layers, layers + 1) if by_first else (len(rows), layers + 1))
    for at, row in enumerate(rows):
        tables = _field(row, _BY_FIRST) if by_first else [_field(row, _BY_LAYERS)]
        if by_first and len(tables) != layers:
            raise InvalidConfig(f"device {_field(row, 'name')!r}: {_BY_FIRST} has {len(tables)} rows, not {layers}")
        for start, table in enumerate(tables):
            for text, rate in table.items():
                what = f"device {_field(row, 'name')!r}: the rate with {text} layers"
                if not str(text).isdecimal() or int(text) < 1:
                    raise InvalidConfig(f"{what}: expected a number of layers from 1 on")
                if int(text) <= layers:
                    (rates[at, start] if by_first else rates[at])[int(text)] = check_number(what, rate, InvalidConfig)
    names = tuple(str(_field(row, "name")) for row in rows)
    found: dict[tuple[str, str], float] = {}
    for link in links:
        pair = str(_field(link, "from")), str(_field(link, "to"))
        unknown = next((end for end in pair if end not in (*names, SOURCE, SINK)), None)
        if unknown is not None:
            raise InvalidConfig(f"link {pair[0]} -> {pair[1]}: there is no device {unknown!r}")
        rate = check_number(f"link {pair[0]} -> {pair[1]}: tokens_per_s", _field(link, "tokens_per_s"), InvalidConfig)
        found[pair] = found.get(pair, 0.0) + rate
    return Fleet(layers, names, rates, found)


def _field(row: Any, name: str) -> Any:
    """Return a field of a row of the file."""
    if not isinstance(row, Mapping) or name not in row:
        raise InvalidConfig(f"rates: {name!r} is missing in {row!s:.60}")
    return row[name]
