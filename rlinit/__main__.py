"""``python -m rlinit`` and ``rlinit``: the command line, which Ctrl-C may end from its first moment."""

from __future__ import annotations

import sys

try:
    from rlinit.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
