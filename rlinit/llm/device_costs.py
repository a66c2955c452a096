"""Rates of devices from the cost model: what one passes that holds a span of layers, while a pass takes so long.

A device that works on a batch of b sequences at once makes b tokens in the t(S, b) seconds that its span S takes for a
pass of decoding: it reads its weights once, attention goes by tokens. A sequence has its cache on every device of its
path from its first token to its last, so that by Little's law a device with room for the cache of B(S) sequences passes
at most B(S) / T tokens a second where a token takes T seconds through all layers.

*Rates that are kept to*, for a pass of at most T: each layer may take its share of T, in proportion to its size, so
that every path takes T at most. A device passes the most of min(b / t, B / T) over batches b that keep to their share.
Devices of one path that are not alike do better with shares of their own: where spans are known, T is what their
slowest path takes (`DeviceCosts.held`), and rates to look for spans by leave shares out.

*Rates that none exceeds*, whatever the layout: besides t, a token takes at least what the layers outside S take on the
fastest devices, one sequence at once. A device passes at most min(b / t, B / (t + rest)), with t + rest <= T.

*Prompts.* A device that reads prompts too reads b / n of them a pass, where an answer takes n passes on average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray
from rlinit.devices.runtimes import MICRO_BATCH, MOST_SEQUENCES
from rlinit.errors import InvalidConfig, InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.limits import check_number
from rlinit.llm.architecture import Part
from rlinit.llm.families import LARGEST_COUNT
from rlinit.llm.lowering import Settings, logit_bytes, room_bytes, unit_seconds
from rlinit.llm.model import LanguageModel, Phase, Workload
from rlinit.llm.serving.coverage import balanced, span_sizes
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet, Runs
from rlinit.llm.serving.pools import Traffic, stacked
from rlinit.units import BITS


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
    mix
        (tokens of the prompt, of the answer, share) of requests; none: all are the model's.
    prompts
        Whether passes read prompts, too.

    Raises
    ------
    InvalidHardware
        No device that computes.
    InvalidConfig
        Requests that make no sense or that the model has no positions for.
    """

    model: LanguageModel
    hardware: Hardware
    settings: Settings
    most_sequences: int = MOST_SEQUENCES
    mix: tuple[tuple[int, int, float], ...] = ()
    prompts: bool = False

    def __post_init__(self) -> None:
        most = self.model.architecture.max_context or math.inf
        for row in self.mix:
            if len(row) != 3:
                raise InvalidConfig(f"requests: {row!r} is no (prompt tokens, answer tokens, share)")
            prompt, output, share = row
            Workload(1 << 40, 1, prompt, output)
            if check_number(f"requests: the share of {prompt}:{output}", share, InvalidConfig) <= 0:
                raise InvalidConfig(f"requests: the share of {prompt}:{output} is {share!r}; expected a number above 0")
            if prompt + output > most:
                raise InvalidConfig(f"requests: {prompt}:{output} is longer than the model's {most:,} positions")
        if not self.devices:
            dtype = self.model.compute_dtype
            raise InvalidHardware(f"no device has flops_per_s for {dtype} and bytes_per_s; expected at least one")

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that compute."""
        rates = [(one.rate(self.model.compute_dtype), one.bytes_per_s) for one in self.hardware.devices]
        return tuple(at for at, pair in enumerate(rates) if None not in pair)

    @cached_property
    def names(self) -> list[str]:
        """Of the devices that compute."""
        return [self.hardware.devices[at].name for at in self.devices]

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

    def by_speed(self, most: int) -> list[list[int]]:
        """Return numbers of the devices by speed, fastest first, in groups that differ most.

        Parameters
        ----------
        most
            Groups at most.
        """
        speeds = self.seconds[:, self._reference, 0, self.layers]
        order = np.argsort(speeds, kind="stable")
        steps = np.diff(np.log(speeds[order]))
        cuts = np.sort([at for at in np.argsort(-steps, kind="stable")[: most - 1].tolist() if steps[at] > 0]) + 1
        kinds = np.array(self._kinds[1])
        parts = np.split(order, cuts.astype(int))
        return [[self.devices[at] for at in np.flatnonzero(np.isin(kinds, some)).tolist()] for some in parts]

    def part(self, devices: list[int]) -> DeviceCosts:
        """Return the costs of some of the devices.

        Parameters
        ----------
        devices
            Their numbers.
        """
        part = replace(self, hardware=self.hardware.part(devices))
        kinds = [self._kinds[1][self.names.index(kind.name)] for kind in part._kinds[0]]
        vars(part)["seconds"] = self.seconds[kinds]  # what `cached_property` would compute again
        return part

    @cached_property
    def requests(self) -> tuple[tuple[LanguageModel, float], ...]:
        """The model at each request of the mix, one at once, and how many of them there are for each token made."""
        shares = [(self.model.workload, 1.0)]
        if self.mix:
            shares = [(Workload(prompt + output, 1, prompt, output), share) for prompt, output, share in self.mix]
        passes = sum(work.decode_steps * share for work, share in shares)
        return tuple((replace(self.model, workload=replace(work, batch=1)), share / passes) for work, share in shares)

    @property
    def passes(self) -> float:
        """That make the answer of a request, on average; prefill makes the first token."""
        return 1.0 / sum(rate for _, rate in self.requests)

    @cached_property
    def prompt_batches(self) -> tuple[int, ...]:
        """Prompts that are read at once, of each request: as many as fill the tokens of a pass of vLLM."""
        return tuple(max(1, MICRO_BATCH["vllm"] // model.workload.prompt) for model, _ in self.requests)

    @cached_property
    def seconds(self) -> FloatArray:
        """(kinds, batches, L, L + 1) of a pass over j layers from a first one on."""
        answers = [rate * model.workload.decode_steps for model, rate in self.requests]
        table = np.array([self._spent("decode", [batch] * len(answers), answers) for batch in self.batches])
        read = np.array(self.batches)[:, None, None, None] * self.prompt_seconds if self.prompts else 0.0
        return np.asarray((table + read).transpose(1, 0, 2, 3))

    @cached_property
    def prompt_seconds(self) -> FloatArray:
        """(kinds, L, L + 1) that prompts take on j layers from a first one on, for each token made."""
        rates = [rate / batch for (_, rate), batch in zip(self.requests, self.prompt_batches, strict=True)]
        return self._spent("prefill", self.prompt_batches, rates)

    def _spent(self, phase: Phase, batches: Sequence[int], weights: Sequence[float]) -> FloatArray:
        """Return (kinds, L, L + 1) seconds of passes with so many of each request at once, by weight."""
        kinds, units = self._kinds[0], [parts for _, parts in self.model.units()]
        table = [
            weight * unit_seconds(model.with_workload(batch=batch), kinds, units, ((phase, 1),))
            for (model, _), batch, weight in zip(self.requests, batches, weights, strict=True)
        ]
        return span_sizes(_merged(np.sum(table, axis=0)))

    @cached_property
    def sequences(self) -> FloatArray:
        """(d, L, L + 1) whose cache a device has room for beside the weights of j layers; below 0: not for them."""
        units = [parts for _, parts in self.model.units()]
        stored = [[sum(map(self.model.weight_bytes, parts)) for parts in units]]
        weights = span_sizes(_merged(np.array(stored, np.float64)))[0]
        answers = [(model, rate * model.workload.decode_steps) for model, rate in self.requests]
        kept = [[sum(model.kv_bytes(part) * rate for model, rate in answers for part in parts) for parts in units]]
        cached = span_sizes(_merged(np.array(kept, np.float64)))[0]
        longest = max((model for model, _ in answers), key=lambda model: model.workload.context)
        most = longest.with_workload(batch=self.most_sequences)
        used = list(self.devices)
        head = logit_bytes(most, self.hardware, self.settings, used, False)
        start, held = np.arange(self.layers)[:, None], np.arange(self.layers + 1)
        weights = weights + head * (start + held >= self.layers)
        rooms = np.array([room_bytes(most, self.hardware, self.settings, at, used, False) for at in self.devices])
        return np.asarray(np.floor((rooms[:, None, None] - weights) / np.maximum(cached, 1.0)))

    @cached_property
    def sizes(self) -> FloatArray:
        """(L,) seconds of each layer, the mean of all kinds."""
        return _in_classes(self.seconds[:, self._reference, :, 1].mean(axis=0))

    @property
    def _reference(self) -> int:
        """Number of the batch, the middle one, at which devices and layers are compared."""
        return len(self.batches) // 2

    @cached_property
    def rest(self) -> FloatArray:
        """(L, L + 1) least seconds of all other layers."""
        fastest = self.seconds[:, 0, :, 1].min(axis=0)
        return np.asarray(fastest.sum() - span_sizes(fastest[None])[0])

    @property
    def shortest_s(self) -> float:
        """Seconds that no pass is below: every layer on its fastest device, one sequence at once."""
        return float(self.rest[0, 0])

    @cached_property
    def shortest_pass(self) -> float:
        """Seconds of the shortest pass in which every layer can keep to its share on some device, hops left out."""
        return float(self.sizes.sum() * (self.seconds[:, 0, :, 1].min(axis=0) / self.sizes).max())

    @cached_property
    def links(self) -> dict[tuple[str, str], float]:
        """(from, to) -> tokens a second."""
        ends = [pair for name in self.names for pair in ((SOURCE, name), (name, SINK))]
        rates = np.minimum(self.hardware.bandwidth / self.token_bytes, LARGEST_COUNT)
        return self._by_pair(rates) | dict.fromkeys(ends, LARGEST_COUNT)

    def _by_pair(self, table: FloatArray) -> dict[tuple[str, str], float]:
        """Return what a table of all devices has for each ordered pair of those that compute."""
        named = [*zip(self.names, self.devices, strict=True)]
        return {(a, b): float(table[i, j]) for a, i in named for b, j in named if i != j}

    @property
    def token_bytes(self) -> float:
        """Bytes of a token between layers."""
        return self.model.architecture.hidden * BITS[self.model.activations] / 8

    @cached_property
    def delays(self) -> dict[tuple[str, str], float]:
        """(from, to) -> seconds of a batch's way."""
        with np.errstate(divide="ignore"):
            seconds = self.hardware.latency_s + self.most_sequences * self.token_bytes / self.hardware.bandwidth
        return self._by_pair(seconds)

    @cached_property
    def hops(self) -> FloatArray:
        """(d,) most seconds of a batch's way to each device."""
        into = {name: [s for (_, b), s in self.delays.items() if b == name and s < math.inf] for name in self.names}
        return np.array([max(into[name], default=0.0) for name in self.names])

    def fleet(self, pass_s: float, *, shared: bool = True) -> Fleet:
        """Return the devices at rates that are kept to where a pass takes at most so long.

        Parameters
        ----------
        pass_s
            Seconds through all layers.
        shared
            Whether layers keep to their shares of the pass, so that every path takes so long at most.
        """
        share = pass_s * span_sizes(self.sizes[None])[0] / self.sizes.sum() if shared else np.inf
        rates, seconds = {}, {}
        for at in {*self._alike}:
            times = self.seconds[self._kinds[1][at]]
            rate = self._rates(times, self.sequences[at], times + self.hops[at] <= share * (1 + 1e-12), pass_s)
            rates[at] = rate.max(axis=0)
            seconds[at] = np.take_along_axis(times, rate.argmax(axis=0)[None], 0)[0]
        return self._made(np.array([rates[at] for at in self._alike]), np.array([seconds[at] for at in self._alike]))

    @cached_property
    def _alike(self) -> list[int]:
        """The first device with the same seconds, room and way to it, of each."""
        first: dict[object, int] = {}
        rows = zip(self._kinds[1], self.hops.tolist(), self.sequences, strict=True)
        return [first.setdefault((kind, hop, room.tobytes()), at) for at, (kind, hop, room) in enumerate(rows)]

    @cached_property
    def network(self) -> Fleet:
        """All devices, for their links."""
        return Fleet(self.layers, tuple(self.names), np.ones((len(self.names), self.layers + 1)), self.links)

    def held(
        self, spans: Mapping[str, tuple[int, int]], pass_s: float, passed: Mapping[str, float] | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return tokens a second of devices that caches and batches allow in a pass of so long, and seconds in each.

        Parameters
        ----------
        spans
            Device -> (first layer, the one after its last).
        pass_s
            Seconds through all layers.
        passed
            Tokens a second of each device, for batches that take least and pass those; None: that pass most.
        """
        rates, seconds = {}, {}
        for name, (start, end) in spans.items():
            at, held = self.names.index(name), end - start
            times = self.seconds[self._kinds[1][at], :, start, held]
            found = self._rates(times, self.sequences[at, start, held], np.True_, pass_s)
            least = found.max() if passed is None else passed.get(name, 0.0)
            best = int(np.argmin(np.where(found >= least * (1 - 1e-12), times, np.inf)))
            rates[name], seconds[name] = float(found[best]), float(times[best])
        return rates, seconds

    def limits(self, max_latency_s: float = math.inf) -> Fleet:
        """Return the devices at rates that none exceeds in a layout whose passes take at most so long.

        Parameters
        ----------
        max_latency_s
            Seconds of a pass.
        """
        rates = {}
        for at in {*self._alike}:
            times = self.seconds[self._kinds[1][at]]
            least = times + self.rest
            rate = self._rates(times, self.sequences[at], least <= max_latency_s * (1 + 1e-12), least)
            rates[at] = rate.max(axis=0)
        rooms = np.maximum(self.sequences, 0.0)
        runs = Runs(np.array(self.batches, np.float64), self.seconds[self._kinds[1], :, :, 1], rooms, max_latency_s)
        return self._made(np.array([rates[at] for at in self._alike]), None, runs)

    def _rates(
        self, seconds: FloatArray, room: FloatArray, fits: NDArray[np.bool_] | np.bool_, passes: FloatArray | float
    ) -> FloatArray:
        """Return (batches, ..) tokens a second of a device by the sequences that it works on."""
        batch = np.array(self.batches, np.float64).reshape(-1, *[1] * room.ndim)
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.minimum(batch / seconds, np.maximum(room, 0.0) / passes)
        return np.where(fits & (batch <= room) & (seconds > 0) & (seconds < math.inf), rates, 0.0)

    def _made(self, rates: FloatArray, seconds: FloatArray | None, runs: Runs | None = None) -> Fleet:
        rates = np.asarray(np.minimum.accumulate(rates[:, :, 1:], axis=2))
        rates = np.concatenate([np.zeros((*rates.shape[:2], 1)), rates], axis=2)
        kept = [at for at, table in enumerate(rates) if table.any()]
        names = tuple(self.hardware.devices[self.devices[at]].name for at in kept)
        known = {*names, SOURCE, SINK}
        links = {pair: rate for pair, rate in self.links.items() if known.issuperset(pair)}
        return Fleet(
            rates.shape[1], names, rates[kept], links, sizes=self.sizes,
            seconds=None if seconds is None else seconds[kept], delays=self.delays,
            runs=None if runs is None else runs.part(kept),
        )  # fmt: skip


class PoolCosts(DeviceCosts):
    """Costs of 2 L layers: those that read prompts, and the same ones that make answers; see `serving.pools`."""

    @cached_property
    def traffic(self) -> Traffic:
        """What the pools move over links."""
        bandwidths, latencies = self._by_pair(self.hardware.bandwidth), self._by_pair(self.hardware.latency_s)

        def read(part: Part) -> float:
            most = part.window or math.inf
            return sum(
                rate * model.kv_bytes(part) * min(model.workload.prompt, most) / min(model.workload.context, most)
                for model, rate in self.requests
            )

        kept = np.array([[math.fsum(map(read, parts)) for _, parts in self.model.units()]])
        prompts = sum(rate * model.workload.prompt for model, rate in self.requests) * self.token_bytes
        return Traffic(
            self.layers, self.passes, bandwidths, latencies, prompts, self.token_bytes, span_sizes(_merged(kept))[0]
        )  # fmt: skip

    @cached_property
    def links(self) -> dict[tuple[str, str], float]:
        """(from, to) -> tokens a second of either pool."""
        share = self.token_bytes / max(self.token_bytes, self.traffic.prompt_bytes)
        return {pair: rate if {SOURCE, SINK} & {*pair} else rate * share for pair, rate in super().links.items()}

    def fleet(self, pass_s: float, *, shared: bool = True) -> Fleet:
        """Return the devices at rates that are kept to where a pass that makes a token takes at most so long.

        Parameters
        ----------
        pass_s
            Seconds of such a pass.
        shared
            Whether layers keep to their shares of the pass, so that every path takes so long at most.
        """
        return balanced(super().fleet(pass_s, shared=shared), self.layers)

    def limits(self, max_latency_s: float = math.inf) -> Fleet:
        """Return the devices at rates that none exceeds, whichever pool it is in; links are in the rates."""
        fleet = self.traffic.cut(super().limits(max_latency_s), np.sum, np.sum)
        wide, caches = dict.fromkeys(fleet.links, LARGEST_COUNT), self.traffic.to_dict()
        return balanced(replace(fleet, links=wide, caches=caches), self.layers)

    def _made(self, rates: FloatArray, seconds: FloatArray | None, runs: Runs | None = None) -> Fleet:
        """Return a fleet of 2 L layers from rates and seconds of those that make answers."""
        kinds, layers, held, shares = self._kinds[1], self.layers, np.arange(self.layers + 1), self.requests
        fits = (self.sequences >= max(self.prompt_batches)) & (held > 0) & (np.arange(layers)[:, None] + held <= layers)
        with np.errstate(divide="ignore"):
            read = np.where(fits, 1.0 / self.prompt_seconds[kinds], 0.0)
        spent = None
        if seconds is not None:
            spent_s = self._spent("prefill", self.prompt_batches, [rate * self.passes for _, rate in shares])
            spent = stacked(spent_s[kinds], self.passes * seconds)
        if runs is not None:  # prompts take no time of a pass, and no room while they are read
            rooms = stacked(np.full_like(runs.rooms, LARGEST_COUNT), runs.rooms)
            runs = runs._replace(rooms=rooms, seconds=np.concatenate([0.0 * runs.seconds, runs.seconds], axis=2))
        fleet = super()._made(stacked(read, rates), spent, runs)
        return replace(
            fleet, sizes=np.concatenate([_in_classes(self.prompt_seconds[:, :, 1].mean(axis=0)), self.sizes])
        )


def _in_classes(sizes: FloatArray) -> FloatArray:
    """Return sizes of layers, equal where layers are alike, on the same side, and as far from its end in powers of two.

    Bounds by prices take layers of one size for alike. Those near an end are in fewer spans than those in the middle.
    Classes are `SAFETY` apart, less than the sizes, which keep the 24 bits of a float.
    """
    at = np.arange(len(sizes))
    sides, steps = np.sign(2 * at - at[-1]), np.frexp(1.0 + np.minimum(at, at[::-1]))[1]
    return np.asarray(sizes.astype(np.float32) * (1.0 + SAFETY * sides * steps))


def _merged(units: FloatArray) -> FloatArray:
    """Return (.., L) of (.., L + 2) units: the first and the last count to their neighbours."""
    layers = units[..., 1:-1].copy()
    layers[..., 0] += units[..., 0]
    layers[..., -1] += units[..., -1]
    return layers
