"""From a model, hardware and an objective to the arrays of a chain problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rlinit.devices.runtimes import MICRO_BATCH, PassShape, RuntimeName, head_buffer_bytes, layer_buffer_bytes
from rlinit.errors import InvalidConfig, InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.llm.architecture import Part
from rlinit.llm.model import LanguageModel, Phase
from rlinit.llm.search.contiguous import ChainProblem, Places
from rlinit.units import BITS

Objective = Literal["decode", "prefill", "request", "pipeline"]
Granularity = Literal["layer", "part"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is minimised, and under which rules.

    Parameters
    ----------
    objective
        ``decode``: mean seconds of a pass that makes a token; ``prefill``: seconds to the first token; ``request``:
        prefill and all decode passes; ``pipeline``: seconds of the slowest device or link in a decode pass while as
        many batches as devices are under way.
    granularity
        Whole layers, or attention and feed-forward part of each by themselves.
    reserve_bytes
        Of each device, kept free beside the runtime's buffers, in place of what the hardware reserves; None: that.
    first
        Devices that, where they are used, come first.
    contiguous
        Each device has one span at most; without it devices may come back, such as for attention between experts that
        are elsewhere. For objectives whose seconds add up, and without `first`.

    Raises
    ------
    InvalidConfig
        An unknown objective or granularity, a reserve that is no size, or a choice that does not go with another.
    """

    objective: Objective = "decode"
    granularity: Granularity = "layer"
    reserve_bytes: float | None = None
    first: tuple[str, ...] = ()
    contiguous: bool = True
    stream: bool = False
    runtime: RuntimeName = "llama.cpp"
    micro_batch: int | None = None
    flash_attention: bool = True

    def __post_init__(self) -> None:
        for what, choices in (("objective", Objective), ("granularity", Granularity), ("runtime", RuntimeName)):
            if getattr(self, what) not in get_args(choices):
                raise InvalidConfig(
                    f"{what} is {getattr(self, what)!r}; expected one of {', '.join(get_args(choices))}"
                )
        if self.reserve_bytes is not None and not 0 <= self.reserve_bytes < float("inf"):
            raise InvalidConfig(f"reserve_bytes is {self.reserve_bytes}; expected a number >= 0")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= 1 << 20:
            raise InvalidConfig(f"micro_batch is {self.micro_batch}; expected a number of tokens from 1 to 1,048,576")
        if not self.flash_attention and self.runtime == "vllm":
            raise InvalidConfig("vLLM has no attention that writes scores out; leave flash_attention on")
        if not self.contiguous and (self.objective == "pipeline" or self.first):
            what = "objective='pipeline'" if self.objective == "pipeline" else f"first={self.first!r}"
            raise InvalidConfig(f"{what} is for contiguous plans; leave contiguous=False out (--no-contiguous)")
        if self.stream and self.contiguous:
            raise InvalidConfig("weights are streamed in plans of any order; add contiguous=False (--no-contiguous)")


def passes_of(model: LanguageModel, objective: Objective) -> tuple[tuple[Phase, int], ...]:
    """Return how many passes of each phase an objective sums over.

    Parameters
    ----------
    model
        Says how many tokens are made.
    objective
        Which of the objectives.
    """
    if objective == "prefill":
        return (("prefill", 1),)
    if objective == "request":
        return (("prefill", 1), ("decode", model.workload.decode_steps if model.workload.output > 1 else 0))
    return (("decode", 1),)


def reserve_bytes(device: Device, settings: Settings) -> float:
    """Return the bytes of a device that nothing may take: those asked for, or those that the hardware reserves.

    Parameters
    ----------
    device, settings
        Which device, by which rules.
    """
    return device.reserve_bytes if settings.reserve_bytes is None else settings.reserve_bytes


class DeviceSet(NamedTuple):
    """Devices of which plans have the same buffers.

    Parameters
    ----------
    devices
        Their numbers.
    most
        How many of them are used at most.
    far_head
        Whether the head may be on a processor beside GPUs, which copy it.
    """

    devices: tuple[int, ...]
    most: int
    far_head: bool = False


def device_sets(hardware: Hardware, settings: Settings) -> list[DeviceSet]:
    """Return sets such that every plan is in one of them with its buffers, and in no other with less.

    Buffers grow with what works together (see `layer_bytes`): they are the same for all plans on one device, for those
    on several GPUs, on several processors, and for those on both with the head on a GPU, or anywhere.

    Parameters
    ----------
    hardware, settings
        The problem; where weights are streamed, buffers go by all devices.
    """
    everything = tuple(range(hardware.num_devices))
    found = [DeviceSet(everything, hardware.num_devices, far_head=True)]
    if settings.stream or settings.runtime == "none" or hardware.num_devices == 1:
        return found
    hosts = tuple(at for at in everything if hardware.devices[at].kind == "cpu")
    others = tuple(at for at in everything if at not in hosts)
    found += [DeviceSet(part, len(part)) for part in (hosts, others) if 1 < len(part) < len(everything)]
    found += [DeviceSet(everything, hardware.num_devices)] if hosts and others else []
    return [*found, DeviceSet(everything, 1)]


def room_bytes(
    model: LanguageModel, hardware: Hardware, settings: Settings, device: int, used: Sequence[int], far_head: bool
) -> float:
    """Return the bytes of a device for weights, cache and logits, its reserve and buffers taken off.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    device
        Number of the device; a disk computes nothing and has no buffers.
    used, far_head
        As for `layer_bytes`.
    """
    one = hardware.devices[device]
    taken = layer_bytes(model, hardware, settings, used, far_head) if one.flops_per_s is not None else 0.0
    return max(0.0, one.memory_bytes - reserve_bytes(one, settings) - taken)


def layer_bytes(
    model: LanguageModel, hardware: Hardware, settings: Settings, used: Sequence[int], far_head: bool
) -> float:
    """Return the runtime's buffers on each device that is used.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    used
        Devices that work together: llama.cpp takes more where several of them do and there are several GPUs, and where
        a processor has layers beside a GPU.
    far_head
        Whether the head is on that processor; the GPU then makes the logits of large batches.
    """
    shape = _pass_shape(model, hardware, settings, used, far_head)
    layers = layer_buffer_bytes(settings.runtime, shape, settings.flash_attention)
    if settings.runtime != "llama.cpp" or not (far_head and shape.copied_bytes):
        return layers
    return max(layers, head_buffer_bytes(settings.runtime, shape, settings.flash_attention) + shape.copied_bytes)


def logit_bytes(
    model: LanguageModel, hardware: Hardware, settings: Settings, used: Sequence[int], far_head: bool
) -> float:
    """Return what the device with the head takes on top of `layer_bytes`.

    Parameters
    ----------
    model, hardware, settings, used, far_head
        As for `layer_bytes`.
    """
    shape = _pass_shape(model, hardware, settings, used, far_head)
    most = head_buffer_bytes(settings.runtime, shape, settings.flash_attention)
    return max(0.0, most - layer_bytes(model, hardware, settings, used, far_head))


def _pass_shape(
    model: LanguageModel, hardware: Hardware, settings: Settings, used: Sequence[int], far_head: bool
) -> PassShape:
    parts, hidden, work = model.architecture.parts, model.architecture.hidden, model.workload
    kept, together = work.batch * work.context, range(hardware.num_devices) if settings.stream else used
    kinds = {hardware.devices[at].kind == "cpu" for at in together if hardware.devices[at].flops_per_s is not None}
    gpus = sum(one.flops_per_s is not None and one.kind != "cpu" for one in hardware.devices)
    matrices = [model.weight_bytes(part) / 3 for part in parts if part.kind in ("dense", "experts")]
    matrices += [float(model.weight_bytes(parts[-1]))] if far_head or settings.stream else []
    widest = [
        max(part.pair_flops) / 2 if part.heads else part.active / hidden + part.experts_per_token * hidden
        for part in parts[1:-1]
    ]
    return PassShape(
        min(settings.micro_batch or MICRO_BATCH[settings.runtime], kept), kept, hidden,
        max(part.heads for part in parts), parts[-1].active // hidden, max(widest), BITS[model.activations] / 8,
        gpus > 1 and len(together) > 1, max(matrices, default=0.0) if len(kinds) > 1 else 0.0,
    )  # fmt: skip


def lower_chain(
    model: LanguageModel,
    hardware: Hardware,
    settings: Settings,
    batches: int = 1,
    max_devices: int | None = None,
    devices: Sequence[int] | None = None,
    far_head: bool = False,
) -> ChainProblem:
    """Return the chain problem of a model.

    Parameters
    ----------
    model, hardware, settings
        What is to be split, over what, and by which rules.
    batches
        Batches that are under way at once, each with a cache of its own.
    max_devices
        Most devices to use; None: all.
    devices
        Those that may be used, by whose buffers together memories go; None: all.
    far_head
        Whether the head may be on a processor beside GPUs.

    Raises
    ------
    InvalidHardware
        A device without rates, an unknown name in `Settings.first`, or a pipeline on devices that share a resource.
    """
    _check_devices(model, hardware, settings)
    if hardware.sharing and settings.objective == "pipeline":
        raise InvalidHardware(
            f"pipelines of language models do not count devices that share {', '.join(map(repr, hardware.sharing))}; "
            "leave sharing out of the hardware and give devices a slowdown"
        )
    units = model.units(settings.granularity)
    passes = passes_of(model, settings.objective)
    ids = list(range(hardware.num_devices) if devices is None else devices)
    used = ids[:1] if max_devices == 1 else ids
    weights = np.array([sum(model.weight_bytes(part) for part in parts) for _, parts in units], dtype=np.float64)
    cached = np.array([batches * sum(model.kv_bytes(part) for part in parts) for _, parts in units], dtype=np.float64)
    cached[-1] += logit_bytes(model, hardware, settings, used, far_head)
    seconds = unit_seconds(model, [hardware.devices[at] for at in ids], [parts for _, parts in units], passes)
    hosts = np.array([hardware.devices[at].kind == "cpu" for at in ids])
    if not far_head and len(used) > 1 and not hosts.all():
        seconds[hosts, -1] = math.inf
    return ChainProblem(
        seconds=seconds,
        held_bytes=weights + cached,
        cached_bytes=cached,
        shared_bytes=float(model.tied_bytes),
        room_bytes=np.array([room_bytes(model, hardware, settings, at, used, far_head) for at in ids]),
        transfer_s=_transfers(model, hardware, passes)[np.ix_(ids, ids)],
        bottleneck=settings.objective == "pipeline",
        only_first=np.array([hardware.devices[at].name in settings.first for at in ids]),
        max_devices=max_devices or len(ids),
    )


def streams_of(hardware: Hardware, settings: Settings) -> list[tuple[int, int]]:
    """Return the pairs of a device and what it may read weights from in every pass: a linked host or disk.

    Parameters
    ----------
    hardware, settings
        Devices without rates are disks.
    """
    if not settings.stream:
        return []
    sources = [m for m, one in enumerate(hardware.devices) if one.flops_per_s is None or one.kind == "cpu"]
    return [
        (d, m)
        for d, device in enumerate(hardware.devices)
        for m in sources
        if m != d and device.flops_per_s is not None and hardware.bandwidth[m, d] > 0
    ]


def buffer_bytes(model: LanguageModel, settings: Settings) -> float:
    """Return the bytes of a device that streams: the largest unit's weights, twice; of an embedding only rows are read.

    Parameters
    ----------
    model, settings
        The problem.
    """
    units = model.units(settings.granularity)
    return 2.0 * max(sum(model.weight_bytes(one) for one in parts if one.kind != "embedding") for _, parts in units)


def streamed_seconds(
    model: LanguageModel, hardware: Hardware, parts: Sequence[Part], device: int, source: int, phase: Phase
) -> float:
    """Return the seconds of a pass over a unit whose weights come from another memory meanwhile.

    Parameters
    ----------
    model, hardware
        The problem.
    parts
        Of the unit.
    device, source
        Numbers of what computes and of what has the weights.
    phase
        Which pass.
    """
    bytes_read = sum(model.streamed_bytes(part, phase) for part in parts)
    rate = min(float(hardware.bandwidth[source, device]), float(hardware.devices[source].bytes_per_s or math.inf))
    come = float(hardware.latency_s[source, device]) + bytes_read / rate
    return max(come, sum(model.seconds(part, hardware.devices[device], phase) for part in parts))


def lower_places(model: LanguageModel, hardware: Hardware, settings: Settings, problem: ChainProblem) -> Places:
    """Return units and places of a model whose plan is not contiguous: devices, and pairs that stream behind them.

    Parameters
    ----------
    model, hardware, settings
        As for `lower_chain`.
    problem
        Its devices; all of them where weights are streamed.

    Raises
    ------
    InvalidHardware
        As for `lower_chain`.
    """
    plain = Places.of_chain(problem)
    streams = streams_of(hardware, settings)
    if not streams:
        return plain
    units, passes = model.units(settings.granularity), passes_of(model, settings.objective)
    known: dict[object, float] = {}
    seconds = np.empty((len(streams), len(units)))
    for s, (d, m) in enumerate(streams):
        for u, (_, parts) in enumerate(units):
            key = (s, *plain.seconds[:, u].tolist(), plain.weight_bytes[u])
            if key not in known:
                known[key] = sum(c * streamed_seconds(model, hardware, parts, d, m, phase) for phase, c in passes)
            seconds[s, u] = known[key]
    own = np.array([*range(hardware.num_devices), *(d for d, _ in streams)])
    return replace(
        plain,
        seconds=np.vstack([plain.seconds, seconds]),
        transfer_s=np.ascontiguousarray(plain.transfer_s[np.ix_(own, own)]),
        weight_home=np.concatenate([plain.weight_home, [m for _, m in streams]]),
        cache_home=own,
        buffer_bytes=np.concatenate([plain.buffer_bytes, np.full(len(streams), buffer_bytes(model, settings))]),
    )


def _check_devices(model: LanguageModel, hardware: Hardware, settings: Settings) -> None:
    names = [device.name for device in hardware.devices]
    for name in settings.first:
        if name not in names:
            raise InvalidHardware(f"there is no device {name!r} to come first; expected one of {', '.join(names)}")
    for device in hardware.devices:
        disk = settings.stream and device.flops_per_s is None and device.bytes_per_s is not None
        if not disk and (device.rate(model.compute_dtype) is None or device.bytes_per_s is None):
            raise InvalidHardware(
                f"device {device.name!r} has no flops_per_s for {model.compute_dtype} or no bytes_per_s, so "
                "it cannot compute; a disk is for plans that stream weights from it (stream=True, --stream)"
            )


def unit_seconds(
    model: LanguageModel,
    devices: Sequence[Device],
    units: list[tuple[Part, ...]],
    passes: tuple[tuple[Phase, int], ...],
) -> NDArray[np.float64]:
    """Return (d, n) seconds; parts that differ in nothing but their layer are timed once.

    Parameters
    ----------
    model, devices
        What runs where.
    units
        Parts of each unit.
    passes
        Phases that are summed, and how often.
    """
    known: dict[object, float] = {}

    def timed(part: Part, device: Device, phase: Phase) -> float:
        if device.flops_per_s is None:
            return math.inf
        alike = (
            part.kind, part.params, part.active, part.stored_bytes, part.kv_numbers, part.window, part.pair_flops,
            part.experts, part.experts_per_token, part.shares, phase,
            device.kind, device.rate(model.compute_dtype), device.bytes_per_s, device.launch_s, device.slowdown,
            device.host_s, tuple(device.efficiency.items()),
        )  # fmt: skip
        if alike not in known:
            known[alike] = model.seconds(part, device, phase)
        return known[alike]

    return np.array(
        [
            [sum(count * timed(part, device, phase) for part in parts for phase, count in passes) for parts in units]
            for device in devices
        ]
    )


def _transfers(model: LanguageModel, hardware: Hardware, passes: tuple[tuple[Phase, int], ...]) -> NDArray[np.float64]:
    """Return (d, d) seconds of a cut: latency and bytes over the bandwidth in every pass; inf without a link."""
    total = np.zeros_like(hardware.bandwidth)
    with np.errstate(divide="ignore"):
        for phase, count in passes:
            if count:
                total += count * (hardware.latency_s + model.cut_bytes(phase) / hardware.bandwidth)
    np.fill_diagonal(total, 0.0)
    return total
