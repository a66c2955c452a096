"""Menus: in which ways each op may run, on how many devices at once, and what each way takes.

A *variant* of an op at tensor degree t is one way to run it on a group of t devices that share its work: recomputed or
not, sequence parallel or not, by experts or by columns. Figures are those of one of the t devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.files import read_json, write_json
from rlinit.limits import MAX_DEVICES, check_name, check_number, closest

__all__ = ["Menu", "Variant"]

_FORMAT, _VERSION = "rlinit-menu", 1
"""What a file says of itself."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run an op on a group of devices; figures are those of one device.

    Parameters
    ----------
    name
        What the variant is called, such as ``recomputed``; unique among those of its op and degree.
    time_s
        Seconds of a micro-batch, communication inside the group counted: forward and backward together in training. Of
        all devices, or by their kind: on kinds that are not named there is no such variant.
    param_bytes
        Bytes of the parameters, which replicas send each other as gradients.
    held_bytes, fixed_bytes
        Bytes that are held for each micro-batch in flight, and once.
    shared_bytes
        Bytes that replicas share out, each of d holding a d-th: states that ZeRO partitions, caches of requests.
    sync_bytes
        Neighbour -> bytes that the group gathers or reduces on the edge to it, where that edge leads to another stage.
    """

    name: str
    time_s: float | Mapping[str, float]
    param_bytes: float = 0.0
    held_bytes: float = 0.0
    fixed_bytes: float = 0.0
    shared_bytes: float = 0.0
    sync_bytes: Mapping[str, float] = field(default_factory=dict)


SIZES = ("time_s", "param_bytes", "held_bytes", "fixed_bytes", "shared_bytes")
"""Figures of a variant, the first of them one number or by kind of device, the others one number."""

_KEYS = ("name", *SIZES, "sync_bytes")


@dataclass(frozen=True, slots=True)
class Menu:
    """The variants of every op by tensor degree.

    Parameters
    ----------
    ops
        op -> tensor degree -> variants, one or more.

    Raises
    ------
    InvalidGraph
        No degree or no variant, two of one name, a degree below 1, a size that is negative or no number; the message
        names the op and the field.

    References
    ----------
    Tarnawski et al.: Piper, multidimensional planner for DNN parallelization, NeurIPS 2021; TMPCs are variants here.
    """

    ops: Mapping[str, Mapping[int, tuple[Variant, ...]]]

    def __post_init__(self) -> None:
        self._take({op: plain_menu(op, degrees) for op, degrees in self.ops.items()})

    def _take(self, plain: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> None:
        taken = {
            op: {int(t): tuple(Variant(**row) for row in rows) for t, rows in degrees.items()}
            for op, degrees in plain.items()
        }
        object.__setattr__(self, "ops", taken)

    @classmethod
    def of_plain(cls, ops: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Menu:
        """Return the menu of ops whose variants `plain_menu` gave: they are not checked again.

        Parameters
        ----------
        ops
            op -> tensor degree -> variants.
        """
        menu = object.__new__(cls)
        menu._take(ops)
        return menu

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor degrees that some op has variants of, ascending."""
        return tuple(sorted({degree for degrees in self.ops.values() for degree in degrees}))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        ops = {op: plain_menu(op, rows) for op, rows in self.ops.items()}
        return {"format": _FORMAT, "version": _VERSION, "ops": ops}

    def save(self, path: str | Path) -> None:
        """Write the menu as JSON, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data: Any, source: str = "the menu") -> Menu:
        """Read the JSON form, or a bare mapping from ops to degrees to variants.

        Parameters
        ----------
        data
            What was parsed from JSON.
        source
            Where it is from, for messages.

        Raises
        ------
        InvalidGraph
            It is no menu.
        """
        rows = data.get("ops", data) if isinstance(data, Mapping) and data.get("format", _FORMAT) == _FORMAT else None
        if not isinstance(rows, Mapping):
            raise InvalidGraph(f"{source} is no menu; expected op -> tensor degree -> a list of variants")
        return cls({str(op): row for op, row in rows.items()})

    @classmethod
    def load(cls, path: str | Path) -> Menu:
        """Read a menu written by `save`, or by hand.

        Raises
        ------
        InvalidGraph
            Unreadable file, or no menu.
        """
        return cls.from_dict(read_json(path, None, InvalidGraph), str(path))


def is_recomputed(variant: str) -> bool:
    """Return whether a variant of this name computes its activations twice."""
    return "recomp" in variant.lower()


def plain_menu(op: str, value: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the variants of an op in one form, that of JSON, after checking them.

    Parameters
    ----------
    op
        The op, for messages.
    value
        Tensor degree (a number, or text as in JSON) -> a list of variants, each a mapping.

    Raises
    ------
    InvalidGraph
        What `Menu` refuses.
    """
    what = f"op {op!r}: menu"
    if not isinstance(value, Mapping) or not value:
        raise InvalidGraph(f"{what} is {str(value)[:40]!r}; expected tensor degree -> a list of variants")
    rows: dict[int, list[dict[str, Any]]] = {}
    for key, variants in value.items():
        degree = int(key) if str(key).isascii() and str(key).isdecimal() and len(str(key)) < 6 else 0
        if not 1 <= degree <= MAX_DEVICES:
            raise InvalidGraph(f"{what} has degree {str(key)[:20]!r}; expected a whole number from 1 to {MAX_DEVICES}")
        if not isinstance(variants, Iterable) or isinstance(variants, (str, Mapping)) or not variants:
            raise InvalidGraph(f"{what} at degree {degree}: expected a list of one variant or more")
        rows[degree] = [_plain_variant(f"{what} at degree {degree}", row) for row in variants]
        names = [row["name"] for row in rows[degree]]
        if len(set(names)) < len(names):
            raise InvalidGraph(f"{what} at degree {degree} has two variants of one name among {', '.join(names)}")
    return {str(degree): rows[degree] for degree in sorted(rows)}


def _plain_variant(what: str, row: Any) -> dict[str, Any]:
    if isinstance(row, Variant):
        row = {key: getattr(row, key) for key in _KEYS}
    if not isinstance(row, Mapping) or "time_s" not in row:
        raise InvalidGraph(f"{what}: expected variants with name and time_s, got {str(row)[:40]!r}")
    for key in row:
        if key not in _KEYS:
            raise InvalidGraph(f"{what}: unknown field {key!r}{closest(str(key), _KEYS)} (expected {', '.join(_KEYS)})")
    name = row.get("name", "plain")
    check_name(f"{what}: name", name, InvalidGraph)
    made: dict[str, Any] = {"name": name}
    time, said = row["time_s"], f"{what}: time_s of {name!r}"
    if isinstance(time, Mapping) and time:
        made["time_s"] = {str(k): check_number(f"{said} on {k!r}", time[k], InvalidGraph) for k in sorted(time)}
    else:
        made["time_s"] = check_number(said, time, InvalidGraph)
    for key in SIZES[1:]:
        if size := check_number(f"{what}: {key} of {name!r}", row.get(key, 0.0), InvalidGraph):
            made[key] = size
    sync = row.get("sync_bytes", {})
    if not isinstance(sync, Mapping):
        raise InvalidGraph(f"{what}: sync_bytes of {name!r} is {str(sync)[:40]!r}; expected neighbour -> bytes")
    bytes_of = {
        str(op): check_number(f"{what}: sync_bytes of {name!r} to {str(op)!r}", size, InvalidGraph)
        for op, size in sorted(sync.items(), key=lambda pair: str(pair[0]))
    }
    named = {op: size for op, size in bytes_of.items() if size}
    return made | ({"sync_bytes": named} if named else {})
