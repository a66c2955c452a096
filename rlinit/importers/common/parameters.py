"""Which op holds which constant tensor, and which ops must stay together for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Sharing = Literal["hold", "colocate", "copy"]
"""What to do with a parameter that several ops read: each device that runs some of them holds it once; all of them stay
together; or each has a copy of its own."""


@dataclass(slots=True)
class Holdings:
    """Adds up the bytes each op holds while ops are met in order.

    A *parameter* read by several ops, such as tied embeddings, counts for each of them and is named, so that a device
    or stage that runs several holds it once (`rlinit.tensors`). With ``sharing="colocate"`` it is counted
    on the first of them, and the readers form one colocation group; with ``"copy"`` each has a copy of its own, so that
    the bytes are never too few. Other constants (masks, position tables, moving statistics, scalars) that several ops
    read are always copied.

    Parameters
    ----------
    sharing
        See above.
    param_bytes, constant_bytes
        op -> bytes it holds, and those of them that training does not change.
    group
        op -> the op that leads its group; a forest, see `label`.

    Raises
    ------
    ValueError
        `sharing` is none of the three.
    """

    sharing: Sharing = "hold"
    param_bytes: dict[str, int] = field(default_factory=dict)
    constant_bytes: dict[str, int] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    _holder: dict[str, str] = field(default_factory=dict)
    _held: set[tuple[str, str]] = field(default_factory=set)
    _readers: dict[str, dict[str, int]] = field(default_factory=dict)  # parameter -> op -> bytes

    def __post_init__(self) -> None:
        if self.sharing not in get_args(Sharing):
            raise ValueError(f"sharing is {self.sharing!r}; expected one of {', '.join(get_args(Sharing))}")

    def add(self, op: str, tensor: str, num_bytes: int, *, is_parameter: bool, is_trained: bool) -> None:
        """Note that an op reads a constant tensor; reading it twice counts once.

        Parameters
        ----------
        op
            Name of the op.
        tensor
            What identifies the tensor; two names for one storage must be told apart by the caller.
        num_bytes
            Its bytes, >= 0.
        is_parameter
            Whether it is a parameter in the sense above.
        is_trained
            Whether training changes it: neither a buffer, a mask or a table, nor a parameter without a gradient.
        """
        if (op, tensor) in self._held:
            return
        self._held.add((op, tensor))
        holder = self._holder.setdefault(tensor, op)
        if holder != op and is_parameter and self.sharing == "colocate":
            first, second = self._leader(holder), self._leader(op)
            self.group[second] = self.group.setdefault(first, first)
            return
        self.param_bytes[op] = self.param_bytes.get(op, 0) + num_bytes
        if num_bytes and not is_trained:
            self.constant_bytes[op] = self.constant_bytes.get(op, 0) + num_bytes
        if is_parameter and self.sharing == "hold" and num_bytes:
            self._readers.setdefault(tensor, {})[op] = num_bytes

    def attributes(self) -> dict[str, dict[str, Any]]:
        """Return op -> what its parameters make of its row: bytes, those that are shared, a colocation group."""
        rows: dict[str, dict[str, Any]] = {op: {"param_bytes": held} for op, held in self.param_bytes.items()}
        for op, held in self.constant_bytes.items():
            rows[op]["constant_bytes"] = held
        for tensor, readers in self._readers.items():
            for op, held in readers.items() if len(readers) > 1 else ():
                rows[op].setdefault("shared", {})[tensor] = held
        for op in self.group:
            rows.setdefault(op, {})["colocate"] = self.label(op)
        return rows

    def _leader(self, op: str) -> str:
        while self.group.get(op, op) != op:
            op = self.group[op]
        return op

    def label(self, op: str) -> str | None:
        """Return the colocation group of an op (the name of its leader), None where it has none."""
        return self._leader(op) if op in self.group else None
