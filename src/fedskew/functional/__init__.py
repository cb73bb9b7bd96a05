"""The losses of the papers as plain functions, for any training loop.

`z` are the student's logits [B, C], `zg` the teacher's (None: a uniform teacher), `y` the targets [B],
`counts` the client's samples per class [C]; the observed classes are those with a count, the vacant ones those without.
Each loss is a batch mean, computed in float32 whatever the network's precision; only the student gets a gradient.
"""

from __future__ import annotations

from fedskew.functional.cross_entropy import (
    calibrated_cross_entropy,
    cross_entropy,
    label_smoothing,
    logit_suppression,
    majority_labels,
    margin_cross_entropy,
    prior_cross_entropy,
    prior_log_softmax,
    restricted_cross_entropy,
)
from fedskew.functional.distillation import (
    dkd,
    ekd,
    kd,
    lmd,
    masked_kl,
    ntd,
    prior_distillation,
    vacant_distillation,
)
from fedskew.functional.features import (
    decorrelation,
    manifold,
    model_contrast,
    prototype_contrast,
)
from fedskew.functional.noisy_labels import (
    early_learning,
    entropy,
    generalized_cross_entropy,
    jensen_shannon,
    label_divergence,
    lid,
    linear_ramp,
    prior_divergence,
    sample_losses,
    sharpened_nll,
    small_losses,
    symmetric_cross_entropy,
    tempered,
)
from fedskew.functional.weights import (
    curvature,
    distance,
    proximal,
)

__all__ = [
    "calibrated_cross_entropy",
    "cross_entropy",
    "curvature",
    "decorrelation",
    "distance",
    "dkd",
    "early_learning",
    "ekd",
    "entropy",
    "generalized_cross_entropy",
    "jensen_shannon",
    "kd",
    "label_divergence",
    "label_smoothing",
    "lid",
    "linear_ramp",
    "lmd",
    "logit_suppression",
    "majority_labels",
    "manifold",
    "margin_cross_entropy",
    "masked_kl",
    "model_contrast",
    "ntd",
    "prior_cross_entropy",
    "prior_distillation",
    "prior_divergence",
    "prior_log_softmax",
    "prototype_contrast",
    "proximal",
    "restricted_cross_entropy",
    "sample_losses",
    "sharpened_nll",
    "small_losses",
    "symmetric_cross_entropy",
    "tempered",
    "vacant_distillation",
]
