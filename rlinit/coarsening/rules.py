"""Fusion rules: which sequences of op kinds a backend runs as one kernel. They are data."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from rlinit.errors import RlinitError
from rlinit.limits import MAX_TERMS

_NAMESPACES = ("aten", "prims")


class InvalidRules(RlinitError, ValueError):
    """Fusion rules are malformed; the message names the rule or kind."""


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
        A kind in two classes, or a rule with more than 4096 variants.

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
            for kind in (label, *kinds):
                other = owner.setdefault(_plain_kind(kind), label)
                if other != label:
                    raise InvalidRules(f"kind {kind!r} is in the classes {other!r} and {label!r}; expected one")
        for rule in self.rules:
            if isinstance(rule, str):
                raise InvalidRules(f"rule {rule!r} is not a sequence of classes and kinds")
            if 2 ** sum(op.endswith("?") for op in rule) > MAX_TERMS:
                raise InvalidRules(f"rule {rule!r} has more than {MAX_TERMS} variants; mark fewer ops with '?'")

    @classmethod
    def default(cls) -> FusionRules:
        """Return the rules this package comes with (``fusion_rules.toml``)."""
        return _default_rules()

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
    data: dict[str, Any] = tomllib.loads(text)
    kinds = {label: tuple(members) for label, members in data["kinds"].items()}
    return FusionRules(tuple(tuple(row["ops"]) for row in data["rule"]), kinds)


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
