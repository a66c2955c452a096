"""Imports that wait until a test uses them: PyTorch takes longer to load than all tests take to be collected."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rlinit.errors import BackendUnavailable

__all__ = ["late_imports"]

OURS = {"rlinit", "tests"}


class Late:
    """A module, or what a module calls `name`, that stands for itself until something of it is used.

    A class to inherit from, and what an operator takes, is imported inside the test or in a module imported late.
    """

    def __init__(self, module: str, name: str = "") -> None:
        self.__dict__.update(_module=module, _name=name, __name__=name or module)

    def _found(self) -> Any:
        try:
            module = importlib.import_module(self._module)
            if not self._name or hasattr(module, self._name):
                return getattr(module, self._name) if self._name else module
            return importlib.import_module(f"{self._module}.{self._name}")
        except ModuleNotFoundError as absent:
            if (absent.name or "").partition(".")[0] in OURS:
                raise
            pytest.skip(f"{absent.name} is not installed")
        except BackendUnavailable as absent:
            pytest.skip(str(absent))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_mock_")):  # what pytest asks of every name of a module that it collects
            raise AttributeError(name)
        return getattr(self._found(), name)

    def __setattr__(self, name: str, value: object) -> None:
        # pytest would put nothing back: it looks for the old value in this stand-in, not in what it stands for
        raise AttributeError(f"patch {name} by its dotted name, as in monkeypatch.setattr('torch.load', ...)")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._found()(*args, **options)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._found())


@contextmanager
def late_imports() -> Iterator[None]:
    """Bind what the block imports to names that import it when they are used; what is absent then skips the test."""

    def wait(
        name: str,
        scope: Mapping[str, object] | None = None,
        here: Mapping[str, object] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        return SimpleNamespace(**{each: Late(name, each) for each in wanted}) if wanted else Late(name)

    at_once = builtins.__import__
    builtins.__import__ = wait  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = at_once
