"""Language models as graphs with menus: in which ways each layer runs on a group of devices, and what each way takes.

Ops are the model's units, `LanguageModel.units`: ``embedding``, ``layer0``, ..., ``head``, or with
``granularity="part"`` ``layer0.attention``, ``layer0.feed_forward``, ... Variants have these names:

=================  ====================================================================================================
``plain``          one device
``tensor``         products split over the group, an all-reduce after attention and one after the feed-forward part
``sequence``       the same, and what all devices would hold alike is split by tokens: a scatter and a gather in place
                   of an all-reduce, and nothing to gather at a border of stages
``... experts``    experts whole on the devices of the group; with ``sequence`` tokens are sent to them and back
``... recomputed`` the forward pass runs again before the backward one, and the unit's input alone is kept
=================  ====================================================================================================

Seconds are those of the model's products and attention by the cost model, in training with those in which the device's
memory passes the activations that are kept, for norms, activations and residuals; a backward pass takes twice its
forward. A parameter takes what `optimizer` says: ``adam-bf16`` 16 bytes, 2 of it, 2 of its gradient and 12 of the state
(Rajbhandari et al.: ZeRO, section 3.1), which replicas partition from the state on (`zero`). Not counted: the step of
the optimiser, what overlaps with computing, and the filling and draining of the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

import numpy as np

from rlinit.errors import InvalidConfig, InvalidHardware
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.llm.architecture import Part
from rlinit.llm.lowering import Granularity
from rlinit.llm.model import LanguageModel, Phase, Workload
from rlinit.llm.splitting import Share, kept_bytes, share_of
from rlinit.stages.groups.collectives import Group, groups_of
from rlinit.stages.groups.lowering import kinds_of
from rlinit.stages.training.rules import optimizer_factor
from rlinit.units import BITS

_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Last names of modules that every device of a group has, as any split of theirs would gain nothing."""


class _Rules(NamedTuple):
    """What `to_graph` was asked for."""

    training: bool
    zero: int
    state_factor: float
    flash_attention: bool
    recompute: bool
    batches: int


class _Pass(NamedTuple):
    """A pass of so many tokens of a micro-batch, by the model with its lengths, on a device."""

    model: LanguageModel
    device: Device
    phase: Phase
    tokens: int
    rules: _Rules

    @classmethod
    def of(cls, model: LanguageModel, device: Device, phase: Phase, rules: _Rules) -> _Pass:
        work = model.workload
        if rules.training:
            work, phase = Workload(work.context + 1, work.batch, work.context, 1), "prefill"
        tokens = work.batch * (work.prompt if phase == "prefill" else 1)
        return cls(replace(model, workload=work), device, phase, tokens, rules)

    @property
    def number_bytes(self) -> float:
        return BITS[self.model.activations] / 8

    @property
    def cut_bytes(self) -> float:
        return float(self.model.cut_bytes(self.phase))

    def seconds(self, share: Share) -> float:
        """Return the seconds of forward on a device; in training the head works on all tokens."""
        model, tokens = self.model, math.ceil(self.tokens * share.tokens)
        if share.tokens != 1.0 or (self.rules.training and share.part.kind == "head"):
            model = replace(model, workload=Workload(2, tokens, 1, 1))
        return model.seconds(share.part, self.device, self.phase)

    def kept_bytes(self, shares: Iterable[Share], scattered: float) -> float:
        """Return the bytes of a micro-batch until its backward pass."""
        architecture = self.model.architecture
        scores = 0.0 if self.rules.flash_attention else float(self.model.workload.prompt)
        return self.tokens * sum(
            kept_bytes(share, architecture.family, architecture.hidden, scattered, self.number_bytes, scores)
            for share in shares
        )

    def exchanged(self, shares: list[Share], group: Group, sequence: bool) -> tuple[float, float]:
        """Return the seconds in which a group adds up and gathers, forward and backward."""
        size, kinds = self.cut_bytes, {share.part.kind for share in shares}
        if kinds == {"embedding"}:
            return group.all_reduce(size), 0.0
        if kinds == {"head"}:
            logit_bytes = BITS["fp32"] / 8  # losses and samples are computed in 32 bits
            logits = self.model.workload.batch * logit_bytes * group.t * shares[0].part.tensors[0].shape[0]
            return (0.0, group.all_reduce(size)) if self.rules.training else (0.5 * group.all_reduce(logits), 0.0)
        sent = [share.tokens for share in shares if share.tokens != 1.0] if sequence else []
        added = {
            share.part.kind == "attention" for share in shares if share.reduces and not (sent and share.tokens != 1.0)
        }
        seconds = len(added) * group.all_reduce(size) + sum(2.0 * group.all_to_all(size * copies) for copies in sent)
        return seconds, seconds

    def variants(self, parts: tuple[Part, ...], group: Group) -> Iterator[dict[str, Any]]:
        """Yield the ways in which a group runs a unit, without what it gathers at borders."""
        t, layer = group.t, parts[0].layer >= 0
        spreads = [False, *([True] if any(t > 1 and one.experts and one.experts % t == 0 for one in parts) else [])]
        again = [False, *([True] if layer and self.rules.training and self.rules.recompute else [])]
        for spread, sequence in product(spreads, [False, *([True] if t > 1 and self.tokens % t == 0 else [])]):
            shares = [share_of(part, t, spread=spread) for part in parts]
            scattered = 1.0 / t if sequence else 1.0
            held, sizes = self.kept_bytes(shares, scattered), self.stored(shares)
            forward = sum(map(self.seconds, shares))
            if self.rules.training:
                forward += held / float(self.device.bytes_per_s or np.inf)
            sent, back = self.exchanged(shares, group, sequence)
            name = ("plain" if t == 1 else "sequence" if sequence else "tensor") + " experts" * spread
            if not self.rules.training:
                yield {"name": name, "time_s": forward + sent, **sizes, "held_bytes": 0.0 if layer else held}
                continue
            for recomputed in again:
                seconds = 3.0 * forward + sent + back + recomputed * (forward + sent)
                kept = scattered * self.cut_bytes if recomputed else held
                yield {"name": name + " recomputed" * recomputed, "time_s": seconds, **sizes, "held_bytes": kept}

    def stored(self, shares: list[Share]) -> dict[str, float]:
        """Return the bytes of parameters, with gradients and states, or with caches."""
        params = float(sum(self.model.weight_bytes(share.part) for share in shares))
        if not self.rules.training:
            cached = self.rules.batches * sum(self.model.kv_bytes(share.part) for share in shares)
            return {"param_bytes": params, "fixed_bytes": params, "shared_bytes": float(cached)}
        beside = self.rules.state_factor - 1.0
        pieces = [params, min(1.0, beside) * params, max(0.0, beside - 1.0) * params]
        kept = 3 - self.rules.zero
        return {"param_bytes": params, "fixed_bytes": sum(pieces[:kept]), "shared_bytes": sum(pieces[kept:])}

    def workspace_bytes(self, units: Iterable[tuple[str, tuple[Part, ...]]], t: int) -> float:
        """Return the bytes of the largest unit at work: activations beside those held, and gathered parameters."""
        layers = {tuple(_figures(one) for one in parts): parts for _, parts in units if parts[0].layer >= 0}
        shares = [[share_of(part, t) for part in parts] for parts in layers.values()]
        if not self.rules.training:  # of the tensors of a pass those of one part are alive
            return max(self.kept_bytes([share], 1.0) for unit in shares for share in unit)
        again = max(self.kept_bytes(unit, 1.0) for unit in shares) if self.rules.recompute else 0.0
        gathered = 2.0 * max(self.stored(unit)["param_bytes"] for unit in shares) if self.rules.zero == 3 else 0.0
        return again + gathered


def to_graph(
    model: LanguageModel,
    hardware: Hardware,
    *,
    training: Literal["1f1b", "gpipe"] | None = None,
    microbatches: int | None = None,
    phase: Phase = "decode",
    granularity: Granularity = "layer",
    recompute: bool = True,
    zero: int = 0,
    optimizer: str | float = "adam-bf16",
    flash_attention: bool = True,
    degrees: Sequence[int] | None = None,
) -> Graph:
    """Return a model as a chain of units with a menu each, for `rlinit.schedule` with replicas and tensor groups.

    Parameters
    ----------
    model
        From `load`. A micro-batch is `batch` sequences: in training of `context` tokens, else of a pass of `phase`.
    hardware
        Devices with rates, of which those of a kind are alike.
    training
        The schedule of a pipeline that trains; None: it answers.
    microbatches
        Micro-batches N of a batch. Where the model answers, batches under way at once, whose caches replicas of a stage
        share out; by default as many as devices.
    phase
        Where it answers: the pass that makes a token, or that of the prompt.
    granularity
        Whole layers, or attention and feed-forward part of each by themselves.
    recompute
        Whether there are variants that run forward a second time.
    zero
        ZeRO stage 0 to 3: replicas share out states of the optimiser, gradients as well, parameters as well.
    optimizer
        As for `schedule`.
    flash_attention
        Without it scores are kept until the backward pass.
    degrees
        Tensor degrees of the menus; by default 1, 2, 4, ... as long as they divide a node.

    Returns
    -------
    Graph
        The note of the first op has what `schedule` goes by: ``training``, ``microbatches``, ``exchange``, and
        ``workspace_bytes``, the activations of the largest unit at work by degree; ``tokens`` are those of a
        micro-batch, and ``replicated`` names what devices of a group all have, as no rule splits it.

    Raises
    ------
    InvalidConfig
        A ZeRO stage that there is not, or without training; weights that cannot be trained.
    InvalidHardware
        Devices without rates.
    RlinitError
        An unknown optimiser.
    """
    kinds = kinds_of(hardware)
    if zero not in (0, 1, 2, 3) or isinstance(zero, bool) or (zero and training is None):
        expected = "0 to 3" if training is not None else "0 without training"
        raise InvalidConfig(f"zero is {zero!r}; expected {expected} (--zero)")
    for device in (of_kind.devices[0] for of_kind in kinds):
        if device.rate(model.compute_dtype) is None or device.bytes_per_s is None:
            raise InvalidHardware(
                f"device {device.name!r} has no flops_per_s for {model.compute_dtype} or no bytes_per_s"
            )
    if training is not None and BITS.get(model.weights, 0) < 16:
        raise InvalidConfig(f"weights are {model.weights}; training takes bf16, fp16 or fp32 (dtype=, --dtype)")
    batches = microbatches or hardware.num_devices
    rules = _Rules(training is not None, zero, optimizer_factor(optimizer), flash_attention, recompute, batches)
    passes = {of_kind.devices[0].kind: _Pass.of(model, of_kind.devices[0], phase, rules) for of_kind in kinds}
    groups = {
        kind: groups_of(of_kind, model.costs.get(kind), degrees) for kind, of_kind in zip(passes, kinds, strict=True)
    }
    one, units = next(iter(passes.values())), model.units(granularity)
    offered = sorted({group.t for row in groups.values() for group in row})
    note: dict[str, Any] = {"training": training or "", "exchange": {2: "zero2", 3: "zero3"}.get(zero, "ring")}
    note["workspace_bytes"] = {str(t): one.workspace_bytes(units, t) for t in offered}
    note |= {"tokens": one.tokens, "replicated": list(_replicated(model, offered))}
    if training is None or microbatches is not None:
        note["microbatches"] = batches
    names, known = [name for name, _ in units], dict[object, dict[int, list[dict[str, Any]]]]()
    rows = []
    for before, (name, parts) in zip([None, *names], units, strict=False):
        alike = tuple(_figures(part) for part in parts)
        if alike not in known:
            known[alike] = {t: _ways(parts, t, passes, groups) for t in offered}
        menu = {t: [_gathering(row, t, before, one.cut_bytes) for row in ways] for t, ways in known[alike].items()}
        row = {"op": "layer" if parts[0].layer >= 0 else name, "out_bytes": one.cut_bytes, "menu": menu}
        rows.append((name, row if before else row | {"note": note}))
    return Graph.build(rows, list(pairwise(names)), name=model.name)


def _ways(
    parts: tuple[Part, ...], t: int, passes: Mapping[str, _Pass], groups: Mapping[str, Sequence[Group]]
) -> list[dict[str, Any]]:
    """Return the ways in which a group of t devices runs a unit, with seconds by kind where there are several."""
    found: dict[str, dict[str, Any]] = {}
    for kind, one in passes.items():
        for row in (row for group in groups[kind] if group.t == t for row in one.variants(parts, group)):
            kept = found.setdefault(row["name"], row | {"time_s": {}} if len(passes) > 1 else row)
            if len(passes) > 1:
                kept["time_s"][kind] = row["time_s"]
    return list(found.values())


def _figures(part: Part) -> object:
    """Return what tells a part from those of other layers."""
    tensors = tuple((one.name.rpartition(".")[2], one.shape, one.copies, one.num_bytes) for one in part.tensors)
    return replace(part, layer=0, tensors=()), tensors


def _gathering(row: dict[str, Any], t: int, before: str | None, cut_bytes: float) -> dict[str, Any]:
    """Return a variant that gathers what comes in parts from the stage before, unless it works by sequence."""
    if before is None or not row["name"].startswith("tensor"):
        return row
    return row | {"sync_bytes": {before: (t - 1) / t * cut_bytes}}


def _replicated(model: LanguageModel, degrees: Sequence[int]) -> Iterator[str]:
    """Yield which kinds of parts all devices of a group have, and at which degrees."""
    for kind in dict.fromkeys(part.kind for part in model.architecture.parts):
        parts = [part for part in model.architecture.parts if part.kind == kind]
        parts = [
            one for one in parts if any(t.is_matrix and t.name.rpartition(".")[2] not in _ROUTERS for t in one.tensors)
        ]
        whole = [
            t
            for t in degrees
            if t > 1 and any(all(share_of(one, t, spread=way).part is one for way in (False, True)) for one in parts)
        ]
        if whole:
            yield f"{kind} is not split over {' or '.join(map(str, whole))} devices: each of a group has all of it"
