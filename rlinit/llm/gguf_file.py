"""Parts of a model from a GGUF file: tensors with the bytes that they have in the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from rlinit.errors import BackendUnavailable, InvalidConfig
from rlinit.llm.architecture import Architecture, Part, PartKind
from rlinit.llm.families import LARGEST_COUNT, MOST_LAYERS
from rlinit.llm.weights.tensors import Tensor


def _open(path: str | Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as problem:
        raise BackendUnavailable("reading GGUF files needs the gguf package: pip install rlinit[gguf]") from problem
    try:
        return GGUFReader(path)
    except Exception as problem:  # its parser raises whatever damaged bytes lead it to
        said = " ".join(str(problem).split())
        raise InvalidConfig(f"cannot read {path} as GGUF: {said or type(problem).__name__}") from problem


def read_gguf(path: str | Path) -> Architecture:
    """Return the parts of the model in a GGUF file.

    Operations go by the shapes of its matrices, memory and traffic by the bytes of its tensors, which may be quantised
    each in its own way.

    Raises
    ------
    BackendUnavailable
        The gguf package is missing.
    InvalidConfig
        The file cannot be read, or lacks what a decoder-only model has.
    """
    reader = _open(path)
    fields = {name: _contents(path, name, field) for name, field in reader.fields.items()}
    family = str(fields.get("general.architecture"))
    tensors = [_tensor(str(t.name), [int(n) for n in t.shape], int(t.n_bytes)) for t in reader.tensors]
    layers, hidden = (_whole(fields, f"{family}.{key}", least=1) for key in ("block_count", "embedding_length"))
    grouped = _grouped(tensors)
    embedding = [t for t in tensors if t.name.startswith(("token_embd", "position_embd"))]
    if not any(t.name == "token_embd.weight" for t in embedding):
        raise InvalidConfig(f"{path}: there is no tensor 'token_embd.weight'")
    parts = [Part("embedding", -1, tuple(embedding))]
    for layer in range(layers):
        heads = _whole(fields, f"{family}.attention.head_count", layer, least=1)
        parts.append(_attention(fields, family, layer, grouped.get((layer, "attention"), []), heads, hidden))
        parts.append(Part("dense", layer, tuple(grouped.get((layer, "dense"), []))))
        routed = grouped.get((layer, "experts"))
        if routed:
            parts.append(_experts(fields, family, layer, routed))
    tied = not any(t.name == "output.weight" for t in tensors)
    matrix = "token_embd.weight" if tied else "output.weight"
    head = [t for t in tensors if t.name.startswith("output") or t.name == matrix]
    parts.append(Part("head", -1, tuple(sorted(head, key=lambda t: t.name != matrix))))
    return Architecture(family, hidden, layers, tuple(parts), tied, _positions(fields, family))


def _positions(fields: dict[str, Any], family: str) -> int | None:
    """Return the tokens that positions are made for, scaling of rotary embeddings included; None: not said."""
    if f"{family}.context_length" not in fields:
        return None
    most = _whole(fields, f"{family}.context_length", least=1)
    before = _whole(fields, f"{family}.rope.scaling.original_context_length", other=most, least=1)
    factor = fields.get(f"{family}.rope.scaling.factor", 1.0)
    scaled = isinstance(factor, float) and 1.0 <= factor <= LARGEST_COUNT / before
    return max(most, int(factor * before)) if scaled else most


def _contents(path: str | Path, name: str, field: Any) -> Any:
    try:
        return field.contents()
    except Exception as problem:  # as in `_open`
        raise InvalidConfig(f"{path}: {name} cannot be read: {type(problem).__name__}") from problem


def _whole(fields: dict[str, Any], key: str, layer: int = 0, other: int | None = None, least: int = 0) -> int:
    """Return a field's number, or its number for a layer where it is a list; `other` where there is none."""
    value = fields.get(key, other)
    if isinstance(value, (list, tuple)):
        value = value[layer] if layer < len(value) else None
    most = MOST_LAYERS if key.endswith(".block_count") else LARGEST_COUNT
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        said = "the file does not say" if value is None else f"the file says {value!r} for"
        raise InvalidConfig(f"{said} {key!r}; expected a whole number from {least} to {most}")
    return value


def _tensor(name: str, shape: list[int], num_bytes: int) -> Tensor:
    """Return a tensor; the file says inputs first, and the experts of a matrix or of its biases last."""
    if name.endswith(".bias") or len(shape) < 2:
        return Tensor(name, (prod(shape),), num_bytes=num_bytes)
    return Tensor(name, (shape[1], shape[0]), prod(shape[2:]), num_bytes)


def _grouped(tensors: Sequence[Tensor]) -> dict[tuple[int, PartKind], list[Tensor]]:
    grouped: dict[tuple[int, PartKind], list[Tensor]] = {}
    for tensor in tensors:
        found = re.match(r"blk\.(\d+)\.(.*)", tensor.name)
        if not found:
            continue
        kind: PartKind = "attention" if not found[2].startswith("ffn_") else "dense"
        kind = "experts" if re.match(r"ffn_\w+_exps\.", found[2]) else kind
        grouped.setdefault((int(found[1]), kind), []).append(tensor)
    return grouped


def _experts(fields: dict[str, Any], family: str, layer: int, tensors: Sequence[Tensor]) -> Part:
    count, chosen = (_whole(fields, f"{family}.{key}", other=0) for key in ("expert_count", "expert_used_count"))
    if not 0 < chosen <= count:
        raise InvalidConfig(f"{family}: {chosen} of {count} experts are used; expected at least one of them")
    return Part("experts", layer, tuple(tensors), experts=count, experts_per_token=chosen)


def _attention(
    fields: dict[str, Any], family: str, layer: int, tensors: Sequence[Tensor], heads: int, hidden: int
) -> Part:
    """Return the attention of a layer; the cache is that of its key and value heads, or of a compressed vector."""
    if not tensors:
        raise InvalidConfig(f"{family}: layer {layer} has no tensors")

    def read(key: str, other: int) -> int:
        return _whole(fields, f"{family}.attention.{key}", layer, other)

    key, value = read("key_length", hidden // heads), read("value_length", hidden // heads)
    rank = read("kv_lora_rank", 0)
    window = read("sliding_window", 0) or None
    pattern = fields.get(f"{family}.attention.sliding_window_pattern")
    if isinstance(pattern, (list, tuple)) and layer < len(pattern) and not pattern[layer]:
        window = None
    if window and family in ("gemma2", "gemma3") and pattern is None:  # the pattern is the family's, not in the file
        window = window if (layer % 2 == 0 if family == "gemma2" else (layer + 1) % 6) else None
    if rank:
        rotary = _whole(fields, f"{family}.rope.dimension_count", layer, 64)
        cached, pairs = rank + rotary, (2.0 * heads * (key + value), 2.0 * heads * (2 * rank + rotary))
    else:
        cached, pairs = read("head_count_kv", heads) * (key + value), (2.0 * heads * (key + value),) * 2
    return Part(
        "attention",
        layer,
        tuple(tensors),
        kv_numbers=cached,
        window=window,
        pair_flops=(pairs[0], pairs[1]),
        heads=heads,
    )
