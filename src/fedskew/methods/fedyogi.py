"""Averaging with Yogi on the server."""

from __future__ import annotations

from fedskew.methods.registry import BelowOne, Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Adaptive
from fedskew.parts.stages import Method


@register("fedyogi", like="fedadam")
def fedyogi(eta: Positive = 0.01, beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3) -> Method:
    """FedYogi (2021)

    Reddi, Charles, Zaheer, Garrett, Rush et al.: Adaptive Federated Optimization. ICLR 2021

    Cite: reddi2021adaptive
    Use when: FedAdam's steps grow where changes are rare
    Equations:
        D = mean(w_k) - w
        m <- beta1 m + (1 - beta1) D
        v <- v - (1 - beta2) D^2 sign(v - D^2)
        w <- w + eta m / (sqrt(v) + tau)
    """
    return method(server=Aggregate(step=Adaptive("yogi", eta, beta1, beta2, tau)))
