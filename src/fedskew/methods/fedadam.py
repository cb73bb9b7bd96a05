"""Averaging with Adam on the server."""

from __future__ import annotations

from fedskew.methods.registry import BelowOne, Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Adaptive
from fedskew.parts.stages import Method


@register("fedadam")
def fedadam(eta: Positive = 0.01, beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3) -> Method:
    """FedAdam (2021)

    Reddi, Charles, Zaheer, Garrett, Rush et al.: Adaptive Federated Optimization. ICLR 2021

    Cite: reddi2021adaptive
    Use when: parameters move at very different rates
    Equations:
        D = mean(w_k) - w
        m <- beta1 m + (1 - beta1) D
        v <- beta2 v + (1 - beta2) D^2
        w <- w + eta m / (sqrt(v) + tau)
    Symbols:
        eta: learning rate of the server
        beta1: how long the first moment remembers
        beta2: how long the second one does
        tau: adaptivity; the larger, the more alike the steps of all parameters
        m, v: moments of the mean change, for each parameter; m starts at 0, v at tau^2
    Defaults: beta1 0.9, beta2 0.99, tau 0.001: the paper's, for all its tasks; eta 0.01: its best for CIFAR-10, from
        memory, out of a grid
    Deviations:
        The paper's pseudocode averages plainly, its experiments by samples; here by samples, as in fedavg.
        Moments are of trained parameters only; batch-norm statistics are averaged plainly.
        D69: no bias correction, as in the paper; some codes divide m and v as Adam does.
    Cost: none on clients; two model-sized moments on the server
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(server=Aggregate(step=Adaptive("adam", eta, beta1, beta2, tau)))
