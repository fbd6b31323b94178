"""The zoo's networks that benchmarks run, unless told otherwise."""

from __future__ import annotations

__all__ = ["NETWORKS"]

NETWORKS = (
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "densenet121",
    "ppocr_det",
    "ddddocr_det",
    "minilm",
)
