"""What can go wrong, by name. Infeasible and out of time are statuses of a plan, not errors."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "BackendUnavailable",
    "CheckpointError",
    "InvalidConfig",
    "InvalidGraph",
    "InvalidHardware",
    "InvalidPlan",
    "OutOfMemory",
    "RlinitError",
    "SolverFailure",
    "TrainingFailure",
    "first_line",
    "imported",
]


class RlinitError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidGraph(RlinitError, ValueError):
    """The computation graph is malformed; the message names the op or edge."""


class InvalidHardware(RlinitError, ValueError):
    """The hardware description is malformed; the message names the device, link or key."""


class InvalidPlan(RlinitError, ValueError):
    """A plan breaks a constraint or claims a value it does not have."""


class SolverFailure(RlinitError, RuntimeError):
    """A solver ended in a way that is neither a result, an infeasibility nor a spent budget."""


class OutOfMemory(RlinitError, MemoryError):
    """A part of the work would take, or took, more memory than its limit; what was found before stays."""


class BackendUnavailable(RlinitError, ImportError):
    """An optional package is missing; the message names the extra to install."""


class InvalidConfig(RlinitError, ValueError):
    """A configuration of a training run is malformed; the message names the field."""


class TrainingFailure(RlinitError, RuntimeError):
    """Training cannot go on; the message says at which step, with what seed, and what to do."""


class CheckpointError(RlinitError, ValueError):
    """A checkpoint is unreadable, damaged, of a newer format, or not for the network or problem it is asked for."""


class ExecutionFailure(RlinitError, RuntimeError):
    """Running a plan failed; the message names the op and the device, or the process."""


def first_line(problem: BaseException) -> str:
    """Return the kind of an error and the first line of what it says: what one line of a message has room for."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


def imported(module: str, purpose: str, install: str) -> Any:
    """Return a module of an optional package.

    Parameters
    ----------
    module
        Its full name.
    purpose
        What needs it, as a message begins.
    install
        What pip is to install, such as ``rlinit[torch]``.

    Raises
    ------
    BackendUnavailable
        It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.partition(".")[0]
        raise BackendUnavailable(f"{purpose} needs {package} ({problem}); pip install {install}") from problem
