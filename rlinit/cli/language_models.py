"""``rlinit llm`` and ``rlinit serve``: splits of a language model over devices, and layouts that serve most."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rlinit.cli import EXIT_CODES
from rlinit.cli.inputs import check_targets, device_places, measured_folders
from rlinit.cli.output import escape_markup, print_table
from rlinit.costs.tables import by_kind
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.llm import (
    Limit,
    LlmPlan,
    ServingPlan,
    Span,
    load,
    max_batch,
    max_context,
    plan,
    serve,
    to_llama_cpp,
    to_vllm,
)
from rlinit.llm.weights.mixtures import MIXTURES
from rlinit.plan import Plan
from rlinit.stages.training.rules import Recompute
from rlinit.units import BITS, format_bytes, format_seconds, parse_quantity

_DTYPES = (
    f"Of weights and activations: {', '.join(BITS)} (int4 is 4.0 bits a weight, without scales), a type of llama.cpp "
    f"for weights ({', '.join(MIXTURES)}), or WEIGHTS/ACTIVATIONS (q4_k_m/bf16); by default what quantization_config "
    "says, else bf16. A GGUF file keeps its own."
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Llm:
    """Split a language model over devices, layer by layer.

    The split is proven to be the best; what simple rules would give is printed beside it.
    """

    config: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG", help="A config.json, or a .gguf file.")
    ]
    hw: Annotated[str, tyro.conf.arg(aliases=("--hardware",))]
    """Devices joined by name (2x3090+cpu, 8x8xa100-80g, m3-max/rtx4090+cpu/10gbe), or a hardware file."""
    objective: Literal["decode", "prefill", "request", "pipeline", "throughput", "requests"] = "decode"
    """Seconds per output token, to the first token, of a request, of a pipeline's slowest stage;
    or a second: tokens of decoding, requests of machines that read prompts and others that make answers."""
    max_latency_s: float | None = None
    """With --objective throughput or requests: most seconds of a pass, which makes a token of each sequence."""
    time_limit_s: float | None = None
    """With --objective throughput or requests: seconds of the search; by default 10."""
    requests: tuple[str, ...] = ()
    """With --objective requests: PROMPT:ANSWER:SHARE of each sort, in tokens; by default all are --prompt:--output."""
    context: int | None = None
    """Tokens that the cache has room for; by default prompt and output."""
    batch: int = 1
    """Sequences worked on at once."""
    prompt: int | None = None
    """Tokens given; by default 512, or what the context leaves."""
    output: int | None = None
    """Tokens made; by default 128."""
    dtype: Annotated[str | None, tyro.conf.arg(help=_DTYPES)] = None
    kv_dtype: str | None = None
    """Of the numbers in the cache, such as fp8 or int8; by default that of the activations."""
    granularity: Literal["layer", "part"] = "layer"
    """Whole layers, or attention and feed-forward part of each by themselves."""
    contiguous: bool = True
    """One span a device; without it each part may be on any, such as experts on the host under attention on a GPU."""
    stream: bool = False
    """With --no-contiguous: devices may read weights from the memory of a host (cpu) or a disk (nvme) in every pass."""
    reserve: str | None = None
    """Memory of each device that stays free, such as 1GiB; by default what the hardware reserves (1 GB of a GPU)."""
    costs: tuple[str, ...] = ()
    """Folders of measured tables of devices (rlinit.costs.tables), as FOLDER or KIND=FOLDER."""
    runtime: Literal["llama.cpp", "vllm", "none"] | None = None
    """Whose compute buffers are counted beside it: llama.cpp (default), vllm (with --vllm), or none."""
    micro_batch: int | None = None
    """Tokens that the runtime computes at once: by default 512 for llama.cpp (-ub), 2048 for vLLM."""
    flash_attention: bool = True
    """Without it llama.cpp's buffers hold the scores of all heads."""
    first: tuple[str, ...] = ()
    """Devices that come first where they are used; llama.cpp wants cpu."""
    replicas: int | Literal["auto", "mixed"] | None = None
    """Stages of several devices: copies of every stage that share its micro-batches, auto, or mixed: on unlike ones."""
    tensor_parallel: int | Literal["auto"] | None = None
    """Devices that share the work of every layer, in every stage, or auto: in each stage as many as pay."""
    training: Literal["1f1b", "gpipe"] | None = None
    """Train by this schedule; a micro-batch is --batch sequences of --context tokens."""
    microbatches: int | None = None
    """With --replicas, --tensor-parallel or --training: micro-batches of a batch, or batches under way at once."""
    recompute: Recompute = "none"
    """With --training: layers whose forward runs again before the backward, to keep less: none, auto or all."""
    uniform: bool = False
    """One number of replicas and one tensor degree for all stages, as many runtimes need it."""
    zero: Literal[0, 1, 2, 3] = 0
    """With --training, what replicas share out: 1 states of the optimiser, 2 gradients too, 3 parameters too."""
    max_context: bool = False
    """Find the longest context that fits, and plan for it."""
    max_batch: bool = False
    """Find the largest batch that fits, and plan for it."""
    vllm: bool = False
    """Print what vLLM is to be told."""
    llama_cpp: tuple[str, ...] = ()
    """Print llama.cpp's flags, with its names of the devices as NAME=DEVICE, such as rtx3090-0=CUDA0 cpu=CPU."""
    threads: int | None = None
    """With --llama-cpp: threads that the host computes with (-t)."""
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
    if isinstance(found, ServingPlan):
        return _show_layout(found, command.json, command.out, command.llama_cpp, command.threads)
    if command.out is not None:
        found.save(command.out)
    if isinstance(found, Plan):
        print(json.dumps(found.to_dict(), indent=1) if command.json else found)
        return EXIT_CODES.get(found.status, 0)
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


def _planned(command: Llm) -> tuple[LlmPlan | Plan | ServingPlan, Limit | None]:
    """Return the plan, with the largest context or batch where that is asked for."""
    if command.max_context and command.max_batch:
        raise RlinitError("--max-context and --max-batch: ask for one of them, at a given value of the other")
    try:
        reserve = None if command.reserve is None else parse_quantity(command.reserve, "bytes")
    except ValueError as problem:
        raise RlinitError(f"--reserve: {problem}") from None
    model = load(
        command.config, context=command.context, batch=command.batch, prompt=command.prompt, output=command.output,
        dtype=command.dtype, kv_dtype=command.kv_dtype,
    )  # fmt: skip
    if command.costs:
        model = replace(model, costs=by_kind(measured_folders(command.costs)))
    is_file = Path(command.hw).suffix in (".toml", ".json")
    hardware = Hardware.load(command.hw) if is_file else command.hw
    settings: dict[str, Any] = {
        "objective": command.objective, "granularity": command.granularity, "reserve_bytes": reserve,
        "first": command.first, "contiguous": command.contiguous, "stream": command.stream,
        "runtime": command.runtime or ("vllm" if command.vllm else "llama.cpp"), "micro_batch": command.micro_batch,
        "flash_attention": command.flash_attention,
    }  # fmt: skip
    names = ("replicas", "tensor_parallel", "training", "microbatches", "recompute", "uniform", "zero")
    groups = {name: getattr(command, name) for name in names}
    if command.max_context or command.max_batch:
        if groups != {name: getattr(Llm, name) for name in names}:
            raise RlinitError("--max-context and --max-batch are for devices with a stage each, not for --replicas")
        most = (max_context if command.max_context else max_batch)(model, hardware, **settings)
        return most.plan, most
    found: LlmPlan | Plan | ServingPlan
    requests = [_request(entry) for entry in command.requests]
    settings |= {"max_latency_s": command.max_latency_s, "time_limit_s": command.time_limit_s}
    found = plan(model, hardware, requests=requests, **settings, **groups)
    return found, None


def _request(entry: str) -> tuple[int, int, float]:
    """Return tokens of the prompt and of the answer, and the share of such requests."""
    try:
        prompt, output, share = entry.split(":")
        return int(prompt), int(output), float(share)
    except ValueError:
        raise RlinitError(f"--requests {entry!r}: expected PROMPT:ANSWER:SHARE, such as 512:128:0.7") from None


def _flags(command: Llm, found: LlmPlan) -> list[str]:
    """Return lines for other tools."""
    lines = []
    if command.vllm:
        said = to_vllm(found)
        lines.append(" ".join(f"{key}{' ' if key.startswith('-') else '='}{value}" for key, value in said.items()))
    if command.llama_cpp:
        flags = to_llama_cpp(
            found, device_places(command.llama_cpp, "--llama-cpp", "rtx3090-0=CUDA0"), threads=command.threads
        )
        lines.append(_line(flags))
    return lines


def _line(flags: list[str]) -> str:
    return " ".join(f"'{flag}'" if flag.startswith("^") else flag for flag in flags)


def _named(units: list[str]) -> str:
    """Return units in few words.

    >>> _named(["embedding", "layer0", "layer1", "layer4", "head"])
    'embedding, layers 0-1, 4, head'
    >>> _named(["layer7.attention"])
    'attention 7'
    """
    kinds: dict[str, list[int]] = {}
    for unit in units:
        layer, _, part = unit.partition(".")
        whole = not layer.startswith("layer")
        kinds.setdefault(unit if whole else part or "layers", []).append(0 if whole else int(layer[5:]))
    said = []
    for kind, layers in kinds.items():
        starts = [at for at in layers if at - 1 not in layers]
        ends = [at for at in layers if at + 1 not in layers]
        runs = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
        said.append(kind if kind in ("embedding", "head") else f"{kind} {runs}")
    return ", ".join(said)


def _memory_table(found: LlmPlan) -> Table:
    """Return what each device's memory holds."""
    from rich.table import Table

    table = Table("device", title="memory", title_justify="left")
    for heading in ("all", "weights", "cache", "buffers", "reserve", "free"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found.memory:
        held = (one.memory_bytes, one.weight_bytes, one.cache_bytes, one.buffer_bytes, one.reserve_bytes)
        table.add_row(one.device, *(format_bytes(count) for count in (*held, one.free_bytes)))
    return table


def _print_plan(found: LlmPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    console, model, work = Console(), found.model, found.model.workload
    console.print(
        f"{escape_markup(model.name)}: {model.num_params / 1e9:.4g} billion parameters, weights {model.weights} "
        f"({model.bits_per_weight:.3g} bits each), activations {model.activations}, cache "
        f"{model.cache or model.activations}; context {work.context:,}, "
        f"batch {work.batch:,}, prompt {work.prompt:,}, output {work.output:,}",
        highlight=False,
    )
    for note in model.notes:
        console.print(f"note: {escape_markup(note)}", highlight=False)
    if not found.spans:
        console.print(f"[bold]infeasible[/]: {escape_markup(found.message)}", highlight=False)
        return
    table = Table(title=f"{found.settings.objective} on {found.hardware}", title_justify="left")
    table.add_column("device", overflow="fold")
    table.add_column("units", overflow="fold")
    for heading in ("spans", "received", "busy"):
        table.add_column(heading, justify="right", no_wrap=True)
    places: dict[str, list[Span]] = {}
    for span in found.spans:
        places.setdefault(f"{span.device} from {span.weights_on}" if span.weights_on else span.device, []).append(span)
    for place, spans in places.items():
        received, busy = (math.fsum(getattr(one, what) for one in spans) for what in ("transfer_s", "seconds"))
        units = _named([unit for one in spans for unit in one.units])
        table.add_row(place, escape_markup(units), str(len(spans)), format_seconds(received), format_seconds(busy))
    console.print(table)
    console.print(_memory_table(found))
    console.print(
        f"[bold]{found.status}[/]: {format_seconds(found.value)}, proven >= {format_seconds(found.bound)} by "
        f"{found.bound_source}; "
        f"{found.tokens_per_s:,.4g} tokens a second; proof in {format_seconds(found.solve_s)}",
        highlight=False,
    )
    rests = ", ".join(f"{share:.0%} {source}" for source, share in found.costs.items())
    least, most = (format_seconds(one) for one in found.interval)
    console.print(f"costs: {rests}; 80% of predictions this sure lie between {least} and {most}", highlight=False)
    alike: dict[str, list[str]] = {}
    for name, value in found.baselines.items():
        said = value if isinstance(value, str) else f"{format_seconds(value)}, {value / found.value:.2f}x"
        if isinstance(value, float) and found.value < value and not found.is_surely_below(value):
            said += ", within the errors of the costs"
        alike.setdefault(said, []).append(name)
    for said, names in alike.items():
        console.print(f"  {', '.join(names)}: {said}", highlight=False)


@dataclass(frozen=True)
class Serve:
    """Lay a model out on unlike machines, to serve most tokens."""

    rates: Annotated[
        Path,
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="RATES", help="JSON: layers, devices with tokens_per_s_by_layers_held, and links with tokens_per_s."
        ),
    ]
    partial: bool = False
    """Let requests enter devices inside their spans, too."""
    time_limit_s: float = 10.0
    """Seconds of the search."""
    seed: int = 0
    """Of that search."""
    llama_cpp: tuple[str, ...] = ()
    """Print llama.cpp's flags of each pipeline, with its names of the devices as NAME=DEVICE."""
    threads: int | None = None
    """With --llama-cpp: threads that the host computes with (-t)."""
    json: bool = False
    """Print JSON instead of a table."""
    out: Path | None = None
    """Write the layout and its flow here as JSON: what a front end routes requests by."""


def serve_model(command: Serve) -> int:
    """Carry out ``rlinit serve``; return the exit code.

    Raises
    ------
    InvalidConfig
        Rates that cannot be read or make no sense.
    """
    check_targets(command.out)
    layout = serve(command.rates, partial=command.partial, time_limit_s=command.time_limit_s, seed=command.seed)
    return _show_layout(layout, command.json, command.out, command.llama_cpp, command.threads)


def _show_layout(
    layout: ServingPlan, as_json: bool, out: Path | None, llama_cpp: tuple[str, ...], threads: int | None
) -> int:
    """Write and print a layout; return the exit code."""
    pipelines = []
    if layout.spans and (llama_cpp or threads is not None):
        names = device_places(llama_cpp, "--llama-cpp", "rtx3090-0=CUDA0")
        pipelines = layout.to_servers("llama.cpp", names=names, threads=threads)
    if out is not None:
        layout.save(out)
    if as_json:
        print(json.dumps(layout.to_dict() | ({"llama_cpp": pipelines} if pipelines else {})))
    elif not layout.spans:
        print(f"{layout.status.replace('_', ' ')}: {layout.message}")
    else:
        groups: dict[tuple[int, int], list[str]] = {}
        for name, span in layout.spans.items():
            groups.setdefault(span, []).append(name)
        passed = {name: sum(rate for (start, _), rate in layout.flow.items() if start == name) for name in layout.spans}
        cut = layout.prompt_layers
        pools = {start: "" if not cut else "prompts " if start < cut else "answers " for start, _ in groups}
        rows = (
            (
                f"{pools[start]}{start % (cut or end)}-{(end - 1) % (cut or end)}",
                ", ".join(names),
                f"{sum(passed[name] for name in names):,.4g}",
            )
            for (start, end), names in sorted(groups.items())
        )
        print_table(("layers", "devices", "tokens/s"), rows, "layout")
        above = layout.bound / layout.tokens_per_s - 1
        closed = "no layout serves more" if layout.status == "optimal" else f"at most {above:.2%} more is possible"
        print(f"{layout.status}: {layout.tokens_per_s:,.2f} tokens a second; bound {layout.bound:,.2f}, {closed}")
        if layout.passes:
            print(f"{layout.requests_per_s:,.4g} requests a second; bound {layout.bound / layout.passes:,.4g}")
        if layout.paths:
            what = "request" if cut else "token"
            print(f"a {what} takes {format_seconds(layout.latency_s)} along the slowest of {len(layout.paths)} paths")
        for row in pipelines:
            print(f"{row['share']:.1%} of the requests: {_line(row['flags'])}")
        for name, value in layout.baselines.items():
            print(f"  {name}: {f'{value:,.4g} tokens a second' if value else 'does not fit'}")
    return EXIT_CODES.get(layout.status, 0)
