"""Reading and writing files: JSON checked against the published schemas, outputs written atomically."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinit.errors import RlinitError
from rlinit.limits import closest

if TYPE_CHECKING:
    import fastjsonschema

MAX_BYTES = 1 << 28
"""What is read as text may have this many bytes, some 2 million ops; what grows beyond is taken for a bomb."""


@functools.cache
def _validator(schema: str) -> Callable[[Any], Any]:
    import fastjsonschema

    text = resources.files("rlinit").joinpath("schemas", f"{schema}.schema.json").read_text(encoding="utf-8")
    validate: Callable[[Any], Any] = fastjsonschema.compile(json.loads(text))
    return validate


def check_schema(data: Any, schema: str, error: type[RlinitError], source: str) -> None:
    """Raise `error` where `data` breaks the published schema ("graph", "hardware", "plan"), naming the path in it.

    Parameters
    ----------
    data
        What was parsed from JSON.
    schema
        Name of a published schema: "graph", "hardware" or "plan".
    error
        The class to raise.
    source
        The file or call the data came from, for the message.

    Raises
    ------
    RlinitError
        Of the class `error`: the data break the schema.
    """
    import fastjsonschema

    try:
        _validator(schema)(data)
    except fastjsonschema.JsonSchemaValueException as problem:
        where = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in problem.path[1:]) or "the top level"
        said = _unknown_key(problem) or problem.message.removeprefix(problem.name or "").strip()
        raise error(f"{source}: at {where.lstrip('.')}: {said} (schema {schema}.schema.json)") from None


def _unknown_key(problem: fastjsonschema.JsonSchemaValueException) -> str:
    """Return which key is unknown and which ones there are, where that is the problem; else ""."""
    if problem.rule != "additionalProperties" or not isinstance(problem.value, dict):
        return ""
    known = list(problem.definition.get("properties", {}))
    unknown = [key for key in problem.value if key not in known]
    if not unknown:
        return ""
    return f"unknown key {unknown[0]!r}{closest(str(unknown[0]), known)} (expected {', '.join(known)})"


def read_text(
    path: str | Path, error: type[RlinitError], *, encoding: str = "utf-8", most_bytes: int | None = None
) -> str:
    """Return the text of a file, line ends as they are.

    Parameters
    ----------
    path
        The file.
    error
        The class to raise.
    encoding
        Of the file; ``utf-8-sig`` passes over a mark that spreadsheets write.
    most_bytes
        Larger files are refused; None: any size.

    Raises
    ------
    RlinitError
        Of the class `error`: the file cannot be read, is no such text, or is too large.
    """
    try:
        if most_bytes is not None and Path(path).stat().st_size > most_bytes:
            raise error(f"{path} is larger than {most_bytes:,} bytes")
        return Path(path).read_bytes().decode(encoding)
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"cannot read {path}: {problem}") from problem


def read_json(path: str | Path, schema: str | None, error: type[RlinitError]) -> dict[str, Any]:
    """Return the object in a JSON file after checking it against a schema; `error` says what is wrong and where.

    Parameters
    ----------
    path
        The file, in UTF-8.
    schema
        Name of a published schema: "graph", "hardware" or "plan"; None: what it holds is checked elsewhere.
    error
        The class to raise.

    Raises
    ------
    RlinitError
        Of the class `error`: the file cannot be read, is not JSON (NaN and infinities are not), or breaks the schema.
    """
    text = read_text(path, error)
    try:
        data = parse_json(text)
    except ValueError as problem:
        cause = " (truncated?)" if isinstance(problem, json.JSONDecodeError) else ""
        raise error(f"{path} is not valid JSON{cause}: {problem}") from None
    if schema is not None:
        check_schema(data, schema, error, str(path))
    checked: dict[str, Any] = data
    return checked


def read_array(path: str | Path) -> Any:
    """Return the array in a ``.npy`` file, which holds no pickle.

    Raises
    ------
    RlinitError
        The file cannot be read, or is none.
    """
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise RlinitError(f"cannot read {path} as a .npy file: {problem}") from problem


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says, whose numbers are all in the range of floats.

    Raises
    ------
    ValueError
        It is not JSON, NaN or an infinity is in it, a number has too many digits, a key stands twice in an object, or
        it is nested too deeply.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_int=_within_floats, object_pairs_hook=_with_unique_keys
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number JSON allows")


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} stands twice in an object")
    return made


def _within_floats(text: str) -> int:
    if len(text) > 300:
        raise ValueError(f"{text[:12]}... has {len(text)} digits, too large to compute with")
    return int(text)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees either the old content or the whole new one.

    Parameters
    ----------
    path
        The file to write, in a folder that exists; one that is there is replaced.
    content
        Text, which is encoded as UTF-8, or bytes.
    """
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, data: object) -> None:
    """Write an object as JSON, atomically; NaN and infinities are refused.

    Parameters
    ----------
    path
        The file to write, in a folder that exists; one that is there is replaced.
    data
        What `json` takes.
    """
    write_atomically(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
