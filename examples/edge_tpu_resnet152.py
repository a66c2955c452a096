"""The demonstration: ResNet152 over 4, 5 and 6 pipelined Edge TPUs, with proof and pictures.

Run as ``python -m examples.edge_tpu_resnet152 [FOLDER]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlinit.hardware import Hardware
from rlinit.solving.api import schedule

__all__ = ["main"]


def main(folder: Path) -> None:
    """Schedule the model both ways for each number of devices, and write plans and pictures to `folder`."""
    from rlinit.datasets.zoo import imagenet

    folder.mkdir(parents=True, exist_ok=True)
    graph = imagenet.load("resnet152")
    print(f"ResNet152 of keras.applications: {graph.num_ops} layers, {graph.num_edges} tensors between them\n")
    for k in (4, 5, 6):
        for objective in ("memory", "pipeline"):
            plan = schedule(graph, Hardware.edge_tpus(k), objective=objective)
            print(f"--- {objective}, {k} Edge TPUs ---")
            print(plan)
            print()
            plan.save(folder / f"resnet152-{objective}-{k}.json")
            plan.plot(folder / f"resnet152-{objective}-{k}.png")
    print(f"plans and pictures are in {folder}/")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
