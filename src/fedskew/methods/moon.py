"""Averaging of clients that contrast their features with two models."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.projection import ProjectionHead
from fedskew.parts.stages import Method
from fedskew.parts.terms.contrast import ModelContrast


@register("moon")
def moon(mu: Weight = 1.0, tau: Positive = 0.5, head: AtLeastOne | None = None, hidden: Positive = 1.0) -> Method:
    """MOON (2021)

    Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021

    Cite: li2021model
    Use when: label skew, and three forward passes are affordable
    Equations:
        L_k = CE + mu l_con
        l_con = -log(e^{cos(h, h_g)/tau} / sum_v e^{cos(h, v)/tau}), v in {h_g, h_prev}
    Symbols:
        mu: weight of the contrast
        tau: temperature
        head: width of a projection put between the features and the classifier; None: no projection
        hidden: width of that projection's hidden layer, in widths of the features
        h, h_g, h_prev: features of the live model, of the one received, and of the client's own last one
    Defaults: mu 1, tau 0.5: the original for CIFAR-100 (5 for CIFAR-10); FedLMD's table 6 has mu 0.1, FedVLS' 0.01;
        hidden 1: the original, FedVLS' code has 0.5
    Deviations:
        h are the penultimate features, as in the FedNTD code. The original is head=256, a projection by two layers
            before the classifier, which makes another network of it than that of the methods beside it.
        On a client's first visit the term is 0, as in the original code.
        Both frozen models evaluate with running statistics, as in the original.
    Cost: two more forward passes per step; one model-sized memory on each client
    Travels: as fedavg
    Lost reply: exact: the client forgets the model that the server never absorbed
    """
    setups = () if head is None else (ProjectionHead(head, hidden),)
    return method(terms=(ModelContrast(mu, tau),), setups=setups)
