"""Training of agents."""

import sys

if __name__ != "rlinit.train":
    if sys.argv[0] == "-m":  # before the module that was asked for is found
        sys.exit("error: run `python train/run.py`, or `python -m rlinit.train.run`")
    raise ImportError("import this package as rlinit.train, not as train")
