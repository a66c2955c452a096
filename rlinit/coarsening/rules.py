"""Fusion rules: which sequences of op kinds a backend runs as one kernel. They are data; users bring their own."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rlinit.errors import RlinitError

_NAMESPACES = ("aten", "prims")
_MAX_VARIANTS = 4096


class InvalidRules(RlinitError, ValueError):
    """Fusion rules are malformed; the message names the file, rule or kind."""


def _plain_kind(kind: str) -> str:
    """Return a kind without namespace, overload, case, ``_`` and ``-``."""
    parts = kind.replace("::", ".").replace("/", ".").split(".")
    name = parts[-1]
    for namespace in _NAMESPACES:
        if namespace in parts[:-1]:
            name = parts[parts.index(namespace) + 1]
    return name.replace("_", "").replace("-", "").lower()


@dataclass(frozen=True, slots=True)
class FusionRules:
    """Sequences of kinds that a backend runs as one kernel.

    Parameters
    ----------
    rules
        Each a sequence of classes or kinds in the order of the data; a trailing ``?`` marks one that may be left out.
        Sequences of fewer than two ops say nothing.
    kinds
        Class -> the kinds in it, besides the one of its own name. What is in no class is a kind by itself.

    Raises
    ------
    InvalidRules
        A kind in two classes, an empty name, or a rule with more than 4096 variants.

    References
    ----------
    Moirai, Section III-B, Table I.

    Examples
    --------
    >>> FusionRules((("conv", "bn?", "relu"),)).sequences()
    (('conv', 'bn', 'relu'), ('conv', 'relu'))
    """

    rules: tuple[tuple[str, ...], ...]
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner: dict[str, str] = {}
        for label, kinds in self.kinds.items():
            if isinstance(kinds, str) or not all(isinstance(kind, str) for kind in kinds):
                raise InvalidRules(f"class {label!r} is {kinds!r}; expected a list of kinds")
            for kind in (label, *kinds):
                other = owner.setdefault(_plain_kind(kind), label)
                if other != label:
                    raise InvalidRules(f"kind {kind!r} is in the classes {other!r} and {label!r}; expected one")
        for rule in self.rules:
            if isinstance(rule, str) or not all(isinstance(op, str) and op.rstrip("?") for op in rule):
                raise InvalidRules(f"rule {rule!r} is not a list of classes and kinds")
            if 2 ** sum(op.endswith("?") for op in rule) > _MAX_VARIANTS:
                raise InvalidRules(f"rule {rule!r} has more than {_MAX_VARIANTS} variants; mark fewer ops with '?'")

    @classmethod
    def default(cls) -> FusionRules:
        """Return the rules this package comes with (``fusion_rules.toml``)."""
        return _default_rules()

    @classmethod
    def load(cls, path: str | Path) -> FusionRules:
        """Read rules from a TOML file in the form of ``fusion_rules.toml``.

        Raises
        ------
        InvalidRules
            Unreadable or malformed file, an unknown key, or contents the constructor refuses.
        """
        try:
            return cls._from_text(Path(path).read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidRules(f"cannot read {path}: {problem}") from problem

    @classmethod
    def _from_text(cls, text: str, source: str) -> FusionRules:
        try:
            data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            raise InvalidRules(f"{source} is not valid TOML: {problem}") from None
        kinds, rows = data.get("kinds", {}), data.get("rule", [])
        if not isinstance(kinds, dict) or not isinstance(rows, list) or not data.keys() <= {"kinds", "rule"}:
            raise InvalidRules(f"{source} has the keys {sorted(data)}; expected a table [kinds] and tables [[rule]]")
        for row in rows:
            if not isinstance(row, dict) or not row.keys() <= {"name", "ops"} or not isinstance(row.get("ops"), list):
                raise InvalidRules(f"{source}: rule {row!r}; expected a list `ops` and perhaps a `name`")
        for label, members in kinds.items():
            if not isinstance(members, list):
                raise InvalidRules(f"{source}: class {label!r} is {members!r}; expected a list of kinds")
        return cls(tuple(tuple(row["ops"]) for row in rows), {label: tuple(kinds[label]) for label in kinds})

    def extended(self, other: FusionRules) -> FusionRules:
        """Return these rules and `other`; classes of one name are united.

        Raises
        ------
        InvalidRules
            A kind that ends up in two classes.
        """
        kinds = {label: tuple(members) for label, members in self.kinds.items()}
        for label, members in other.kinds.items():
            kinds[label] = (*kinds.get(label, ()), *members)
        return FusionRules((*self.rules, *other.rules), kinds)

    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """Return every sequence of two or more classes or kinds the rules allow, each once."""
        found: dict[tuple[str, ...], None] = {}
        for rule in self.rules:
            choices = [((op[:-1],), ()) if op.endswith("?") else ((op,),) for op in rule]
            for choice in itertools.product(*choices):
                sequence = tuple(itertools.chain.from_iterable(choice))
                if len(sequence) >= 2:
                    found[sequence] = None
        return tuple(found)

    def class_of(self, kind: str) -> str:
        """Return the class of a kind, or the kind itself in its plain form; both compare as rules are compared."""
        return self._classes().get(_plain_kind(kind), _plain_kind(kind))

    def _classes(self) -> dict[str, str]:
        return {_plain_kind(kind): label for label, kinds in self.kinds.items() for kind in (label, *kinds)}


@cache
def _default_rules() -> FusionRules:
    text = resources.files("rlinit.coarsening").joinpath("fusion_rules.toml").read_text(encoding="utf-8")
    return FusionRules._from_text(text, "fusion_rules.toml")


class RuleTrie:
    """The rules as a prefix tree: from a node, on the class of the next op, to a node; some nodes end a rule."""

    def __init__(self, rules: FusionRules) -> None:
        classes = rules._classes()
        self.step: list[dict[int, int]] = [{}]
        self.ends = [False]
        codes: dict[str, int] = {}
        for sequence in rules.sequences():
            node = 0
            for op in sequence:
                name = op if op in rules.kinds else classes.get(_plain_kind(op), _plain_kind(op))
                code = codes.setdefault(name, len(codes))
                if code not in self.step[node]:
                    self.step[node][code] = len(self.step)
                    self.step.append({})
                    self.ends.append(False)
                node = self.step[node][code]
            self.ends[node] = True
        self._codes, self._classes = codes, classes

    def codes(self, kinds: Sequence[str]) -> list[int]:
        """Return the class code of each kind, -1 for those no rule names."""
        known = {}
        for kind in set(kinds):
            plain = _plain_kind(kind)
            known[kind] = self._codes.get(self._classes.get(plain, plain), -1)
        return [known[kind] for kind in kinds]
