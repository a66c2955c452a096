#!/usr/bin/env python3
"""Check a plan, and the proof of its bound, with nothing but the standard library: shares no code with rlinit.

    python tools/check.py plan.json graph.json hardware.json [certificate.json]

All rules are in one file, ``rlinit/certificates/check.py`` of the same checkout, which is run by its path: nothing of
rlinit is imported. Copied elsewhere, that file is enough by itself, with the same arguments.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parent.parent / "rlinit/certificates/check.py"), run_name="__main__")
