"""What torch says of its own code while it exports: nothing that its caller did, or can change."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO, cast

_KNOWN: tuple[tuple[str, type[Warning]], ...] = (
    # torch.export copies its own LeafSpec, a class that torch 2.13 deprecates.
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    # Recurrent layers of torch.nn keep their weights in a list beside the parameters.
    (
        r"The tensor attributes? (self\.([\w.]+\.)?_flat_weights\[\d+\](, )?)+ (was|were) assigned during export",
        UserWarning,
    ),
)


# Beside the exception, which names the line of the model.
_LOGGED = "Unable to find user code corresponding to"
_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"


class _WithoutPrograms:
    """A stream without the half-made program that torch.export prints where control flow depends on data."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._inside = stream, False

    def write(self, text: str) -> int:
        self._inside = text.lstrip().startswith("def forward(self") or (self._inside and text == "\n")
        return len(text) if self._inside else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_news(record: logging.LogRecord) -> bool:
    return _LOGGED not in str(record.msg)


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Pass over what torch warns of and prints about itself; all else is shown."""
    log = logging.getLogger(_SYMBOLIC_SHAPES)
    log.addFilter(_is_news)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(cast(TextIO, _WithoutPrograms(sys.stderr))):
            for message, category in _KNOWN:
                warnings.filterwarnings("ignore", message, category)
            yield
    finally:
        log.removeFilter(_is_news)
