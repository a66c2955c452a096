"""Names as pictures, pages and traces can hold them."""

from __future__ import annotations

import html
import re

UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write (section 2.2, production 2): control characters and halves of surrogate pairs."""


def printable(text: str) -> str:
    """Return text with what no file format can write replaced by U+FFFD.

    >>> printable("conv" + chr(0) + "1")
    'conv�1'
    """
    return UNWRITABLE.sub("\ufffd", text)


def markup(text: str) -> str:
    """Return text as it stands in HTML and SVG.

    >>> markup("a<b" + chr(7))
    'a&lt;b�'
    """
    return html.escape(printable(text))
