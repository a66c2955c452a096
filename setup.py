"""What is packaged: every folder with an ``__init__.py``; four of the top level as ``rlinit.exact`` and so on.

Their names are other people's on PyPI. The links under rlinit serve editors, type checkers and ``PYTHONPATH``; an
installation does without them.
"""

from setuptools import find_packages, setup

FOLDERS = {"rlinit": "rlinit"} | {f"rlinit.{name}": name for name in ("exact", "datasets", "train", "checkpoints")}

setup(
    package_dir=FOLDERS,
    packages=sorted(set(FOLDERS) | {f"{top}.{name}" for top, at in FOLDERS.items() for name in find_packages(at)}),
)
