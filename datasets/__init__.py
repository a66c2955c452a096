"""Model zoos, readers of published workloads, and graph generators."""

if __name__ != "rlinit.datasets":
    raise ImportError("import this package as rlinit.datasets, not as datasets")
