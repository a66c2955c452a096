"""Straight-line Python for a device program: one statement an instruction, values in local variables.

Only numbers of values, cells and constants are written into the source; names and arguments of the model never are.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlinit.executors.lowering.instructions import (
    Begin,
    Call,
    Constant,
    End,
    Fetch,
    Free,
    Instruction,
    Join,
    Recv,
    Send,
    Slot,
)

if TYPE_CHECKING:
    import torch
    from torch.fx import Node


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a device runs.

    Parameters
    ----------
    call
        (inputs, bring, recv, send, begin, end) -> outputs, the ones of the collector.
    source, file_name
        The generated source, and what tracebacks call it.
    line2op
        Line -> op that runs there.
    """

    call: Callable[..., tuple[Any, ...]]
    source: str
    file_name: str
    line2op: dict[int, str]

    def op_at(self, trace: TracebackType | None) -> str | None:
        """Return the op that a traceback passes through, if it does."""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file_name:
                return self.line2op.get(trace.tb_lineno)
            trace = trace.tb_next
        return None


def device_code(
    name: str,
    instructions: Sequence[Instruction],
    outputs: Sequence[Any],
    ops: Sequence[str],
    microbatch_inputs: int,
    device: torch.device,
    constant: Callable[[Node, torch.device], Any],
    *,
    measure: bool = False,
) -> DeviceCode:
    """Generate and compile the code of a device program.

    Parameters
    ----------
    name
        Of the device, for tracebacks.
    instructions, outputs
        What it does, and what it returns.
    ops
        Op of each task.
    microbatch_inputs
        Inputs of one microbatch.
    device
        The physical device; it replaces the devices that were written into the model when it was exported.
    constant
        Gives the value of a constant on a device.
    measure
        Call `begin` and `end` around each batch.
    """
    writer = _Writer(device, constant, microbatch_inputs)
    lines = ["def program(inputs, bring, recv, send, begin, end):"]
    line2op: dict[int, str] = {}
    op = ""
    for instruction in instructions:
        if isinstance(instruction, Begin):
            op = ops[instruction.task]
        text = writer.line(instruction, measure=measure)
        if isinstance(instruction, End):
            op = ""
        if text:
            lines.append(f"    {text}")
            if op:
                line2op[len(lines)] = op
    lines.append(f"    return ({''.join(writer.text(output) + ', ' for output in outputs)})")
    source = "\n".join(lines) + "\n"
    file_name = f"<program of {name} {id(writer)}>"
    exec(compile(source, file_name, "exec"), writer.names)
    # Tracebacks show the generated line.
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    return DeviceCode(writer.names["program"], source, file_name, line2op)


class _Writer:
    """Writes instructions, and collects what they refer to."""

    def __init__(
        self, device: torch.device, constant: Callable[[Node, torch.device], Any], microbatch_inputs: int
    ) -> None:
        self.names: dict[str, Any] = {"part": _part, "stack": _stack}
        self._device, self._constant, self._microbatch_inputs = device, constant, microbatch_inputs
        self._known: dict[tuple[str, int], str] = {}
        self._kept: list[Any] = []

    def line(self, instruction: Instruction, *, measure: bool) -> str:
        """Return the statement of an instruction; "" if it has none."""
        size = self._microbatch_inputs
        match instruction:
            case Fetch(value, position, microbatches, axis):
                if not microbatches:
                    return f"v{value} = bring(inputs[{position}])"
                return f"v{value} = bring(part(inputs[{position}], {axis}, {[s * size for s in microbatches]}, {size}))"
            case Call(value, _, target, args, kwargs):
                named = "".join(f", {key}={self.text(part)}" for key, part in kwargs.items())
                return f"v{value} = {self._name('f', target)}({', '.join(map(self.text, args))}{named})"
            case Join(value, parts, axis, rows):
                each = rows * size
                runs = ", ".join(f"(v{one}, {first * each}, {end * each})" for one, first, end in parts)
                return f"v{value} = stack([{runs}], {axis})"
            case Recv(value, cell):
                return f"v{value} = recv({cell})"
            case Send(value, cell):
                return f"send({cell}, v{value})"
            case Begin(task):
                return f"begin({task})" if measure else ""
            case End(task):
                return f"end({task})" if measure else ""
            case Free(values):
                return f"del {', '.join(f'v{value}' for value in values)}"
        raise TypeError(f"unknown instruction {instruction!r}")

    def text(self, argument: Any) -> str:
        """Return the expression of an argument."""
        import torch

        if isinstance(argument, Slot):
            return f"v{argument.value}"
        if isinstance(argument, Constant):
            return self._name("k", self._constant(argument.node, self._device))
        if argument is None or isinstance(argument, (bool, int)):
            return repr(argument)
        if isinstance(argument, list):
            return f"[{', '.join(map(self.text, argument))}]"
        if isinstance(argument, tuple) and type(argument) is tuple:
            return f"({''.join(self.text(part) + ', ' for part in argument)})"
        if isinstance(argument, slice):
            return f"slice({self.text(argument.start)}, {self.text(argument.stop)}, {self.text(argument.step)})"
        if isinstance(argument, torch.device):
            return self._name("c", self._device)
        return self._name("c", argument)

    def _name(self, prefix: str, value: Any) -> str:
        key = (prefix, id(value))
        if key not in self._known:
            self._known[key] = f"{prefix}{len(self._known)}"
            self._kept.append(value)  # an id means nothing once its object is gone
            self.names[self._known[key]] = value
        return self._known[key]


def _part(value: torch.Tensor, axis: int, starts: Sequence[int], size: int) -> torch.Tensor:
    """Return some microbatches of an input."""
    import torch

    if list(starts) == list(range(starts[0], starts[0] + len(starts) * size, size)):
        return value.narrow(axis, starts[0], len(starts) * size)
    return torch.cat([value.narrow(axis, start, size) for start in starts], axis)


def _stack(parts: Sequence[tuple[torch.Tensor, int, int]], axis: int) -> torch.Tensor:
    """Return parts of values, one after the other."""
    import torch

    pieces = []
    for value, first, end in parts:
        whole = (first, end) == (0, value.shape[axis])
        piece = value if whole else value.narrow(axis, first, end - first)
        # The program may take views that a slice of contiguous memory would not allow.
        pieces.append(piece.contiguous() if value.is_contiguous() else piece)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)
