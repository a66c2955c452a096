"""Small files with one number replaced: none takes much memory or time, and all are refused in one line or read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.properties import mutations

NUMBERS = ("0", "-5", "1.5", "20000000", "3000000000", "10000000000000", "1e9", "1e308", f"1{'0' * 30}")


@pytest.mark.parametrize("kind", mutations.texts(), ids=lambda kind: kind.name)
def test_a_number_of_any_size_is_refused_or_read(kind: mutations.Format, tmp_path: Path) -> None:
    """Every number of a file is replaced by small and huge ones: counts are not believed before they are looked at."""
    text = kind.data.decode()
    for place in re.finditer(r"-?\d+(\.\d+)?(e-?\d+)?", text):
        for number in NUMBERS:
            changed = text[: place.start()] + number + text[place.end() :]
            assert mutations.read(kind, changed.encode(), tmp_path) == ""
