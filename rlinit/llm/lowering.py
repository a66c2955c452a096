"""From a model, hardware and an objective to the arrays of a chain problem."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rlinit.errors import InvalidConfig, InvalidHardware
from rlinit.hardware import Device, Hardware
from rlinit.llm.architecture import Part
from rlinit.llm.contiguous import ChainProblem
from rlinit.llm.model import LanguageModel, Phase

__all__ = ["Granularity", "Objective", "Settings", "lower_chain", "passes_of", "room_bytes"]

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
        Of each device: context and workspace.
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
    reserve_bytes: float = 0.0
    first: tuple[str, ...] = ()
    contiguous: bool = True

    def __post_init__(self) -> None:
        for what, known in (("objective", get_args(Objective)), ("granularity", get_args(Granularity))):
            if getattr(self, what) not in known:
                raise InvalidConfig(f"{what} is {getattr(self, what)!r}; expected one of {', '.join(known)}")
        if not 0 <= self.reserve_bytes < float("inf"):
            raise InvalidConfig(f"reserve_bytes is {self.reserve_bytes}; expected a number >= 0")
        if not self.contiguous and (self.objective == "pipeline" or self.first):
            what = "objective='pipeline'" if self.objective == "pipeline" else f"first={self.first!r}"
            raise InvalidConfig(f"{what} is for contiguous plans; leave contiguous=False out (--no-contiguous)")


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


def room_bytes(device: Device, settings: Settings) -> float:
    """Return the bytes of a device for weights and cache.

    Parameters
    ----------
    device
        Which device.
    settings
        Say what is kept free.
    """
    return max(0.0, device.memory_bytes - settings.reserve_bytes)


def lower_chain(
    model: LanguageModel, hardware: Hardware, settings: Settings, batches: int = 1, max_devices: int | None = None
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

    Raises
    ------
    InvalidHardware
        A device without rates, an unknown name in `Settings.first`, or a pipeline on devices that share a resource.
    """
    _check_devices(model, hardware, settings.first)
    if hardware.sharing and settings.objective == "pipeline":
        raise InvalidHardware(
            f"pipelines of language models do not count devices that share {', '.join(map(repr, hardware.sharing))}; "
            "leave sharing out of the hardware and give devices a slowdown"
        )
    units = model.units(settings.granularity)
    passes = passes_of(model, settings.objective)
    held = [sum(model.weight_bytes(p) + batches * model.kv_bytes(p) for p in parts) for _, parts in units]
    return ChainProblem(
        seconds=_unit_seconds(model, hardware, [parts for _, parts in units], passes),
        held_bytes=np.array(held, dtype=np.float64),
        shared_bytes=float(model.tied_bytes),
        room_bytes=np.array([room_bytes(device, settings) for device in hardware.devices]),
        transfer_s=_transfers(model, hardware, passes),
        bottleneck=settings.objective == "pipeline",
        only_first=np.array([device.name in settings.first for device in hardware.devices]),
        max_devices=max_devices or hardware.num_devices,
    )


def _check_devices(model: LanguageModel, hardware: Hardware, first: Collection[str]) -> None:
    names = [device.name for device in hardware.devices]
    for name in first:
        if name not in names:
            raise InvalidHardware(f"there is no device {name!r} to come first; expected one of {', '.join(names)}")
    for device in hardware.devices:
        if device.rate(model.compute_dtype) is None or device.bytes_per_s is None:
            raise InvalidHardware(
                f"device {device.name!r} has no flops_per_s for {model.compute_dtype} or no bytes_per_s; "
                "costs come from both"
            )


def _unit_seconds(
    model: LanguageModel,
    hardware: Hardware,
    units: list[tuple[Part, ...]],
    passes: tuple[tuple[Phase, int], ...],
) -> NDArray[np.float64]:
    """Return (d, n) seconds; parts that differ in nothing but their layer are timed once."""
    known: dict[object, float] = {}

    def timed(part: Part, device: Device, phase: Phase) -> float:
        alike = (
            part.kind, part.params, part.active, part.stored_bytes, part.kv_numbers, part.window, part.pair_flops,
            part.experts, part.experts_per_token, part.shares, phase,
            device.rate(model.compute_dtype), device.bytes_per_s, device.launch_s, device.slowdown,
        )  # fmt: skip
        if alike not in known:
            known[alike] = model.seconds(part, device, phase)
        return known[alike]

    return np.array(
        [
            [sum(count * timed(part, device, phase) for part in parts for phase, count in passes) for parts in units]
            for device in hardware.devices
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
