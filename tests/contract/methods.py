"""What the battery runs over: every registered method, and combinations."""

from __future__ import annotations

from fedskew.methods import registry

COMBINATIONS = [
    "fedprox+avgm",
    "fedprox+fedsam+fedexp",
    "scaffold+fedsam",
]

EVERY = [*registry.known(), *COMBINATIONS]

#: weight zero (or one client) is the plain method, bit for bit: expression -> what it must equal
LIMITS = {
    "fedprox(mu=0)": "fedavg",
    "fedavgm(beta=0)": "fedavg",
    "fedsam(rho=0)": "fedavg",
}

#: with a single client
LONELY = {
    "scaffold": "fedavg",
    "fedexp": "fedavg",
}
