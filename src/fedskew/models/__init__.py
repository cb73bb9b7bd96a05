"""Networks by name, all with one promise: `features`, a linear `head`, and both from one pass."""

from __future__ import annotations

from fedskew.models import concat, mobilenet, projected, resnet, small, text  # noqa: F401  (importing registers them)
from fedskew.models.registry import Classifier, adapt, build, construct, known, network

__all__ = ["Classifier", "adapt", "build", "construct", "known", "network"]
