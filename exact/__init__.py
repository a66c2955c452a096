"""Exact formulations and bounds for stage partitioning; knows nothing of torch."""

if __name__ != "rlinit.exact":
    raise ImportError("import this package as rlinit.exact, not as exact")
