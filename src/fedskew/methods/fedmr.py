"""Averaging of clients that keep their features spread out."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.features import Manifold


@register("fedmr")
def fedmr(mu: Weight = 0.01) -> Method:
    """FedMR (2023)

    Fan, Yao, Zhang, Lyu, Zhang, Wang: Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping.
    TMLR 2023

    Cite: fan2023federated
    Use when: clients lack classes and their features collapse
    Equations:
        L_k = CE + mu R
        R = sum_c mean_{i != j} (X_c' X_c)_ij^2 / sum_c m_c over the batch's classes of m_c >= 2 samples, X_c their
            features, standardized per dimension
    Symbols:
        mu: weight of the decorrelation
        m_c: samples of class c in the batch
    Defaults: mu 0.01: the default of the authors' code, whose readme has 1e-5; FedVLS' table 10 has 4
    Deviations:
        D35: the intra-class term only, as released; the paper adds margins between prototypes, which would travel.
        X_c' X_c is not divided by m_c before it is squared, as released: R grows with the samples per class.
    Cost: one product of the batch's features with themselves per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(Manifold(mu),))
