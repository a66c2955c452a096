"""The physical side of a device program: its device, its streams, and how tensors come and go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from rlinit.errors import InvalidPlan


def ports_of(
    names: Sequence[str], devices: Mapping[str, str], clock: Callable[[], float] = time.perf_counter
) -> list[Port]:
    """Return a port for each device of a plan, and one for the collector, which is on the CPU.

    A device that is not given runs on the physical device of its name, where there is one, else on the CPU.

    Parameters
    ----------
    names
        The plan's devices.
    devices
        Name of the plan's device -> torch's name of a physical one, such as ``cuda:0``; may leave some out.
    clock
        What CPU devices measure batches by, in seconds.

    Raises
    ------
    InvalidPlan
        `devices` names an unknown device of the plan, or a physical one that is not there.
    """
    for name in devices:
        if name not in names:
            raise InvalidPlan(f"devices names {name!r}, which the plan does not know; expected some of {list(names)}")
    ports = []
    for name in names:
        wanted = devices.get(name, name if name == "cpu" or name.startswith("cuda") else "cpu")
        try:
            device = torch.device(wanted)
        except RuntimeError:
            raise InvalidPlan(f"device {name!r}: {wanted!r} is no torch device such as 'cpu' or 'cuda:0'") from None
        if device.type == "cuda":
            index = device.index or 0
            if not torch.cuda.is_available() or index >= torch.cuda.device_count():
                raise InvalidPlan(f"device {name!r} is {wanted!r}, which this machine does not have")
            device = torch.device("cuda", index)
        elif device.type != "cpu":
            raise InvalidPlan(f"device {name!r} is {wanted!r}; expected 'cpu' or 'cuda:N'")
        ports.append(Port(device, clock))
    ports.append(Port(torch.device("cpu"), clock))
    return ports


class Port:
    """Moves tensors to and from one device, and measures its batches; used by the program's own thread alone."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:

        self.device = device
        self._clock = clock
        self._cuda = device.type == "cuda"
        self._compute = _stream(device) if self._cuda else None
        self._copy = _stream(device) if self._cuda else None
        self._marks: list[tuple[int, Any, Any]] = []
        self._begun: Any = 0.0
        self._zero: tuple[float, Any] = (0.0, None)

    @contextlib.contextmanager
    def streams(self) -> Iterator[None]:
        """Compute on the program's own stream."""
        self._marks = []
        if self._compute is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._compute):
            zero = _event(timing=True)
            zero.record(self._compute)
            zero.synchronize()
            self._zero = (time.perf_counter(), zero)
            yield

    def bring(self, value: Any) -> Any:
        """Return an input of the model on this device."""
        if not isinstance(value, torch.Tensor) or value.device == self.device:
            return value
        return self.receive((value, None)) if self._cuda else value.to(self.device)

    def send(self, value: Any) -> tuple[Any, Any]:
        """Return a value with what its readers must wait for on the device."""
        if self._compute is None:
            return value, None
        made = _event()
        made.record(self._compute)
        return value, made

    def receive(self, sent: tuple[Any, Any]) -> Any:
        """Return a sent value on this device."""
        value, made = sent
        if made is None and not self._cuda:
            return value
        if not isinstance(value, torch.Tensor):
            return value
        if self._compute is None or self._copy is None:
            made.synchronize()
            return value.to(self.device)
        if value.device == self.device:
            self._compute.wait_event(made)
            value.record_stream(self._compute)
            return value
        with torch.cuda.stream(self._copy):
            if made is not None:
                self._copy.wait_event(made)
                value.record_stream(self._copy)
            moved = value.to(self.device, non_blocking=True)
        self._compute.wait_stream(self._copy)
        moved.record_stream(self._compute)
        return moved

    def begin(self, task: int) -> None:
        """Note that a batch starts."""
        self._begun = self._now()

    def end(self, task: int) -> None:
        """Note that a batch is over."""
        self._marks.append((task, self._begun, self._now()))

    def finish(self) -> list[tuple[int, float, float]]:
        """Wait for the device; return (task, start, end) of each batch, as the clock counts."""
        if self._compute is None:
            return self._marks
        self._compute.synchronize()
        started, zero = self._zero
        return [
            (task, started + zero.elapsed_time(begun) / 1e3, started + zero.elapsed_time(ended) / 1e3)
            for task, begun, ended in self._marks
        ]

    def _now(self) -> Any:

        if self._compute is None:
            return self._clock()
        event = _event(timing=True)
        event.record(self._compute)
        return event


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
