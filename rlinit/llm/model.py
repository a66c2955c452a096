"""A language model with its dtype and its lengths: bytes of every part, operations and traffic of every pass."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.costs.sources import PEAK_ERROR
from rlinit.costs.tables import SOURCES, Attention, Estimate, MeasuredTables
from rlinit.devices.efficiency import Efficiency, class_on
from rlinit.errors import InvalidConfig
from rlinit.graph import Graph
from rlinit.hardware import Device
from rlinit.llm.architecture import Architecture, Part
from rlinit.llm.families import architecture_of
from rlinit.llm.gguf_file import read_gguf
from rlinit.llm.weights.formats import format_of
from rlinit.units import BITS, PRECISION, compute_type

Phase = Literal["prefill", "decode"]


_PEAK = Efficiency()

_PRODUCTS = {"embedding": 1, "attention": 4, "dense": 3, "experts": 3, "head": 1}
"""Matrix products (or lookups) of a part: four projections of attention, three of a gated feed-forward part."""

_LENGTHS = 5
"""Lengths, evenly between the first and the last token made, at which measured attention is averaged."""

_PROMPT, _OUTPUT = 512, 128
"""Tokens of a request where nothing is said: a question and a paragraph."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How the model is used.

    Parameters
    ----------
    context
        Tokens of a sequence that the cache has room for.
    batch
        Sequences worked on at once.
    prompt, output
        Tokens of a sequence that are given, and that are made; together at most `context`.

    Raises
    ------
    InvalidConfig
        A length that is no whole number, or a context that is too short.
    """

    context: int
    batch: int
    prompt: int
    output: int

    def __post_init__(self) -> None:
        for what in ("context", "batch", "prompt", "output"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**40:
                raise InvalidConfig(f"{what} is {value!r}; expected a whole number >= 1")
        if self.prompt + self.output > self.context:
            raise InvalidConfig(
                f"a prompt of {self.prompt} and {self.output} more tokens do not fit a context of {self.context}"
            )

    @property
    def decode_steps(self) -> int:
        """Passes that make one token each: prefill makes the first one."""
        return max(1, self.output - 1)


class Timed(NamedTuple):
    """Seconds, and how sure they are.

    Parameters
    ----------
    seconds, least_s, most_s
        The prediction, and between which 80% of such predictions lie.
    source_s
        Seconds by source: ``measured``, ``interpolated``, ``extrapolated`` or ``modelled``.
    """

    seconds: float
    least_s: float
    most_s: float
    source_s: Mapping[str, float]

    @classmethod
    def total(cls, rows: Sequence[tuple[float, Timed]]) -> Timed:
        """Return the sum of some, each so many times; errors are taken to go together."""
        sources: dict[str, float] = {}
        for count, one in rows:
            for name, seconds in one.source_s.items():
                sources[name] = sources.get(name, 0.0) + count * seconds
        return cls(
            math.fsum(count * one.seconds for count, one in rows),
            math.fsum(count * one.least_s for count, one in rows),
            math.fsum(count * one.most_s for count, one in rows),
            sources,
        )


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model as it is to be run.

    Parameters
    ----------
    name
        For tables and files.
    architecture, workload
        Its parts, and how it is used.
    weights
        What the architecture's tensors are kept in: a type of `rlinit.units` or of llama.cpp, the method of a
        quantised checkpoint, or "as in the file".
    activations
        A type of `rlinit.units`.
    cache
        Type of the numbers in the cache; "": that of the activations.
    notes
        What was asked for and what the source says otherwise.
    costs
        Measured tables by kind of device; the roofline times what they do not have.
    """

    name: str
    architecture: Architecture
    workload: Workload
    weights: str = "bf16"
    activations: str = "bf16"
    cache: str = ""
    notes: tuple[str, ...] = ()
    costs: Mapping[str, MeasuredTables] = field(default_factory=dict, compare=False)

    @property
    def compute_dtype(self) -> str:
        """The type of numbers that products are taken in: the wider one of weights and activations.

        Blocks and quantised checkpoints are widened to the activations as they are read.
        """
        return compute_type({PRECISION: (self.weights if self.weights in BITS else None, self.activations)})

    @property
    def num_params(self) -> int:
        """Parameters, a tied matrix once."""
        return self.architecture.num_params

    @property
    def bits_per_weight(self) -> float:
        """Mean bits of a parameter, scales and zeros included."""
        return 8.0 * self.architecture.num_bytes / self.num_params

    def weight_bytes(self, part: Part) -> int:
        """Return the bytes of a part's tensors."""
        return part.stored_bytes

    @property
    def tied_bytes(self) -> int:
        """Bytes that embedding and head share where they are on one device."""
        return self.architecture.tied_bytes

    def kv_bytes(self, part: Part) -> int:
        """Return the bytes of a part's cache: every sequence's, up to the context or the window."""
        kept = self.workload.context if part.window is None else min(self.workload.context, part.window)
        return self.workload.batch * kept * ((part.kv_numbers * BITS[self.cache or self.activations] + 7) // 8)

    def cut_bytes(self, phase: Phase) -> int:
        """Return the bytes that pass a cut between layers: one vector a token."""
        tokens = self.workload.batch * (self.workload.prompt if phase == "prefill" else 1)
        return tokens * ((self.architecture.hidden * BITS[self.activations] + 7) // 8)

    def seconds(self, part: Part, device: Device, phase: Phase) -> float:
        """Return the seconds of a pass over one part; see `timed`."""
        return self.timed(part, device, phase).seconds

    def timed(self, part: Part, device: Device, phase: Phase) -> Timed:
        """Return the seconds of a pass over one part on a device, and how sure they are; of decode its passes' mean.

        What the device's measured tables have is theirs. Else each op takes, by the roofline, the larger of its
        operations over the rate and its bytes over the bandwidth, and a launch; the device's efficiencies say what
        operations and bytes count as, as for graphs. No op takes less than `Device.host_s`, and all are multiplied by
        the `slowdown`.

        Parameters
        ----------
        part, device
            What runs where; the device has rates.
        phase
            Prefill of all prompts, or one token for each sequence.
        """
        rate, bandwidth = float(device.rate(self.compute_dtype) or 0.0), float(device.bytes_per_s or 0.0)
        rows = []
        tables = self.costs.get(device.kind)
        for op_class, count, flops, moved in self.work(part, phase):
            found = None if tables is None else self._measured(tables, part, phase, op_class)
            if found is None:
                if part.experts and "experts" in device.efficiency:  # one kernel for all of them
                    op_class, count = "experts", 1.0
                one = device.efficiency.get(class_on(op_class, device.efficiency), _PEAK)
                launch_s = device.launch_s if one.launch_s is None else one.launch_s
                busy = np.maximum(one.counted_flops(flops / count) / rate, one.counted_bytes(moved / count) / bandwidth)
                depth_s = one.depth_s * self.architecture.hidden
                seconds = count * (float(np.mean(np.maximum(busy, depth_s))) + launch_s)
                error = PEAK_ERROR if one.error is None else one.error
                found = Timed(seconds, seconds / (1 + error), seconds * (1 + error), {"modelled": seconds})
            floor_s = device.host_s * (1.0 if part.experts else count)
            if found.seconds < floor_s:
                found = Timed(floor_s, floor_s, floor_s, {"modelled": floor_s})
            rows.append((device.slowdown, found))
        return Timed.total(rows)

    def _measured(self, tables: MeasuredTables, part: Part, phase: Phase, op_class: str) -> Timed | None:
        """Return what tables say of the ops of a class; None where they do not have all of them."""
        if op_class in ("attention", "generation"):
            return self._measured_attention(tables, part, phase)
        dtype = self.weights if self.weights in ("fp8", "int8", self.activations) else ""
        if op_class != "matmul" or not dtype:
            return None
        tokens = self.workload.batch * (self.workload.prompt if phase == "prefill" and part.kind != "head" else 1)
        hidden, matrices = self.architecture.hidden, [tensor for tensor in part.tensors if tensor.is_matrix]
        if part.kind == "head":
            matrices = matrices[:1]
        if part.experts:
            inner = sum(tensor.size for tensor in matrices) / (3 * hidden * part.experts)
            found = tables.experts(tokens, hidden, inner, part.experts_per_token, part.experts, dtype=dtype)
            return None if found is None else _timed(found, 1.0)
        # Runtimes take products of one input together: queries, keys and values; gate and up.
        joined: dict[object, tuple[int, int]] = {}
        for tensor in matrices:
            outputs, inputs = tensor.shape
            together = tensor.name.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
            key = inputs if together else tensor.name
            joined[key] = (joined.get(key, (0, 0))[0] + outputs, inputs)
        n, k = np.array(list(joined.values())).T
        found = tables.product(tokens, n, k, dtype)
        return None if found is None else _timed(found, float(len(n)))

    def _measured_attention(self, tables: MeasuredTables, part: Part, phase: Phase) -> Timed | None:
        """Return what tables say of attention over a cache of keys and values; None for compressed caches."""
        work = self.workload
        head_dim = part.pair_flops[0] / (4 * part.heads) if part.heads else 0.0
        kv_heads = part.kv_numbers / (2 * head_dim) if head_dim else 0.0
        if kv_heads < 1 or kv_heads % 1 or part.pair_flops[0] != part.pair_flops[1]:
            return None
        at = (part.heads, kv_heads, head_dim)
        if phase == "prefill":
            kind: Attention = "prompts"
            lengths = np.array([float(work.prompt)])
        else:
            kind, lengths = "generation", work.prompt + np.unique(np.linspace(1, work.decode_steps, _LENGTHS).round())
        found = tables.attention(
            kind, work.batch, lengths, *at, window=part.window, dtype=self.activations, kv_dtype=self.cache
        )
        return None if found is None else _timed(found, 1.0)

    def work(self, part: Part, phase: Phase) -> tuple[tuple[str, float, NDArray[np.float64], NDArray[np.float64]], ...]:
        """Return what a part does in the passes of a phase: class of ops, how many, their operations and their bytes.

        Matrix products read weights; attention itself works on pairs of tokens and on the cache. In prefill token t of
        a prompt looks back at t tokens, or at its window, and the head works on the last token of each prompt; in
        decode the cache grows by a token a pass, and there is a number for each. Tensors between ops are left out.

        Parameters
        ----------
        part
            Of the architecture.
        phase
            Prefill of all prompts, or one token for each sequence.
        """
        work, number = self.workload, BITS[self.cache or self.activations] / 8
        if phase == "prefill":
            tokens = work.batch * (1 if part.kind == "head" else work.prompt)
            window = min(work.prompt, part.window or work.prompt)
            pairs = np.array([work.batch * (window * (window + 1) / 2 + (work.prompt - window) * window)])
            cached = np.array([float(tokens)])
        else:
            tokens = work.batch
            lengths = np.arange(work.prompt + 1, work.prompt + 1 + work.decode_steps, dtype=np.float64)
            pairs = cached = work.batch * (lengths if part.window is None else np.minimum(lengths, part.window))
        read = self._read_bytes(part, tokens)
        products = _PRODUCTS[part.kind] * (part.experts * part.touched(tokens) if part.experts else 1.0)
        op_class = "lookup" if part.kind == "embedding" else "matmul"
        rows = [(op_class, products, np.array([2.0 * part.active * tokens]), np.array([read]))]
        if part.kv_numbers:
            per_pair = part.pair_flops[0 if phase == "prefill" else 1]
            attends = "attention" if phase == "prefill" else "generation"
            rows.append((attends, 1.0, per_pair * pairs, part.kv_numbers * number * cached))
        return tuple(rows)

    def streamed_bytes(self, part: Part, phase: Phase) -> float:
        """Return the bytes of weights that a pass reads.

        Parameters
        ----------
        part
            Of the architecture.
        phase
            Which pass.
        """
        work = self.workload
        return self._read_bytes(part, work.batch * (work.prompt if phase == "prefill" else 1))

    def _read_bytes(self, part: Part, tokens: int) -> float:
        """Return the bytes of weights that a pass reads: rows of the embedding, experts that some token is sent to."""
        stored = float(self.weight_bytes(part))
        if part.kind == "embedding":
            return min(stored, stored / part.params * self.architecture.hidden * tokens)
        return stored * part.touched(tokens)

    def units(self, granularity: Literal["layer", "part"] = "layer") -> tuple[tuple[str, tuple[Part, ...]], ...]:
        """Return what is placed as a whole, in order: (name, parts).

        Router and shared experts of a layer belong to its attention where experts may be apart: that is how tools move
        experts.

        Parameters
        ----------
        granularity
            Whole layers, or attention and feed-forward part (of a mixture its experts) of each layer by themselves.
        """
        grouped: dict[str, list[Part]] = {}
        mixtures = {part.layer for part in self.architecture.parts if part.kind == "experts"}
        for part in self.architecture.parts:
            whole = part.name if part.layer < 0 else f"layer{part.layer}"
            if granularity == "part" and part.layer >= 0:
                apart = part.kind == "experts" or (part.kind == "dense" and part.layer not in mixtures)
                whole += ".feed_forward" if apart else ".attention"
            grouped.setdefault(whole, []).append(part)
        return tuple((name, tuple(parts)) for name, parts in grouped.items())

    def to_graph(self, devices: Sequence[Device], phase: Phase = "decode") -> Graph:
        """Return the chain of layers as a graph for `rlinit.schedule`: seconds of one pass on each device.

        A layer's parameters count its cache too. Plan with ``resident="weights"``; devices may be revisited there.

        Parameters
        ----------
        devices
            Those of the hardware, with rates.
        phase
            Which pass.
        """
        units = self.units()
        rows = []
        for name, parts in units:
            held = sum(self.weight_bytes(part) + self.kv_bytes(part) for part in parts)
            times = {device.name: sum(self.seconds(part, device, phase) for part in parts) for device in devices}
            row = {"op": "layer", "param_bytes": held, "out_bytes": self.cut_bytes(phase), "time_s": times}
            rows.append((name, row))
        names = [name for name, _ in units]
        return Graph.build(rows, list(pairwise(names)), name=self.name)

    def with_workload(self, *, context: int | None = None, batch: int | None = None) -> LanguageModel:
        """Return the model with another context or batch and the same request.

        Parameters
        ----------
        context, batch
            None: as it is.
        """
        return replace(
            self,
            workload=replace(
                self.workload, context=context or self.workload.context, batch=batch or self.workload.batch
            ),
        )


def _timed(found: Estimate, count: float) -> Timed:
    """Return so many times the mean of estimates."""
    weight = count / len(found.seconds)
    rows = [
        Timed(s, s / (1 + high), s / (1 + low), {SOURCES[source]: s})
        for s, source, (low, high) in zip(*(one.tolist() for one in found), strict=True)
    ]
    return Timed.total([(weight, one) for one in rows])


def load(
    source: Any,
    *,
    context: int | None = None,
    batch: int = 1,
    prompt: int | None = None,
    output: int | None = None,
    dtype: str | tuple[str, str] | None = None,
    kv_dtype: str | None = None,
    shares: Sequence[float] = (),
    name: str = "",
) -> LanguageModel:
    """Return a language model from its Hugging Face configuration or from a GGUF file.

    Parameters
    ----------
    source
        A ``config.json``, a folder that has one, its contents as a mapping, or a ``.gguf`` file; or a model of
        transformers, on meta or not, or its configuration.
    context
        Tokens that the cache has room for; by default prompt and output.
    batch
        Sequences worked on at once.
    prompt, output
        Tokens given and made; by default 512 and 128, less where positions end before, or a prompt that fills the
        context.
    dtype
        Of weights and activations, or of each: "bf16", ("int4", "fp16"), "int4/fp16", or a type of llama.cpp for
        weights, such as "q4_k_m" or "q8_0/bf16"; "int4" is 4.0 bits a weight without scales. Where int4 or a type of
        llama.cpp is asked for alone, activations are "fp16". By default what ``quantization_config`` says, else
        "bf16". Weights of a GGUF file keep their bytes.
    kv_dtype
        Of the cache, such as "fp8" or "int8"; by default that of the activations.
    shares
        Share of the tokens that is sent to each expert; empty: the same to each.
    name
        By default the file's, or the model type.

    Raises
    ------
    InvalidConfig
        Unreadable files, unknown families or dtypes, sizes or lengths that make no sense, a context that is longer
        than the model's positions.
    BackendUnavailable
        A GGUF file without the gguf package.
    """
    if kv_dtype is not None and kv_dtype not in BITS:
        raise InvalidConfig(f"kv_dtype is {kv_dtype!r}; expected one of {', '.join(BITS)}")
    source = getattr(source, "config", source)
    source = source.to_dict() if hasattr(source, "to_dict") else source
    if not isinstance(source, (str, Path, Mapping)):
        raise InvalidConfig(
            f"expected a config.json, its contents, a model with one, or a .gguf file, got {source!r:.60}"
        )
    if isinstance(source, Mapping):
        config, title, path = source, str(source.get("model_type")), None
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        title = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
        config = {} if path.suffix == ".gguf" else _read_config(path)
    form = format_of(dtype, config)
    if path is not None and path.suffix == ".gguf":
        if shares:
            raise InvalidConfig("shares of experts are for configurations; a GGUF file takes none")
        architecture, form = read_gguf(path), form._replace(weights="as in the file")
    else:
        bare = architecture_of(config, shares)
        tensors = [tensor for part in bare.parts for tensor in part.tensors]
        architecture = bare.stored(form.chooser(tensors, bare.num_layers))
    most = context or architecture.max_context or _PROMPT + _OUTPUT
    made = output if output is not None else min(_OUTPUT, max(1, most // 2))
    given = prompt if prompt is not None else most - made if context is not None else min(_PROMPT, max(1, most - made))
    workload = Workload(given + made if context is None else context, batch, given, made)
    _refuse_beyond_positions(architecture, workload.context)
    notes = (form.note,) if form.note else ()
    return LanguageModel(name or title, architecture, workload, form.weights, form.activations, kv_dtype or "", notes)


def _refuse_beyond_positions(architecture: Architecture, context: int) -> None:
    """Refuse a context that the model has no positions for, and say how they are extended."""
    most = architecture.max_context
    if most is None or context <= most:
        return
    hint = ""
    if architecture.family != "gpt2":  # whose positions are learned one by one
        hint = f', or add "rope_scaling": {{"rope_type": "yarn", "factor": {-(-context // most)}.0}} to its config.json'
    raise InvalidConfig(f"a context of {context:,} is beyond the model's {most:,} positions; ask for {most:,}{hint}")


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidConfig(f"cannot read {path}: {problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise InvalidConfig(f"{path} is not valid JSON: {problem}") from None
    if not isinstance(data, dict):
        raise InvalidConfig(f"{path}: expected an object, the contents of a config.json")
    return data
