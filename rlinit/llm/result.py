"""The plan of a language model: which span of layers runs on which device, and what was proven about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlinit.files import write_json
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel


@dataclass(frozen=True, slots=True)
class Span:
    """What one device does.

    Parameters
    ----------
    device
        Its name.
    units
        Names of the units, in order.
    weight_bytes, cache_bytes
        What it holds; a tied matrix once.
    seconds, transfer_s
        Of its parts, and of the cut before it, in all passes that the objective sums over.
    weights_on
        The host or disk that its weights are read from in every pass; "": they are its own.
    buffer_bytes
        Of its own memory, for weights that are being read.
    """

    device: str
    units: tuple[str, ...]
    weight_bytes: float
    cache_bytes: float
    seconds: float
    transfer_s: float
    weights_on: str = ""
    buffer_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What is in the memory of a device that a plan uses.

    Parameters
    ----------
    device
        Its name.
    memory_bytes
        All of it.
    weight_bytes, cache_bytes
        What spans hold there, weights that other devices read included.
    buffer_bytes
        For what is computed (layers, logits) and for weights that are being read.
    reserve_bytes
        Kept free for the driver and others.
    """

    device: str
    memory_bytes: float
    weight_bytes: float
    cache_bytes: float
    buffer_bytes: float
    reserve_bytes: float

    @property
    def free_bytes(self) -> float:
        """What is left; below 0 where a split does not fit."""
        taken = math.fsum((self.weight_bytes, self.cache_bytes, self.buffer_bytes, self.reserve_bytes))
        return self.memory_bytes - taken


@dataclass(frozen=True, slots=True)
class Level:
    """What plans of equal value, and equal in the levels before, are compared by.

    Parameters
    ----------
    name
        ``headroom_bytes``: what the tightest of the used memories has left, the more the better; ``squared_units``: sum
        over devices of the squared number of units between embedding and head, least where these are shared out evenly.
    value, bound
        Of the plan, and what was proven that no such plan is better than; inf or 0 where nothing was.
    """

    name: Literal["headroom_bytes", "squared_units"]
    value: float
    bound: float


@dataclass(frozen=True, slots=True)
class LlmPlan:
    """A split of a language model.

    Parameters
    ----------
    model, hardware, settings
        What was split over what (its name), by which rules.
    status
        ``optimal``: no contiguous split of these units over an ordered choice of these devices (with
        ``contiguous=False`` no placement on them) is better under this cost model; ``feasible``: one may be, down to
        the bound; ``infeasible``: none fits.
    value, bound
        Seconds of the objective, and what was proven that no split is below; inf where none fits.
    spans
        In the order in which a token passes the devices.
    memory
        Of each device that is used, in the hardware's order.
    message
        What is missing where nothing fits.
    baselines
        Name of a rule that people split by -> the value of its split under the same model, or why it has none.
    solve_s
        Seconds that the proof took.
    bound_source
        What proved the bound, which holds but for the rounding of sums, or with it taken off.
    levels
        What it is chosen by among plans of equal value, to 1e-9 of it; none where nothing fits.
    interval
        Least and most seconds: 80% of predictions this sure lie between, errors of all ops taken to go together.
    costs
        Share of the value's seconds by where they come from: ``measured``, ``interpolated``, ``extrapolated``,
        ``modelled`` (the roofline).
    """

    model: LanguageModel
    hardware: str
    settings: Settings
    status: Literal["optimal", "feasible", "infeasible"]
    value: float
    bound: float
    spans: tuple[Span, ...]
    memory: tuple[DeviceMemory, ...] = ()
    message: str = ""
    baselines: Mapping[str, float | str] = field(default_factory=dict)
    solve_s: float = 0.0
    bound_source: str = ""
    levels: tuple[Level, ...] = ()
    interval: tuple[float, float] = (0.0, math.inf)
    costs: Mapping[str, float] = field(default_factory=dict)

    def is_surely_below(self, value: float) -> bool:
        """Return whether the plan may be called better than a split of that value.

        It may where the intervals of the two, of which the other's is as wide in proportion, overlap by half at most.
        """
        least, most = self.interval
        overlap = most - value * least / self.value if self.value > 0 else 0.0
        return self.value < value and overlap <= 0.5 * (most - least)

    @property
    def assignment(self) -> dict[str, str]:
        """Name of each unit -> name of its device."""
        return {unit: span.device for span in self.spans for unit in span.units}

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all sequences together make a second by the objective; of ``prefill`` tokens that are read."""
        work = self.model.workload
        tokens = {"prefill": work.prompt, "request": work.output}.get(self.settings.objective, 1)
        return work.batch * tokens / self.value if self.value > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as what JSON can say; infinite values are null."""
        work = self.model.workload
        return {
            "model": self.model.name,
            "hardware": self.hardware,
            "parameters": self.model.num_params,
            "dtype": {
                "weights": self.model.weights,
                "activations": self.model.activations,
                "bits_per_weight": self.model.bits_per_weight,
            },
            "notes": list(self.model.notes),
            "workload": dataclasses.asdict(work),
            "settings": dataclasses.asdict(self.settings),
            "status": self.status,
            "value": _finite(self.value),
            "bound": _finite(self.bound),
            "bound_source": self.bound_source,
            "levels": [
                {"name": level.name, "value": _finite(level.value), "bound": _finite(level.bound)}
                for level in self.levels
            ],
            "message": self.message,
            "spans": [dataclasses.asdict(span) for span in self.spans],
            "memory": [
                {
                    name: amount if isinstance(amount, str) else _finite(amount)
                    for name, amount in (dataclasses.asdict(one) | {"free_bytes": one.free_bytes}).items()
                }
                for one in self.memory
            ],
            "baselines": dict(self.baselines),
            "solve_s": self.solve_s,
            "interval": [_finite(one) for one in self.interval],
            "costs": dict(self.costs),
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        write_json(path, self.to_dict())


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
