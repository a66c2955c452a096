"""``rlinit llm``: the proven best split of a language model over devices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rlinit.cli.inputs import check_targets, device_places
from rlinit.cli.output import EXIT_CODES, escape_markup
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.llm import Limit, LlmPlan, load, max_batch, max_context, plan, to_llama_cpp, to_vllm
from rlinit.units import format_bytes, format_seconds, parse_quantity


@dataclass(frozen=True)
class Llm:
    """Split a language model over devices: which layers run where, proven best, and what simple rules would take."""

    config: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG", help="A config.json, or a .gguf file.")
    ]
    hw: str
    """Devices joined by name (2x3090+cpu, 4xa100-80g+nvlink, m3-max/rtx4090+cpu/10gbe), or a hardware file."""
    objective: Literal["decode", "prefill", "request", "pipeline"] = "decode"
    """Seconds per output token, to the first token, of a request, or of the slowest stage of a pipeline."""
    context: int | None = None
    """Tokens that the cache has room for; by default prompt and output."""
    batch: int = 1
    """Sequences worked on at once."""
    prompt: int | None = None
    """Tokens given; by default 512, or what the context leaves."""
    output: int | None = None
    """Tokens made; by default 128."""
    dtype: str | None = None
    """Of weights and activations: bf16 (default), fp16, fp32, fp8, int8, int4, or WEIGHTS/ACTIVATIONS (int4/fp16)."""
    kv_dtype: str | None = None
    """Of the numbers in the cache, such as fp8 or int8; by default that of the activations."""
    granularity: Literal["layer", "part"] = "layer"
    """Whole layers, or attention and feed-forward part of each by themselves."""
    contiguous: bool = True
    """One span a device; without it each part may be on any, such as experts on the host under attention on a GPU."""
    stream: bool = False
    """With --no-contiguous: devices may read weights from the memory of a host (cpu) or a disk (nvme) in every pass."""
    reserve: str = "0B"
    """Memory of each device that stays free, such as 1GiB."""
    first: tuple[str, ...] = ()
    """Devices that come first where they are used; llama.cpp wants cpu."""
    max_context: bool = False
    """Find the longest context that fits, and plan for it."""
    max_batch: bool = False
    """Find the largest batch that fits, and plan for it."""
    vllm: bool = False
    """Print what vLLM is to be told."""
    llama_cpp: tuple[str, ...] = ()
    """Print llama.cpp's flags, with its names of the devices as NAME=DEVICE, such as rtx3090-0=CUDA0 cpu=CPU."""
    json: bool = False
    """Print JSON instead of a table."""
    out: Path | None = None
    """Write the plan here as JSON."""


def plan_language_model(command: Llm) -> int:
    """Carry out ``rlinit llm``; return the exit code.

    Raises
    ------
    RlinitError
        The input is wrong.
    """
    check_targets(command.out)
    found, limit = _planned(command)
    if command.out is not None:
        found.save(command.out)
    flags = _flags(command, found) if found.spans else []
    if command.json:
        most = {} if limit is None else {"largest": limit.largest, "by_model": limit.by_model}
        print(json.dumps(found.to_dict() | most))
    else:
        _print_plan(found)
        if limit is not None:
            ends = "; the model's positions end there" if command.max_context and limit.by_model else ""
            print(f"largest {'context' if command.max_context else 'batch'} that fits: {limit.largest:,}{ends}")
        for line in flags:
            print(line)
    return 0 if found.spans else EXIT_CODES["infeasible"]


def _planned(command: Llm) -> tuple[LlmPlan, Limit | None]:
    """Return the plan, with the largest context or batch where that is asked for."""
    if command.max_context and command.max_batch:
        raise RlinitError("--max-context and --max-batch: ask for one of them, at a given value of the other")
    try:
        reserve = parse_quantity(command.reserve, "bytes")
    except ValueError as problem:
        raise RlinitError(f"--reserve: {problem}") from None
    model = load(
        command.config, context=command.context, batch=command.batch, prompt=command.prompt, output=command.output,
        dtype=command.dtype, kv_dtype=command.kv_dtype,
    )  # fmt: skip
    is_file = Path(command.hw).suffix in (".toml", ".json")
    hardware = Hardware.load(command.hw) if is_file else command.hw
    search = max_context if command.max_context else max_batch if command.max_batch else None
    found = (search or plan)(
        model, hardware, objective=command.objective, granularity=command.granularity, reserve_bytes=reserve,
        first=command.first, contiguous=command.contiguous, stream=command.stream,
    )  # fmt: skip
    return (found, None) if isinstance(found, LlmPlan) else (found.plan, found)


def _flags(command: Llm, found: LlmPlan) -> list[str]:
    """Return lines for other tools."""
    lines = []
    if command.vllm:
        said = to_vllm(found)
        lines.append(" ".join(f"{key}{' ' if key.startswith('-') else '='}{value}" for key, value in said.items()))
    if command.llama_cpp:
        flags = to_llama_cpp(found, device_places(command.llama_cpp, "--llama-cpp", "rtx3090-0=CUDA0"))
        lines.append(" ".join(f"'{flag}'" if flag.startswith("^") else flag for flag in flags))
    return lines


def _print_plan(found: LlmPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    console, work = Console(), found.model.workload
    console.print(
        f"{escape_markup(found.model.name)}: {found.model.num_params / 1e9:.4g} billion parameters, weights "
        f"{found.model.weights}, activations {found.model.activations}, cache "
        f"{found.model.cache or found.model.activations}; context {work.context:,}, "
        f"batch {work.batch:,}, prompt {work.prompt:,}, output {work.output:,}",
        highlight=False,
    )
    if not found.spans:
        console.print(f"[bold]infeasible[/]: {escape_markup(found.message)}", highlight=False)
        return
    table = Table(title=f"{found.settings.objective} on {found.hardware}", title_justify="left")
    for heading in ("device", "units"):
        table.add_column(heading, overflow="fold")
    for heading in ("weights", "cache", "received", "busy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for span in found.spans:
        units = span.units[0] if len(span.units) == 1 else f"{len(span.units)}: {span.units[0]} to {span.units[-1]}"
        table.add_row(
            f"{span.device} from {span.weights_on}" if span.weights_on else span.device,
            escape_markup(units), format_bytes(span.weight_bytes), format_bytes(span.cache_bytes),
            format_seconds(span.transfer_s), format_seconds(span.seconds),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"[bold]{found.status}[/]: {format_seconds(found.value)}, proven >= {format_seconds(found.bound)} by "
        f"{found.bound_source}; "
        f"{found.tokens_per_s:,.4g} tokens a second; proof in {format_seconds(found.solve_s)}",
        highlight=False,
    )
    for name, value in found.others.items():
        said = f"{format_seconds(value)}, {value / found.value:.2f}x" if isinstance(value, float) else value
        console.print(f"  {name}: {said}", highlight=False)
