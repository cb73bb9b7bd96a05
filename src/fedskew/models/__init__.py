"""Networks by name, all with one contract: `features`, a linear `head`, and both from one pass."""

from __future__ import annotations

from fedskew.models import (  # noqa: F401  (importing registers them)
    concat,
    low_rank,
    mobilenet,
    projected,
    resnet,
    small,
    text,
)
from fedskew.models.registry import Classifier, adapt, build, construct, known, network

__all__ = ["Classifier", "adapt", "build", "construct", "known", "network"]
