"""What servers are told of layouts: layers of each rank of a pipeline, and where llama.cpp puts tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlinit.errors import InvalidPlan
from rlinit.llm.serving.fleets import SINK, SOURCE

Server = Literal["vllm", "sglang", "exo", "mlx", "llama.cpp"]

HOST = "CPU"
"""What llama.cpp calls the host's memory."""


def chains_of(
    spans: Mapping[str, tuple[int, int]], flow: Mapping[tuple[str, str], float], server: str
) -> Iterator[list[str]]:
    """Yield the chains of devices that a layout is made of, from the one with most requests on.

    Parameters
    ----------
    spans, flow
        Of the layout.
    server
        Its name, for messages.

    Raises
    ------
    InvalidPlan
        The layout is not made of chains that share no device.
    """
    into: dict[str, list[str]] = {}
    for (before, after), rate in flow.items():
        if rate > 0:
            into.setdefault(before, []).append(after)
    met: set[str] = set()
    for first in sorted(into[SOURCE], key=lambda name: -flow[SOURCE, name]):
        chain, at, layer = list[str](), first, 0
        while at != SINK:
            start, end = spans[at]
            if at in met or len(into[at]) != 1 or start != layer:
                raise InvalidPlan(
                    f"device {at!r} is not one rank of one pipeline from layer {layer} on; {server} runs chains "
                    "of whole spans alone"
                )
            met.add(at)
            chain.append(at)
            at, layer = into[at][0], end
        yield chain


def told(
    server: Server, counts: Mapping[str, int], names: Mapping[str, str] | None, threads: int | None
) -> dict[str, Any]:
    """Return what a server is told of a chain of devices and the layers of each.

    Parameters
    ----------
    server, names, threads
        As for `ServingPlan.to_servers`.
    counts
        Device -> layers, in the order that tokens take.

    Raises
    ------
    InvalidPlan
        Names or threads that the server is not told.
    """
    if server == "llama.cpp":
        return {"flags": _llama_cpp(counts, names, threads)}
    if names or threads:
        raise InvalidPlan(f"{server} is told neither names of devices nor threads; expected llama.cpp")
    if server == "exo":
        return {"node_layers": dict(counts)}
    held = [*counts.values()]
    if server == "mlx":
        return {"split": held[::-1]}
    size = "--pipeline-parallel-size" if server == "vllm" else "--pp-size"
    variables = {f"{server.upper()}_PP_LAYER_PARTITION": ",".join(map(str, held))}
    return {"environment": variables, "flags": [size, str(len(held))]}


def _llama_cpp(counts: Mapping[str, int], names: Mapping[str, str] | None, threads: int | None) -> list[str]:
    """Return the flags of llama.cpp for a chain."""
    called = {name: name for name in counts} if names is None else names
    lacking = next((name for name in counts if name not in called), None)
    if lacking is not None:
        raise InvalidPlan(f"device {lacking!r} has no name of llama.cpp; give one such as 'CUDA0'")
    twice = [name for name, often in Counter(called[name] for name in counts).items() if often > 1]
    if twice:
        raise InvalidPlan(f"{twice[0]} is the name of several devices of one pipeline; expected one each")
    where = [called[name] for name, count in counts.items() for _ in range(count)]
    flags, owners = llama_cpp_layers([*where, where[-1]])
    moved = [at for at, device in enumerate(where) if device != owners[at]]
    rules = [rf"^blk\.({'|'.join(map(str, moved))})\..*={HOST}"] if moved else []
    rules += [f"^output.*={HOST}"] if where[-1] != owners[-1] else []
    return flags + (["-ot", ",".join(rules)] if rules else []) + thread_flags(where, threads)


def thread_flags(where: Sequence[str], threads: int | None) -> list[str]:
    """Return the flag of llama.cpp's threads, where they are asked for.

    Parameters
    ----------
    where
        Devices that compute.
    threads
        Of the host.

    Raises
    ------
    InvalidPlan
        No such number, or the host has no layers.
    """
    if threads is None:
        return []
    if threads < 1 or HOST not in where:
        raise InvalidPlan(f"threads is {threads}; expected a number from 1 on, and layers on {HOST}, which computes")
    return ["-t", str(threads)]


def llama_cpp_layers(where: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags that give llama.cpp's devices their layers, and the device that each layer belongs to then.

    Its first layers are the host's, the others its devices' in turn. Layers of the host behind those of a device belong
    to that device, and have to be moved.

    Parameters
    ----------
    where
        Device of each layer, and of the head as the last one.

    Raises
    ------
    InvalidPlan
        Layers of a device are not in a row.
    """
    order = list(dict.fromkeys(device for device in where if device != HOST))
    if not order:
        return ["-ngl", "0"], list(where)
    first, owners = next(at for at, device in enumerate(where) if device != HOST), list(where)
    for at in range(first, len(where)):
        owners[at] = where[at] if where[at] != HOST else owners[at - 1]
    if [
        device for at, device in enumerate(owners) if at >= first and (at == first or device != owners[at - 1])
    ] != order:
        raise InvalidPlan("caches of a device are not in a row, which llama.cpp cannot say; plan with contiguous=True")
    flags = ["--device", ",".join(order), "-ngl", str(len(where) - first)]
    return flags + (
        ["-ts", ",".join(str(owners[first:].count(one)) for one in order)] if len(order) > 1 else []
    ), owners
