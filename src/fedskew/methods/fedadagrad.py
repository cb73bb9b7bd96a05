"""Averaging with Adagrad on the server."""

from __future__ import annotations

from fedskew.methods.registry import BelowOne, Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import Adaptive
from fedskew.parts.stages import Method


@register("fedadagrad")
def fedadagrad(eta: Positive = 0.1, beta1: BelowOne = 0.0, tau: Positive = 1e-3) -> Method:
    """FedAdagrad (2021)

    Reddi, Charles, Zaheer, Garrett, Rush et al.: Adaptive Federated Optimization. ICLR 2021

    Cite: reddi2021adaptive
    Use when: some parameters change rarely, as word embeddings do
    Equations:
        D = mean(w_k) - w
        m <- beta1 m + (1 - beta1) D
        v <- v + D^2
        w <- w + eta m / (sqrt(v) + tau)
    Symbols:
        eta: learning rate of the server
        beta1: how long the first moment remembers
        tau: adaptivity; the larger, the more alike the steps of all parameters
        m, v: moments of the mean change, for each parameter; m starts at 0, v at tau^2
    Defaults: beta1 0, tau 0.001: the paper's, for all its tasks; eta 0.1: its best for CIFAR-10, from memory, out of a
        grid
    Deviations:
        The paper's pseudocode averages plainly, its experiments by samples; here by samples, as in fedavg.
        Moments are of trained parameters only; batch-norm statistics are averaged plainly.
    Cost: none on clients; two model-sized moments on the server
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(server=Aggregate(step=Adaptive("adagrad", eta, beta1, 0.0, tau)))
