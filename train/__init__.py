"""Training of agents."""

if __name__ != "rlinit.train":
    raise ImportError("import this package as rlinit.train, not as train")
