"""A closing stage: the head is fitted to features drawn from what clients tell about theirs."""

from __future__ import annotations

from fedskew.methods.registry import Count, Positive, register
from fedskew.parts.cohorts import Everyone
from fedskew.parts.compose import method, stage
from fedskew.parts.protocol import Effort
from fedskew.parts.servers.calibrate import Calibrate
from fedskew.parts.stages import Method


@register("ccvr")
def ccvr(virtual: Count = 100, decay: Positive = 1e-3) -> Method:
    """CCVR (2021)

    Luo, Chen, Hu, Zhang, Liang, Feng: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
    Non-IID Data. NeurIPS 2021

    Cite: luo2021no
    Use when: label skew biases the head; after any method
    Equations:
        mu_c = sum_k n_ck mu_ck / N_c
        S_c = [sum_k (n_ck - 1) S_ck + sum_k n_ck mu_ck mu_ck' - N_c mu_c mu_c'] / (N_c - 1)
        h_c1, ..., h_cM ~ N(mu_c, S_c)
        (W, b) = argmin mean CE(W h + b, c) + decay/2 ||(W, b) - (W0, b0)||^2
    Symbols:
        virtual: M, the virtual features of each class
        decay: pull of the new head (W, b) to the trained one (W0, b0)
        n_ck, mu_ck, S_ck: count, mean and covariance of the features of class c at client k; N_c = sum_k n_ck
    Defaults: virtual 100: the paper's for CIFAR-10, from memory (500 for CIFAR-100, 1000 for CINIC-10); decay 0.001:
        ours
    Deviations:
        D72: the paper trains the head with SGD from the trained one; here the pull takes the place of stopping early,
            and the problem, then strictly convex, is solved.
        D78: features are those that enter the head; the paper's experiments take a power of them first.
        Features are drawn with the symmetric root of S_c. Classes that no client has get none.
        Clients make one batch as in any round, whose result is not used.
    Cost: as the method, and one forward pass over all data; on the server a fit of the head
    Travels: as the method; at the end the weights down, and for each class of a client a count, a mean and a covariance
        of the features up, with the head
    Lost reply: tolerated: the moments are those of the others
    """
    closing = stage(
        server=Calibrate(virtual, decay),
        cohort=Everyone(),
        effort=Effort(steps=1),
        train="head",
        rounds=1,
        counted=False,
        closing=True,
    )
    return method(stage(), closing)
