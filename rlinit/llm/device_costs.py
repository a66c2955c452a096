"""Rates of devices from the cost model: what one passes that holds a span of layers, while a pass takes so long.

A device that works on a batch of b sequences at once makes b tokens in the t(S, b) seconds that its span S takes for a
pass of decoding: it reads its weights once, attention goes by tokens. A sequence has its cache on every device of its
path from its first token to its last, so that by Little's law a device with room for the cache of B(S) sequences passes
at most B(S) / T tokens a second where a token takes T seconds through all layers.

*Rates that are kept to*, for a pass of at most T: each layer may take its share of T, in proportion to its size, so
that every path takes T at most. A device passes the most of min(b / t, B / T) over batches b that keep to their share.

*Rates that none exceeds*, whatever the layout: besides t, a token takes at least what the layers outside S take on the
fastest devices, one sequence at once. A device passes at most min(b / t, B / (t + rest)), with t + rest <= T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.errors import InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.llm.lowering import Settings, logit_bytes, room_bytes, unit_seconds
from rlinit.llm.model import LanguageModel
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet
from rlinit.units import BITS

MOST_SEQUENCES = 256
"""Sequences that a device works on at once at most: vLLM's default (``max_num_seqs``)."""

_WIDE_LINK = 1e12
"""Tokens a second of links that take no time: more than any device passes."""

_REFERENCE = 16
"""Sequences at which layers are compared in size."""


@dataclass(frozen=True, slots=False)
class DeviceCosts:
    """Seconds and bytes of every span of layers on every device; the embedding counts to the first layer, the head to
    the last.

    Parameters
    ----------
    model, hardware, settings
        What is served on what; devices without rates are left out.
    most_sequences
        That a device works on at once.

    Raises
    ------
    InvalidHardware
        No device that computes.
    """

    model: LanguageModel
    hardware: Hardware
    settings: Settings
    most_sequences: int = MOST_SEQUENCES

    def __post_init__(self) -> None:
        if not self.devices:
            dtype = self.model.compute_dtype
            raise InvalidHardware(f"no device has flops_per_s for {dtype} and bytes_per_s; expected at least one")

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that compute."""
        rates = [(one.rate(self.model.compute_dtype), one.bytes_per_s) for one in self.hardware.devices]
        return tuple(at for at, pair in enumerate(rates) if None not in pair)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Sequences at once that a device works on: powers of two, as runtimes compile for, and the most."""
        powers = (2**step for step in range(self.most_sequences.bit_length()))
        return tuple(sorted({*powers, self.most_sequences}))

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.model.architecture.num_layers

    @cached_property
    def _kinds(self) -> tuple[list[Device], list[int]]:
        """Devices that differ in more than their name, and which of them each is."""
        kinds: dict[object, int] = {}
        chosen = [self.hardware.devices[at] for at in self.devices]
        found = [kinds.setdefault(str(replace(one, name="d", node="", shares="")), len(kinds)) for one in chosen]
        return [chosen[found.index(kind)] for kind in range(len(kinds))], found

    @cached_property
    def seconds(self) -> FloatArray:
        """(kinds, batches, L, L + 1) of a pass over j layers from a first one on."""
        kinds, _ = self._kinds
        units = [parts for _, parts in self.model.units()]
        table = []
        for batch in self.batches:
            model = self.model.with_workload(batch=batch)
            table.append(_merged(unit_seconds(model, kinds, units, (("decode", 1),))))
        return _spans(np.array(table).transpose(1, 0, 2))

    @cached_property
    def sequences(self) -> FloatArray:
        """(d, L, L + 1) whose cache a device has room for beside the weights of j layers; below 0: not for them."""
        one = self.model.with_workload(batch=1)
        units = [parts for _, parts in one.units()]
        weights = _spans(_merged(np.array([[sum(map(one.weight_bytes, parts)) for parts in units]], np.float64)))[0]
        cached = _spans(_merged(np.array([[sum(map(one.kv_bytes, parts)) for parts in units]], np.float64)))[0]
        most = self.model.with_workload(batch=self.most_sequences)
        used = list(self.devices)
        head = logit_bytes(most, self.hardware, self.settings, used, False)
        start, held = np.arange(self.layers)[:, None], np.arange(self.layers + 1)
        weights = weights + head * (start + held >= self.layers)
        rooms = np.array([room_bytes(most, self.hardware, self.settings, at, used, False) for at in self.devices])
        return np.asarray(np.floor((rooms[:, None, None] - weights) / np.maximum(cached, 1.0)))

    @cached_property
    def sizes(self) -> FloatArray:
        """(L,) seconds of each layer, the mean of all kinds."""
        at = self.batches.index(min(self.batches, key=lambda batch: abs(batch - _REFERENCE)))
        return np.asarray(self.seconds[:, at, :, 1].mean(axis=0))

    @cached_property
    def rest(self) -> FloatArray:
        """(L, L + 1) least seconds of all other layers."""
        fastest = self.seconds[:, 0, :, 1].min(axis=0)
        return np.asarray(fastest.sum() - _spans(fastest[None])[0])

    @cached_property
    def shortest_pass(self) -> float:
        """Seconds of the shortest pass in which every layer can keep to its share on some device, hops left out."""
        return float(self.sizes.sum() * (self.seconds[:, 0, :, 1].min(axis=0) / self.sizes).max())

    @cached_property
    def links(self) -> dict[tuple[str, str], float]:
        """(from, to) -> tokens a second."""
        names = [self.hardware.devices[at].name for at in self.devices]
        rates = np.minimum(self.hardware.bandwidth / self.token_bytes, _WIDE_LINK)
        found = {
            (names[a], names[b]): float(rates[i, j])
            for a, i in enumerate(self.devices) for b, j in enumerate(self.devices) if a != b
        }  # fmt: skip
        return found | {(SOURCE, name): _WIDE_LINK for name in names} | {(name, SINK): _WIDE_LINK for name in names}

    @property
    def token_bytes(self) -> float:
        """Bytes of a token between layers."""
        return self.model.architecture.hidden * BITS[self.model.activations] / 8

    @cached_property
    def delays(self) -> dict[tuple[str, str], float]:
        """(from, to) -> seconds of a batch's way."""
        names = [self.hardware.devices[at].name for at in self.devices]
        with np.errstate(divide="ignore"):
            seconds = self.hardware.latency_s + self.most_sequences * self.token_bytes / self.hardware.bandwidth
        return {
            (names[a], names[b]): float(seconds[i, j])
            for a, i in enumerate(self.devices) for b, j in enumerate(self.devices) if a != b
        }  # fmt: skip

    @cached_property
    def hops(self) -> FloatArray:
        """(d,) most seconds of a batch's way to each device."""
        names = [self.hardware.devices[at].name for at in self.devices]
        into = {name: [s for (_, b), s in self.delays.items() if b == name and s < math.inf] for name in names}
        return np.array([max(into[name], default=0.0) for name in names])

    def fleet(self, pass_s: float) -> Fleet:
        """Return the devices at rates that are kept to where a pass takes at most so long.

        Parameters
        ----------
        pass_s
            Seconds through all layers.
        """
        share = pass_s * _spans(self.sizes[None])[0] / self.sizes.sum()
        _, kinds = self._kinds
        rates, seconds = [], []
        for at, kind in enumerate(kinds):
            fits = self.seconds[kind] + self.hops[at] <= share * (1 + 1e-12)
            rate = self._rates(at, kind, fits, np.full_like(share, pass_s))
            rates.append(rate.max(axis=0))
            seconds.append(np.take_along_axis(self.seconds[kind], rate.argmax(axis=0)[None], 0)[0])
        return self._made(np.array(rates), np.array(seconds))

    def limits(self, max_latency_s: float = math.inf) -> Fleet:
        """Return the devices at rates that none exceeds in a layout whose passes take at most so long.

        Parameters
        ----------
        max_latency_s
            Seconds of a pass.
        """
        _, kinds = self._kinds
        rates = []
        for at, kind in enumerate(kinds):
            least = self.seconds[kind] + self.rest
            rates.append(self._rates(at, kind, least <= max_latency_s * (1 + 1e-12), least).max(axis=0))
        return self._made(np.array(rates), None)

    def _rates(self, at: int, kind: int, fits: np.ndarray, passes: FloatArray) -> FloatArray:
        """Return (batches, L, L + 1) tokens a second of a device by the sequences that it works on."""
        batch = np.array(self.batches, np.float64)[:, None, None]
        seconds, room = self.seconds[kind], self.sequences[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.minimum(batch / seconds, np.maximum(room, 0.0) / passes)
        return np.where(fits & (batch <= room) & (seconds > 0) & (seconds < math.inf), rates, 0.0)

    def _made(self, rates: FloatArray, seconds: FloatArray | None) -> Fleet:
        rates = np.asarray(np.minimum.accumulate(rates[:, :, 1:], axis=2))
        rates = np.concatenate([np.zeros((*rates.shape[:2], 1)), rates], axis=2)
        kept = [at for at, table in enumerate(rates) if table.any()]
        names = tuple(self.hardware.devices[self.devices[at]].name for at in kept)
        known = {*names, SOURCE, SINK}
        links = {pair: rate for pair, rate in self.links.items() if known.issuperset(pair)}
        return Fleet(
            self.layers, names, rates[kept], links, sizes=self.sizes,
            seconds=None if seconds is None else seconds[kept], delays=self.delays,
        )  # fmt: skip


def _merged(units: FloatArray) -> FloatArray:
    """Return (.., L) of (.., L + 2) units: the first and the last count to their neighbours."""
    layers = units[..., 1:-1].copy()
    layers[..., 0] += units[..., 0]
    layers[..., -1] += units[..., -1]
    return layers


def _spans(layers: FloatArray) -> FloatArray:
    """Return (.., L, L + 1) sums of j layers from a first one on; spans that end behind the last one stop there."""
    count = layers.shape[-1]
    before = np.concatenate([np.zeros((*layers.shape[:-1], 1)), np.cumsum(layers, axis=-1)], axis=-1)
    ends = np.minimum(np.arange(count)[:, None] + np.arange(count + 1), count)
    return np.asarray(before[..., ends] - before[..., :-1, None])
