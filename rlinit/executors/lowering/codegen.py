"""Straight-line Python for a device program, one statement a call, by torch.fx."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinit.executors.lowering.device_programs import DeviceProgram


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a device runs.

    Parameters
    ----------
    call
        (inputs, bring, recv, send, begin, end) -> outputs, the ones of the collector.
    file_name
        What tracebacks call the generated source.
    line2op
        Line -> op that runs there.
    """

    call: Callable[..., tuple[Any, ...]]
    file_name: str
    line2op: dict[int, str]

    def op_at(self, trace: TracebackType | None) -> str | None:
        """Return the op that a traceback passes through, if it does."""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file_name:
                return self.line2op.get(trace.tb_lineno)
            trace = trace.tb_next
        return None


def device_code(name: str, program: DeviceProgram, held: Any) -> DeviceCode:
    """Generate and compile the code of a device program.

    Parameters
    ----------
    name
        What tracebacks call the device.
    program
        What it does.
    held
        Has the attributes that the program reads: its device, and constants there.
    """
    made = program.graph.python_code("self")
    lines = made.src.splitlines(keepends=True)
    file_name = f"<program of {name} {id(program)}>"
    names = dict(made.globals)
    exec(compile(made.src, file_name, "exec"), names)
    # Tracebacks show the generated line.
    linecache.cache[file_name] = (len(made.src), None, lines, file_name)
    begun = {at: line.partition(" = ")[0].strip() for at, line in enumerate(lines, start=1)}
    line2op = {at: program.op_of[value] for at, value in begun.items() if program.op_of.get(value)}
    return DeviceCode(partial(names["forward"], held), file_name, line2op)
