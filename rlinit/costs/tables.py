"""Measured tables of a device: seconds of products, attention, experts and collectives by their shapes.

`load` reads a folder of tables as NVIDIA's aiconfigurator publishes them, in Parquet or CSV, a kernel a row with its
`latency` in milliseconds. Between measured shapes `rlinit.costs.interpolation` predicts; beyond a factor of two from
the nearest one that counts as extrapolated. What the tables do not have is left to the roofline.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinit.arrays import FloatArray
from rlinit.costs.interpolation import FEWEST, Interpolation
from rlinit.costs.table import InvalidCostTable
from rlinit.devices.presets import kinds
from rlinit.errors import imported
from rlinit.limits import closest
from rlinit.units import BITS

__all__ = [
    "Attention",
    "Collective",
    "Estimate",
    "MeasuredTables",
    "Samples",
    "ShapeTable",
    "Source",
    "by_kind",
    "load",
]

Source = Literal["measured", "interpolated", "extrapolated"]
SOURCES: tuple[Source, ...] = get_args(Source)

Attention = Literal["prompts", "generation"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall"]

_MEASURED_SPREAD = (-0.03, 0.03)
"""Relative errors of a shape that was measured: what repeated rows of one shape differ by."""

_SUFFIXES = (".parquet", ".csv", ".txt")
"""Of files with tables; text is comma-separated."""

_OPTIONAL = {"distribution": "balanced", "kernel_source": ""}
"""Label that a table may lack -> what is taken for it."""

_TILE, _FULLEST, _WEIGHT = 64, 0.6, 3.0
"""Rows of a tile of a product, the logarithm up to which an unfilled one counts, and its weight beside octaves."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bfloat16", "float16", "half"),
    "fp16": ("float16", "bfloat16", "half"),
    "fp8": ("fp8", "fp8_block"),
    "int8": ("int8", "int8_wo"),
    "int4": ("int4_wo", "w4a16_mxfp4", "nvfp4", "w4afp8"),
}
"""Type of numbers -> what tables call it, the closest first: products in both 16-bit types run at one rate."""

Columns = Mapping[str, FloatArray]


class _Kind(NamedTuple):
    """What a table is about.

    Parameters
    ----------
    stem
        Name of its file.
    sizes
        Names of ours -> columns of the table, all numbers.
    labels
        Columns of text that tell tables apart.
    work
        Sizes and bits of the labels' types -> operations and bytes.
    """

    stem: str
    sizes: Mapping[str, str]
    labels: tuple[str, ...]
    work: Callable[[Columns, tuple[float, ...]], tuple[FloatArray, FloatArray]]


def _product_work(at: Columns, bits: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    m, n, k = at["m"], at["n"], at["k"]
    return 2.0 * m * n * k, bits[0] / 8 * (m * k + n * k) + 2.0 * m * n


def _attention_work(at: Columns, bits: tuple[float, ...], tokens: FloatArray | float) -> tuple[FloatArray, FloatArray]:
    """Return operations and bytes of `tokens` at the end of each sequence that look back at `back` tokens at most."""
    batch, back, dim = at["batch"], at["back"], at["head_dim"]
    short = np.minimum(back, tokens)
    pairs = batch * (short * (2 * back - short + 1) / 2 + (tokens - short) * back)
    cached = 2 * batch * np.minimum(at["length"], back + tokens - 1) * at["kv_heads"] * dim
    return 4.0 * at["heads"] * dim * pairs, bits[1] / 8 * cached + bits[0] / 8 * 2 * batch * tokens * at["heads"] * dim


def _expert_work(at: Columns, bits: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    tokens, split = at["tokens"], at["tensor_parallel"] * at["expert_parallel"]
    matrices = 3.0 * at["hidden"] * at["inner"]
    touched = np.minimum(at["experts"], tokens * at["topk"]) / at["expert_parallel"]
    moved = bits[0] / 8 * matrices / at["tensor_parallel"] * touched + 4.0 * tokens * at["hidden"]
    return 2.0 * tokens * at["topk"] * matrices / split, moved


def _collective_work(at: Columns, bits: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    return np.zeros_like(at["bytes"]), at["bytes"] * (1 - 1 / at["devices"])


_ATTENTION = {
    "batch": "batch_size",
    "length": "isl",
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
_EXPERTS = {
    "tokens": "num_tokens",
    "hidden": "hidden_size",
    "inner": "inter_size",
    "topk": "topk",
    "experts": "num_experts",
    "tensor_parallel": "moe_tp_size",
    "expert_parallel": "moe_ep_size",
}
_COLLECTIVE = {"devices": "num_gpus", "bytes": "message_size"}
_CACHED = ("attn_dtype", "kv_cache_dtype")

_KINDS = {
    "products": _Kind("gemm_perf", {"m": "m", "n": "n", "k": "k"}, ("gemm_dtype",), _product_work),
    "prompts": _Kind(
        "context_attention_perf", _ATTENTION, _CACHED, lambda at, bits: _attention_work(at, bits, at["length"])
    ),
    "generation": _Kind(
        "generation_attention_perf",
        {**_ATTENTION, "length": "step"},
        _CACHED,
        lambda at, bits: _attention_work(at, bits, 1.0),
    ),
    "experts": _Kind("moe_perf", _EXPERTS, ("moe_dtype", "distribution"), _expert_work),
    "collectives": _Kind("nccl_perf", _COLLECTIVE, ("op_name", "nccl_dtype"), _collective_work),
    "all_reduce": _Kind(
        "custom_allreduce_perf", _COLLECTIVE, ("op_name", "allreduce_dtype", "kernel_source"), _collective_work
    ),
}


class Estimate(NamedTuple):
    """Seconds of q kernels, and how sure they are.

    Parameters
    ----------
    seconds
        (q,) predicted.
    source
        (q,) indices into `SOURCES`.
    spread
        (q, 2) relative errors between which 80% of the measured shapes lie when they are left out.
    """

    seconds: FloatArray
    source: NDArray[np.int8]
    spread: FloatArray


class _Law(NamedTuple):
    """Seconds of work: a floor, operations over a rate, bytes over a bandwidth; both rates are the best measured."""

    floor_s: float
    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, flops: FloatArray, moved: FloatArray, seconds: FloatArray) -> _Law:
        best = [float(np.quantile(work / seconds, 0.99)) for work in (flops, moved)]
        return cls(float(seconds.min()), *best)

    def seconds(self, flops: FloatArray, moved: FloatArray) -> FloatArray:
        busy = np.divide(flops, self.flops_per_s) if self.flops_per_s > 0 else np.zeros_like(flops)
        return np.asarray(self.floor_s + busy + (moved / self.bytes_per_s if self.bytes_per_s > 0 else 0.0))


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured shapes of one kind and one set of labels.

    Parameters
    ----------
    sizes
        Name -> (p,) sizes.
    flops, moved, seconds
        (p,) operations, bytes, and what was measured.
    """

    sizes: Columns
    flops: FloatArray
    moved: FloatArray
    seconds: FloatArray


class ShapeTable:
    """Samples of one kind and types of numbers, which are interpolated once they are asked for.

    Parameters
    ----------
    kind
        ``products``, ``prompts``, ``generation``, ``experts``, ``collectives`` or ``all_reduce``.
    samples
        What was measured.
    bits
        Of the labels' types of numbers.
    """

    __slots__ = ("_estimates", "_found", "bits", "kind", "law", "samples")

    def __init__(self, kind: str, samples: Samples, bits: tuple[float, ...]) -> None:
        self.kind, self.samples = kind, samples
        self.law = _Law.of(samples.flops, samples.moved, samples.seconds)
        self.bits = bits
        self._found: Interpolation | None = None
        self._estimates: dict[bytes, Estimate] = {}

    def _hints(self, at: Columns) -> FloatArray | None:
        if self.kind != "products":
            return None
        unfilled = np.log2(np.ceil(at["m"] / _TILE) * _TILE / at["m"])
        return _WEIGHT * np.minimum(unfilled, _FULLEST)[:, None]

    def estimate(self, at: Columns) -> Estimate:
        """Return what shapes take; those of a model's layers are asked for again and again."""
        key = np.stack(list(at.values())).tobytes()
        if key not in self._estimates:
            self._estimates[key] = self._estimate(at)
        return self._estimates[key]

    def _estimate(self, at: Columns) -> Estimate:
        own = self.samples
        if self._found is None:
            law = self.law.seconds(own.flops, own.moved)
            self._found = Interpolation(_logarithms(own.sizes), own.seconds, law, self._hints(own.sizes))
        predicted = self._found.predict(
            _logarithms(at), self.law.seconds(*_KINDS[self.kind].work(at, self.bits)), self._hints(at)
        )
        source = np.where(predicted.octaves == 0.0, 0, np.where(predicted.octaves <= 1.0, 1, 2)).astype(np.int8)
        spread = np.where(source[:, None] == 0, _MEASURED_SPREAD, self._found.spread)
        spread = np.where(source[:, None] == 2, spread * np.maximum(predicted.octaves, 1.0)[:, None], spread)
        return Estimate(predicted.seconds, source, np.maximum(spread, -0.95))


def _logarithms(at: Columns) -> FloatArray:
    return np.log2(np.stack(list(at.values()), axis=1))


@dataclass(frozen=True, slots=True)
class MeasuredTables:
    """Tables of one device and one runtime.

    Parameters
    ----------
    device
        Kind of preset that was measured, or a name of the user's.
    name
        The folder's, for messages and plans.
    digest
        SHA-256 over the rows.
    notes
        What was left out or joined on reading.
    """

    device: str
    name: str
    digest: str
    notes: tuple[str, ...]
    _tables: Mapping[tuple[str, ...], ShapeTable] = dataclasses.field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("measured tables are read again rather than copied between processes")

    def tables(self, kind: str) -> dict[tuple[str, ...], ShapeTable]:
        """Return the tables of a kind (``products``, ``prompts``, ``generation``...) by their labels."""
        return {labels[1:]: one for labels, one in self._tables.items() if labels[0] == kind}

    def product(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16") -> Estimate | None:
        """Return what products of (m, k) by (k, n) matrices take; None without a table of the type of numbers.

        Parameters
        ----------
        m, n, k
            Sizes, above 0; arrays are broadcast.
        dtype
            Type of numbers, as of `rlinit.units`.
        """
        return self._estimate("products", {"m": m, "n": n, "k": k}, [_called(dtype)])

    def attention(
        self,
        kind: Attention,
        batch: ArrayLike,
        length: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        *,
        window: ArrayLike | None = None,
        dtype: str = "bf16",
        kv_dtype: str = "",
    ) -> Estimate | None:
        """Return what causal attention takes; None without a table of the types of numbers.

        Of ``prompts`` all of `length` tokens look back, in ``generation`` the last one, each at most `window` far.

        Parameters
        ----------
        kind
            Which of the two.
        batch, length, heads, kv_heads, head_dim
            Sequences, their tokens, heads of queries, and of keys and values, and numbers of a head.
        window
            Tokens that one looks back at; None: all.
        dtype, kv_dtype
            Types of queries, and of keys and values; "": the same.
        """
        back = np.minimum(length, length if window is None else window)
        sizes = {"batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        # Queries in fewer bits are widened where there is no kernel for them.
        types = [*_called(dtype), *_called("bf16")], _called(kv_dtype or dtype)
        return self._estimate(kind, {**sizes, "back": back}, types)

    def experts(
        self,
        tokens: ArrayLike,
        hidden: ArrayLike,
        inner: ArrayLike,
        topk: ArrayLike,
        experts: ArrayLike,
        *,
        tensor_parallel: ArrayLike = 1,
        expert_parallel: ArrayLike = 1,
        dtype: str = "bf16",
        distribution: str = "",
    ) -> Estimate | None:
        """Return what a layer of gated experts takes on the busiest device; None without a table of the type.

        Parameters
        ----------
        tokens, hidden, inner, topk, experts
            Tokens, width of the model and of an expert, experts of a token and in all.
        tensor_parallel, expert_parallel
            Devices that share each expert, and that share the experts.
        dtype
            Type of the weights.
        distribution
            How uneven tokens go to experts, as the table calls it; "": ``balanced``, or the first.
        """
        found = sorted(
            {labels[2] for labels in self._tables if labels[0] == "experts"}, key=lambda one: one != "balanced"
        )
        sizes = {"tokens": tokens, "hidden": hidden, "inner": inner, "topk": topk, "experts": experts}
        split = {"tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel}
        return self._estimate(
            "experts", {**sizes, **split}, [_called(dtype), [distribution] if distribution else found]
        )

    def collective(
        self, kind: Collective, devices: ArrayLike, num_bytes: ArrayLike, *, runtime: Literal["", "graph", "eager"] = ""
    ) -> Estimate | None:
        """Return what a collective over a group of devices takes; None without a table.

        Parameters
        ----------
        kind
            Which.
        devices
            In the group.
        num_bytes
            Of the whole message.
        runtime
            All-reduce of the inference runtime, launched from a ``graph`` or by itself (``eager``); "": NCCL's.
        """
        at = {"devices": devices, "bytes": num_bytes}
        if runtime and kind == "all_reduce":
            names = {
                labels[-1] for labels in self._tables if labels[0] == "all_reduce" and labels[-1].endswith(runtime)
            }
            found = self._estimate("all_reduce", at, [[kind], _called("bf16"), sorted(names)])
            if found is not None:
                return found
        return self._estimate("collectives", at, [[kind], _called("bf16")])

    def _estimate(self, kind: str, sizes: Mapping[str, ArrayLike], labels: Sequence[Sequence[str]]) -> Estimate | None:
        table = self._choose(kind, labels)
        if table is None:
            return None
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, np.float64)) for value in sizes.values()))
        if not all((array > 0).all() for array in arrays):
            raise InvalidCostTable(f"{self.name}: sizes of {kind} are above 0")
        return table.estimate(dict(zip(sizes, arrays, strict=True)))

    def _choose(self, kind: str, labels: Sequence[Sequence[str]]) -> ShapeTable | None:
        """Return the table of the first labels that there is one for."""
        for first in labels[0]:
            for rest in labels[1] if len(labels) > 1 else [""]:
                for last in labels[2] if len(labels) > 2 else [""]:
                    table = self._tables.get((kind, *(one for one in (first, rest, last) if one)))
                    if table is not None:
                        return table
        return None


def _called(dtype: str) -> tuple[str, ...]:
    return _NAMES.get(dtype, (dtype,))


# -- files -----------------------------------------------------------------------------------------------------


def load(folder: str | Path, *, device: str = "") -> MeasuredTables:
    """Read measured tables.

    Parameters
    ----------
    folder
        Holds ``gemm_perf``, ``context_attention_perf``, ``generation_attention_perf``, ``moe_perf``, ``nccl_perf`` or
        ``custom_allreduce_perf`` as ``.parquet``, ``.csv`` or ``.txt``, or folders of runtimes that do, of which the
        newest is read. Collectives may stand in the folder above.
    device
        Kind of device (a preset's, "h100") that was measured; "": by the column ``device`` or the folder's name.

    Raises
    ------
    InvalidCostTable
        No tables, a missing column, sizes or latencies that are no numbers above 0, latencies that are not in
        milliseconds, or a device that is not known.
    BackendUnavailable
        Parquet without pyarrow.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidCostTable(f"{root}: expected a folder of measured tables")
    notes: list[str] = []
    chosen, places = _places(root, notes)
    files = {
        name: path
        for name, kind in _KINDS.items()
        for place in reversed(places)
        for path in sorted(place.glob(f"{kind.stem}.*"))
        if path.suffix in _SUFFIXES
    }
    if not files:
        expected = ", ".join(kind.stem for kind in _KINDS.values())
        raise InvalidCostTable(f"{root}: no measured tables; expected {expected} as {', '.join(_SUFFIXES)}")
    tables: dict[tuple[str, ...], ShapeTable] = {}
    digest, devices = hashlib.sha256(), set[str]()
    for name, path in files.items():
        columns = _read(path)
        devices.update(map(str, columns.get("device", ())))
        for labels, samples, bits in _samples(name, columns, path, notes):
            tables[name, *labels] = ShapeTable(name, samples, bits)
            for array in (*samples.sizes.values(), samples.seconds):
                digest.update(np.ascontiguousarray(array).tobytes())
    kind = device or _device_kind(sorted(devices), places, root)
    _check_units(tables, kind, root)
    return MeasuredTables(kind, f"{kind} {chosen.name}", digest.hexdigest(), tuple(notes), tables)


def _places(root: Path, notes: list[str]) -> tuple[Path, list[Path]]:
    """Return the folder of the runtime, and the folders to look in, the nearest first."""

    def has_tables(place: Path) -> bool:
        stems = {kind.stem for name, kind in _KINDS.items() if name != "collectives"}
        return any(path.stem in stems for path in place.iterdir() if path.suffix in _SUFFIXES)

    runtimes = [place for place in root.iterdir() if place.is_dir() and has_tables(place)]
    if has_tables(root) or not runtimes:
        return root, [root, root.parent]
    newest = max(runtimes, key=lambda place: [int(part) for part in re.findall(r"\d+", place.name)])
    if len(runtimes) > 1:
        notes.append(f"of {len(runtimes)} runtimes {newest.name} is read; name another's folder for that")
    return newest, [newest, root]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Return a table's columns: numbers where all are, else text."""
    if path.suffix != ".parquet":
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                header, *rows = csv.reader(file)
        except (OSError, UnicodeDecodeError, csv.Error, ValueError) as problem:
            raise InvalidCostTable(f"cannot read {path}: {problem}") from problem
        if any(len(row) != len(header) for row in rows):
            line = next(at for at, row in enumerate(rows, 2) if len(row) != len(header))
            raise InvalidCostTable(f"{path}, line {line}: expected {len(header)} cells")
        return {name: np.array([row[at] for row in rows]) for at, name in enumerate(header)}
    parquet = imported("pyarrow.parquet", "reading Parquet tables", "rlinit[tables]")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as problem:
        raise InvalidCostTable(f"cannot read {path}: {problem}") from problem
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _samples(
    name: str, columns: Mapping[str, NDArray[Any]], path: Path, notes: list[str]
) -> list[tuple[tuple[str, ...], Samples, tuple[float, ...]]]:
    """Return the samples of each set of labels in a table."""
    kind = _KINDS[name]
    needed = [*kind.sizes.values(), *kind.labels, "latency"]
    missing = [one for one in needed if one not in columns and one not in _OPTIONAL]
    if missing:
        known = closest(missing[0], list(columns))
        raise InvalidCostTable(f"{path}: column {missing[0]!r} is missing{known}; expected {', '.join(needed)}")
    sizes = {ours: _numbers(columns, theirs, path) for ours, theirs in kind.sizes.items()}
    seconds = _numbers(columns, "latency", path) * 1e-3
    if "length" in sizes:
        if name == "generation":
            sizes["length"] = sizes["length"] + 1.0  # `step` is the tokens before
        window = (
            _numbers(columns, "window_size", path, least=0.0) if "window_size" in columns else np.zeros(len(seconds))
        )
        sizes["back"] = np.where(window > 0, np.minimum(window, sizes["length"]), sizes["length"])
    texts = [columns.get(label, np.full(len(seconds), _OPTIONAL.get(label, ""))).astype(str) for label in kind.labels]
    kernels = columns.get("kernel_source", np.zeros(len(seconds))).astype(str)
    found: list[tuple[tuple[str, ...], Samples, tuple[float, ...]]] = []
    repeated = few = 0
    for labels in sorted(set(zip(*(text.tolist() for text in texts), strict=True))):
        here = np.logical_and.reduce([text == label for text, label in zip(texts, labels, strict=True)])
        if name in ("collectives", "all_reduce"):
            bits: tuple[float, ...] = (8.0,)
            part = {**sizes, "bytes": sizes["bytes"] * _bits(labels[1]) / 8}  # messages are counted in numbers
        else:
            bits, part = tuple(_bits(label) for label in labels[:2]), sizes
        shapes, best, again = _unique(np.stack([size[here] for size in part.values()], 1), kernels[here], seconds[here])
        repeated += again
        if len(best) < FEWEST:
            few += len(best)
            continue
        at = dict(zip(part, shapes.T, strict=True))
        found.append((labels, Samples(at, *kind.work(at, bits), best), bits))
    if repeated:
        notes.append(
            f"{path.name}: {repeated:,} rows repeat a shape; the median of its kernel counts, of kernels the fastest"
        )
    if few:
        notes.append(f"{path.name}: {few} rows are left out, fewer than {FEWEST} of a kind")
    return found


def type_of(label: str) -> str:
    """Return our name of a type of numbers from a table's; "" for others."""
    return next((dtype for dtype, texts in _NAMES.items() if label in texts), "")


def _bits(label: str) -> float:
    """Return the bits of a type of numbers as tables call it; 16 for others."""
    return float(BITS.get(type_of(label), 16))


def _numbers(columns: Mapping[str, NDArray[Any]], name: str, path: Path, least: float | None = None) -> FloatArray:
    """Return a column as numbers above 0, or at least `least`."""
    try:
        values = columns[name].astype(np.float64)
    except ValueError:
        raise InvalidCostTable(f"{path}: column {name!r} holds text; expected numbers") from None
    if name == "step":
        least = 0.0
    wrong = ~np.isfinite(values) | ((values < least) if least is not None else (values <= 0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        expected = "a number above 0" if least is None else f"a number >= {least:g}"
        raise InvalidCostTable(f"{path}, row {row + 1}: {name} is {values[row]:g}; expected {expected}")
    return np.asarray(values)


def _unique(shapes: FloatArray, kernels: NDArray[np.str_], seconds: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    """Return different shapes, their seconds, and how many rows repeat one.

    Of rows of one shape and kernel the median counts, of kernels the fastest, which is what runtimes take.
    """
    _, kernel = np.unique(kernels, return_inverse=True)
    rows = np.column_stack([shapes, kernel, seconds])
    rows = rows[np.lexsort(rows.T[::-1])]
    starts = _starts(rows[:, :-1])
    middle = (starts + np.append(starts[1:], len(rows)) - 1) // 2
    rows = rows[middle]
    starts = _starts(rows[:, :-2])
    return rows[starts, :-2], np.minimum.reduceat(rows[:, -1], starts), len(shapes) - len(starts)


def _starts(rows: FloatArray) -> NDArray[np.intp]:
    """Return where sorted rows differ from the one before."""
    return np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))


def _device_kind(devices: Sequence[str], places: Sequence[Path], root: Path) -> str:
    """Return the kind of preset that a column or the folders name."""
    if len(devices) > 1:
        raise InvalidCostTable(f"{root}: tables of {', '.join(devices)}; expected those of one device a folder")
    for text in (*devices, *(place.name for place in places)):
        parts = {kind: "[^a-z0-9]*".join(re.sub(r"[^a-z0-9]", "", kind)) for kind in kinds()}
        found = [kind for kind, part in parts.items() if re.search(part + r"(?!\d)", text.lower())]
        if found:
            return max(found, key=len)
    said = f"the device {devices[0]!r}" if devices else "no device that is known"
    raise InvalidCostTable(f"{root}: {said}; name its kind, as in load(folder, device='h100') or --costs h100=FOLDER")


def _check_units(tables: Mapping[tuple[str, ...], ShapeTable], kind: str, root: Path) -> None:
    """Refuse latencies that no such device could have, which are in another unit then."""
    rates = kinds().get(kind, {}).get("flops_per_s")
    for (name, *_), table in tables.items():
        if name != "products" or rates is None:
            continue
        best, most = table.law.flops_per_s, max(rates.values())
        if not most / 300 <= best <= 2 * most:
            raise InvalidCostTable(
                f"{root}: products reach {best / 1e12:.3g} TFLOPS where {kind} has {most / 1e12:.4g}; "
                "expected latencies in milliseconds"
            )


def by_kind(costs: Any) -> dict[str, MeasuredTables]:
    """Return tables by kind of device: from one folder or `MeasuredTables`, several, or a mapping from kinds.

    Raises
    ------
    InvalidCostTable
        What is no folder and no tables, or two tables of one kind of device; otherwise as for `load`.
    """
    if costs is None:
        return {}
    named = costs.items() if isinstance(costs, Mapping) else [("", one) for one in _listed(costs)]
    found: dict[str, MeasuredTables] = {}
    for kind, one in named:
        if not isinstance(one, (str, Path, MeasuredTables)):
            raise InvalidCostTable(f"costs: expected folders or measured tables, got {one!r:.60}")
        tables = one if isinstance(one, MeasuredTables) else load(one, device=kind)
        if (kind or tables.device) in found:
            raise InvalidCostTable(f"costs: two tables of {kind or tables.device}; expected one a kind of device")
        found[kind or tables.device] = tables
    return found


def _listed(costs: Any) -> list[Any]:
    return list(costs) if isinstance(costs, (list, tuple)) else [costs]
