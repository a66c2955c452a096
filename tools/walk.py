"""The way of real calls from `schedule` down to an equation, as JSON: ``python -m tools.walk``.

Three small problems are scheduled under a profiler, with kernels as Python. *Hops* are the functions of the library on
the stack below `schedule` when one of `TARGETS` is first called, comprehensions and lambdas aside. *Climbs* are the
distinct calls of the whole walk from a function into one whose folder the caller's folder does not import, directly or
by way of others: callbacks, mostly. A reader who follows the code goes down by imports except there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("DeviceModel._memory", "bottleneck_pass", "interval_bound")
"""A constraint, a pass over ideals and a bound: each is reached by one of the three problems."""

Call = tuple[str, str]


def walk(calls: list[Callable[[], object]]) -> tuple[dict[str, list[str]], set[Call]]:
    """Return the stack at the first call of each target, and all calls between functions of the library.

    Parameters
    ----------
    calls
        What to follow; each begins with `schedule`.
    """
    names: dict[CodeType, str] = {}
    ways: dict[str, list[str]] = {}
    pairs: set[Call] = set()

    def name_of(code: CodeType) -> str:
        if code not in names:
            path = Path(code.co_filename)
            inside = path.suffix == ".py" and path.is_relative_to(ROOT) and not {".venv", "tools"} & set(path.parts)
            parts = path.resolve().relative_to(ROOT).with_suffix("").parts if inside else ()
            parts = parts if not parts or parts[0] == "rlinit" else ("rlinit", *parts)
            names[code] = "" if "<" in code.co_name else ".".join((*parts, code.co_qualname)) if parts else ""
        return names[code]

    def stack(frame: FrameType | None) -> list[str]:
        found: list[str] = []
        while frame is not None and not (found and found[-1].endswith(".api.schedule")):
            found += [name_of(frame.f_code)] if name_of(frame.f_code) else []
            frame = frame.f_back
        return found[::-1]

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not name_of(frame.f_code):
            return
        above = frame.f_back
        while above is not None and not name_of(above.f_code):
            above = above.f_back
        if above is not None:
            pairs.add((name_of(above.f_code), name_of(frame.f_code)))
        for target in TARGETS:
            if target not in ways and names[frame.f_code].endswith(f".{target}"):
                ways[target] = stack(frame)

    for call in calls:
        call()  # imports what it needs
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
    return ways, pairs


def main() -> None:
    """Walk, and print the ways and the calls."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    import rlinit

    ops = [(f"op{v}", {"time_s": 1.0 + v % 3, "param_bytes": 1.0 + v % 2, "out_bytes": 1.0}) for v in range(6)]
    graph = rlinit.Graph.build(ops, [("op0", "op2"), ("op1", "op2"), ("op2", "op3"), ("op2", "op4"), ("op3", "op5")])
    loose = [(f"op{v}", {"time_s": 1.0 + v / 8, "param_bytes": 1.0, "out_bytes": 2.0}) for v in range(8)]
    wide = rlinit.Graph.build(loose, [(f"op{v}", f"op{v + 3}") for v in range(5)])
    mesh = rlinit.Hardware.mesh([rlinit.Device(f"dev{i}", memory_bytes=7.0) for i in range(2)], 1.0)
    line = rlinit.Hardware.pipeline(3, bandwidth=1.0)
    ways, pairs = walk(
        [
            lambda: rlinit.schedule(graph, mesh, objective="latency", method="milp", resident="weights"),
            lambda: rlinit.schedule(graph, line, method="ideals"),
            lambda: rlinit.schedule(wide, line, method="warm", window=0),
        ]
    )
    json.dump({"ways": ways, "pairs": sorted(pairs)}, sys.stdout)


if __name__ == "__main__":
    main()
