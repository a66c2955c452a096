"""What a device does, one step at a time.

===========  =====================================================================================================
instruction  meaning
===========  =====================================================================================================
`Fetch`      the value is an input of the model, or some micro-batches of it
`Call`       the value is what a node computes from others
`Join`       the value is put together from parts of others, input by input
`Recv`       the value is what another program sends into a cell
`Send`       put a value into a cell
`Begin`      a batch of the plan starts; `End`: it is over
`Free`       the values are not needed any more
===========  =====================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

Microbatches = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the program, where it stands in the arguments of a call."""

    value: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A parameter, buffer or other constant, where it stands in the arguments of a call."""

    node: Node


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read an input of the model; `microbatches` is empty for all of it."""

    value: int
    position: int
    microbatches: Microbatches
    axis: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """Compute a node; `args` and `kwargs` hold slots, constants and plain values."""

    value: int
    node: Node
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Join:
    """Stack parts along an axis: (value, first, end) in microbatches of that value, each input of which has `rows`."""

    value: int
    parts: tuple[tuple[int, int, int], ...]
    axis: int
    rows: int


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait for a cell and take what is in it."""

    value: int
    cell: int


@dataclass(frozen=True, slots=True)
class Send:
    """Put a value into a cell."""

    value: int
    cell: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A task starts."""

    task: int


@dataclass(frozen=True, slots=True)
class End:
    """A task is over."""

    task: int


@dataclass(frozen=True, slots=True)
class Free:
    """Forget values."""

    values: tuple[int, ...]


Instruction = Fetch | Call | Join | Recv | Send | Begin | End | Free
