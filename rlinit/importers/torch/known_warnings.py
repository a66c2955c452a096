"""What torch warns of in its own code while it exports: nothing that its caller did, or can change."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

_KNOWN: tuple[tuple[str, type[Warning]], ...] = (
    # torch.export copies its own LeafSpec, a class that torch 2.13 deprecates.
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    # Recurrent layers of torch.nn keep their weights in a list beside the parameters.
    (
        r"The tensor attributes? (self\.([\w.]+\.)?_flat_weights\[\d+\](, )?)+ (was|were) assigned during export",
        UserWarning,
    ),
)


@contextlib.contextmanager
def without_known_warnings() -> Iterator[None]:
    """Pass over the warnings that torch gives about itself; all others are shown."""
    with warnings.catch_warnings():
        for message, category in _KNOWN:
            warnings.filterwarnings("ignore", message, category)
        yield
