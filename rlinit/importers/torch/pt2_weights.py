"""Reading ``.pt2`` files with their weights, to run them, without opening a pickle.

`torch.export.save` writes plain weights as raw bytes beside a JSON file that tells their names, sizes and strides.
Only those are read. Tensors that it had to pickle (subclasses, quantised ones) are refused by name.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinit.errors import InvalidGraph
from rlinit.files import MAX_BYTES
from rlinit.importers.torch.pt2_file import load_program

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def load_model(path: str | Path) -> ExportedProgram:
    """Read a saved program with its weights, on the CPU; like `load_program`, it executes and unpickles nothing.

    Guarantees that every parameter, buffer and constant has the shape and type that the program gives it.

    Raises
    ------
    InvalidGraph
        As for `load_program`; also weights that are missing, pickled, compressed, or that do not fit the program.
    BackendUnavailable
        torch is not installed.
    """
    program = load_program(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {_inner(entry.filename): entry for entry in archive.infolist()}
            if sum(entry.compress_size for entry in entries.values()) > Path(path).stat().st_size:
                raise InvalidGraph(f"{path}: its members overlap; expected an archive as torch.export.save writes it")
            _check_byte_order(archive, entries, path)
            for kind, held in (("weights", program.state_dict), ("constants", program.constants)):
                _fill(held, _config(archive, entries, kind, path), archive, entries, kind, path)
    except InvalidGraph:
        raise
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as problem:  # a damaged or locked member
        raise InvalidGraph(f"cannot read the weights in {path}: {problem}") from problem
    return program


def _inner(name: str) -> str:
    """Return a name inside the archive's only folder."""
    return name.partition("/")[2]


def _check_byte_order(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], path: str | Path) -> None:
    found = _bytes(archive, entries, "byteorder", path, 16).decode("ascii", "replace")
    if found != sys.byteorder:
        raise InvalidGraph(f"{path}: the weights are {found!r} endian; this machine is {sys.byteorder!r} endian")


def _config(
    archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], kind: str, path: str | Path
) -> dict[str, Any]:
    """Return name -> description of all weights or constants."""
    names = [name for name in entries if name.startswith(f"data/{kind}/") and name.endswith(f"_{kind}_config.json")]
    if len(names) != 1:
        raise InvalidGraph(f"{path} describes its {kind} {len(names)} times; expected once, as torch.export.save does")
    try:
        data = json.loads(_bytes(archive, entries, names[0], path, MAX_BYTES))
        config = data["config"]
        if not isinstance(config, dict):
            raise TypeError(f"config is {type(config).__name__}")
        return config
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, InvalidGraph):
            raise
        raise InvalidGraph(f"{path}: cannot make sense of {names[0]}: {problem}") from None


def _fill(
    held: dict[str, Any],
    config: dict[str, Any],
    archive: zipfile.ZipFile,
    entries: dict[str, zipfile.ZipInfo],
    kind: str,
    path: str | Path,
) -> None:
    """Replace tensors without storage by what the file holds; weights that share bytes go on sharing them."""
    import torch

    read: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    for name, meta in held.items():
        where = f"{path}: {kind} {name!r}"
        if name not in config:
            raise InvalidGraph(f"{where}: the program reads it, and the file does not hold it")
        try:
            entry = config[name]
            if entry["use_pickle"] is not False:
                raise InvalidGraph(f"{where}: it is pickled, and pickles are not opened; save plain tensors")
            described = entry["tensor_meta"]
            sizes, strides = _ints(described["sizes"]), _ints(described["strides"])
            (offset,) = _ints([described["storage_offset"]])
            record = f"data/{kind}/{entry['path_name']}"
        except (KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, InvalidGraph):
                raise
            raise InvalidGraph(f"{where}: cannot make sense of its description: {problem!r}") from None
        if sizes != list(meta.shape):
            raise InvalidGraph(f"{where}: it has shape {sizes}; the program expects {list(meta.shape)}")
        key = record, meta.dtype
        if key not in read:
            read[key] = _flat(_bytes(archive, entries, record, path, None), meta.dtype, where)
        try:
            value = read[key].as_strided(sizes, strides, offset)
        except RuntimeError as problem:
            raise InvalidGraph(f"{where}: its bytes do not hold shape {sizes}: {problem}") from None
        held[name] = torch.nn.Parameter(value, False) if isinstance(meta, torch.nn.Parameter) else value


def _flat(data: bytes, dtype: torch.dtype, where: str) -> torch.Tensor:
    """Return bytes as a vector."""
    import torch

    if len(data) % dtype.itemsize:
        raise InvalidGraph(f"{where}: {len(data)} bytes are no whole number of {dtype}")
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _ints(values: Any) -> list[int]:
    found = [value["as_int"] for value in values]
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 62:
            raise ValueError(f"{number!r} is no size")
    return found


def _bytes(
    archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str, path: str | Path, limit: int | None
) -> bytes:
    """Return a stored member; compressed ones could be bombs."""
    entry = entries.get(name)
    if entry is None:
        raise InvalidGraph(f"{path} lacks {name!r}; expected what torch.export.save of torch 2.9 and later writes")
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise InvalidGraph(f"{path}: {name!r} is compressed; expected it as torch.export.save writes it")
    if limit is not None and entry.file_size > limit:
        raise InvalidGraph(f"{path}: {name!r} has {entry.file_size:,} bytes; expected <= {limit:,}")
    return archive.read(entry)
