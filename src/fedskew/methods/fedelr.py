"""Averaging of clients that hold on to what they predicted early."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.robust import EarlyLearning


@register("fedelr", "elr")
def fedelr(lam: Weight = 3.0, beta: Annotated[float, Field(ge=0, lt=1)] = 0.7) -> Method:
    """FedELR (2020)

    Liu, Niles-Weed, Razavian, Fernandez-Granda: Early-Learning Regularization Prevents Memorization of Noisy Labels.
    NeurIPS 2020

    Cite: liu2020early
    Use when: wrong labels anywhere, and clients return often
    Equations:
        L_k = CE + lam log(1 - <p, t_i>)
        t_i <- beta t_i + (1 - beta) p_i at every step that has sample i
    Symbols:
        lam: weight of the regularization
        beta: how slowly the targets follow the predictions
        t_i: target of sample i, a mean of its predictions, zero at first
    Defaults: lam 3, beta 0.7: the paper's for CIFAR-10
    Deviations:
        D66: ELR at every client, as benchmarks run it; the paper of 2025 called FedELR was not available.
        1 - <p, t> is at least 1e-4 in the logarithm.
    Cost: one row of class probabilities per sample, which the client stores
    Travels: as fedavg
    Lost reply: tolerated: the client forgets the round, its targets with it
    """
    return method(terms=(EarlyLearning(lam, beta),))
