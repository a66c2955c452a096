"""Which op holds which constant tensor, and which ops must stay together for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Sharing = Literal["colocate", "copy"]
"""What to do with a parameter that several ops read: keep them together, or give each its own copy."""


@dataclass(slots=True)
class Holdings:
    """Adds up the bytes each op holds while ops are met in order.

    A *parameter* read by several ops is counted once, on the first of them, and the readers form one colocation
    group: on one device one copy is enough, on two it would not be. With ``sharing="copy"`` each reader holds its
    own copy instead, which is what pipelines do with tied embeddings: nothing has to stay together, and the bytes
    are never too few. Other constants (masks, position tables, moving statistics, scalars) that several ops read
    are always copied: colocating every layer for a mask would help nobody.

    Parameters
    ----------
    sharing
        See above.
    param_bytes
        op -> bytes it holds.
    group
        op -> the op that leads its group; a forest, see `label`.

    Raises
    ------
    ValueError
        `sharing` is neither "colocate" nor "copy".
    """

    sharing: Sharing = "colocate"
    param_bytes: dict[str, int] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    _holder: dict[str, str] = field(default_factory=dict)
    _held: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.sharing not in ("colocate", "copy"):
            raise ValueError(f"sharing is {self.sharing!r}; expected 'colocate' or 'copy'")

    def add(self, op: str, tensor: str, num_bytes: int, *, is_parameter: bool) -> None:
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

    def _leader(self, op: str) -> str:
        while self.group.get(op, op) != op:
            op = self.group[op]
        return op

    def label(self, op: str) -> str | None:
        """Return the colocation group of an op (the name of its leader), None where it has none."""
        return self._leader(op) if op in self.group else None
