"""Reading ``.pt2`` files (saved exported programs) without running anything that is in them.

`torch.export.load` unpickles weights and sample inputs, evaluates size expressions and compiles guards: fine for
one's own files. Here only the program's JSON is read, after every operator name and size expression in it has been
checked; weights are not read at all, their shapes are enough.
"""

from __future__ import annotations

import importlib
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinit.errors import BackendUnavailable, InvalidGraph, first_line
from rlinit.files import MAX_BYTES
from rlinit.importers.torch.export import import_torch
from rlinit.importers.torch.size_expressions import is_size_expression
from rlinit.limits import MAX_NESTING

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_STRUCTURES = re.compile(r'"(transformers\.(?:modeling_outputs|cache_utils|models\.\w+\.modeling_\w+))\.\w+"')
"""Classes of inputs and outputs that transformers makes known to torch when their module is imported."""

_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
_OPERATOR = re.compile(r"torch\.ops(\.\w+){2,3}|_operator\.\w+|math\.\w+|torch\.sym_\w+|torch\._sym_\w+")


def load_program(path: str | Path) -> ExportedProgram:
    """Read a saved program without its weights: parameters are tensors on the ``meta`` device.

    Nothing in the file is executed, unpickled or evaluated. For running the model use `torch.export.load`, and only
    on files you trust.

    Raises
    ------
    InvalidGraph
        A file that cannot be read, is no such archive, or names operators that are not registered.
    BackendUnavailable
        torch is not installed.
    """
    text = _program_text(path)
    import_torch()
    try:
        data = json.loads(text)
        _check(data, str(path), 0)
        return _deserialize(data)
    except (InvalidGraph, BackendUnavailable):
        raise
    except RecursionError:
        raise InvalidGraph(f"{path}: the program is nested more than Python allows") from None
    except Exception as problem:  # torch's reader raises AssertionError, KeyError, SerializeError, TypeError, ...
        raise InvalidGraph(f"{path}: cannot make sense of the program: {first_line(problem)}") from problem


def _program_text(path: str | Path) -> bytes:
    """Return the JSON of the only model in the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            models = [
                entry for entry in archive.infolist() if re.fullmatch(r"(?:[^/]+/)?models/[^/]+\.json", entry.filename)
            ]
            if len(models) != 1:
                raise InvalidGraph(
                    f"{path} holds {len(models)} programs; expected one, as torch.export.save of torch 2.9 and later "
                    "writes"
                )
            if models[0].file_size > MAX_BYTES:
                raise InvalidGraph(f"{path}: the program has {models[0].file_size:,} bytes; expected <= {MAX_BYTES:,}")
            with archive.open(models[0]) as file:
                text = file.read(MAX_BYTES + 1)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as problem:
        if isinstance(problem, InvalidGraph):
            raise
        raise InvalidGraph(f"cannot read {path} as a .pt2 archive: {problem}") from problem
    except Exception as problem:  # zlib.error, lzma.LZMAError: a damaged member
        raise InvalidGraph(f"cannot read {path} as a .pt2 archive: {problem}") from problem
    if len(text) > MAX_BYTES:
        raise InvalidGraph(f"{path}: the program has more than {MAX_BYTES:,} bytes")
    return text


def _check(value: Any, source: str, depth: int) -> None:
    """Refuse operators that are none and expressions that are more than arithmetic, and drop what is not needed.

    Size expressions end in `sympy.sympify`, which evaluates Python; operator names end in `getattr`.
    """
    if depth > MAX_NESTING:
        raise InvalidGraph(f"{source}: the program is nested more than {MAX_NESTING} deep")
    if isinstance(value, list):
        for entry in value:
            _check(entry, source, depth + 1)
    if not isinstance(value, dict):
        return
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and "target" in value:
        kept = metadata.get("nn_module_stack")
        value["metadata"] = {"nn_module_stack": kept} if isinstance(kept, str) else {}
    if "guards_code" in value:
        value["guards_code"] = []
    for key, entry in value.items():
        if key in ("target", "as_operator") and isinstance(entry, str) and "inputs" in value:
            _check_operator(entry, str(value.get("name") or ""), source)
        elif key == "as_operator":
            _check_operator(str(entry), "", source)
        elif key in ("in_spec", "out_spec"):
            _check_structure(str(entry), source)
        elif key == "expr_str":
            if not is_size_expression(entry):
                raise InvalidGraph(f"{source}: {str(entry)[:60]!r} is not an expression of sizes, or too large a one")
        elif key in ("as_custom_obj", "custom_obj") and entry is not None:
            raise InvalidGraph(f"{source}: the program uses a custom object; expected tensors and numbers only")
        else:
            _check(entry, source, depth + 1)


def _check_structure(text: str, source: str) -> None:
    """Refuse structures of inputs and outputs that name modules to import, but import those of transformers' models.

    They are JSON with JSON in its strings, in which any letter may be escaped, at any depth.
    """
    while (plain := _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)) != text:
        text = plain
    for word, what in (("default_factory", "a defaultdict"), ("__enum__", "an enumeration")):
        if word in text:
            raise InvalidGraph(f"{source}: {what} among the inputs or outputs; it names a module to import")
    for name in sorted(set(_STRUCTURES.findall(text))):
        try:
            importlib.import_module(name)
        except ImportError as problem:
            raise BackendUnavailable(f"{source} takes or gives what {name} defines: {problem}") from problem


def _check_operator(name: str, node: str, source: str) -> None:
    import torch

    where = f" of node {node!r}" if node else ""
    if not _OPERATOR.fullmatch(name):
        raise InvalidGraph(f"{source}: {name!r}{where} is not an operator")
    target: Any = None
    if name.startswith("torch.ops."):
        target = torch.ops
        for part in name.split(".")[2:]:
            try:
                target = getattr(target, part)
            except (AttributeError, RuntimeError):
                raise InvalidGraph(
                    f"{source}: operator {name}{where} is not registered; import the package that defines it first"
                ) from None
        if not isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            raise InvalidGraph(f"{source}: {name!r}{where} is not an operator")


def _deserialize(data: dict[str, Any]) -> ExportedProgram:
    """Return the program, with parameters and constants on the meta device."""
    import torch
    from torch._export.serde.schema import ExportedProgram as Schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass

    serialized = _dict_to_dataclass(Schema, data)  # type: ignore[no-untyped-call]
    graph = serialized.graph_module.graph
    state: dict[str, torch.Tensor] = {}
    constants: dict[str, torch.Tensor] = {}
    for spec in serialized.graph_module.signature.input_specs:
        if spec.type not in ("parameter", "buffer", "tensor_constant"):
            continue
        entry = getattr(spec, spec.type)
        fqn = entry.tensor_constant_name if spec.type == "tensor_constant" else getattr(entry, f"{spec.type}_name")
        kept = spec.type == "parameter" or (spec.type == "buffer" and entry.persistent)
        meta = graph.tensor_values[entry.arg.name]
        tensor = _on_meta(meta)
        if spec.type == "parameter":
            tensor = torch.nn.Parameter(tensor, tensor.is_floating_point() and bool(meta.requires_grad))
        (state if kept else constants)[fqn] = tensor
    return ExportedProgramDeserializer().deserialize(serialized, state, constants, None)


def _on_meta(meta: Any) -> Any:
    """Return a tensor without storage of the given serialized type and sizes."""
    import torch
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    sizes = [size.as_int for size in meta.sizes]
    return torch.empty(sizes, dtype=_SERIALIZE_TO_TORCH_DTYPE[meta.dtype], device="meta")
