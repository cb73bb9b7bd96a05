"""Sharpness-aware clients that look towards a flat region of the global loss."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Share, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.gradients import GlobalFlat
from fedskew.parts.stages import Method


@register("fedgf")
def fedgf(
    rho: Weight = 0.1, rho_g: Weight | None = None, c: Share = 0.3, T_D: Weight | None = None, W: AtLeastOne = 30
) -> Method:
    """FedGF (2024)

    Lee, Yoon: Rethinking the Flat Minima Searching in Federated Learning. ICML 2024

    Cite: lee2024rethinking
    Use when: label skew, and computation may double
    Equations:
        w~_k = w_k + rho g/|g|
        w~ = w + rho_g (w_prev - w)/|w_prev - w|
        the optimizer gets grad L(c w~ + (1 - c) w~_k)
        c = mean over the last W rounds of 1[mean_k |w - w_k| > T_D], or fixed
    Symbols:
        rho: radius of the client's ball
        rho_g: radius of the server's ball; None: rho
        c: share of the server's point, if fixed
        T_D: distance of client models above which a round speaks for the server's point; None: c is fixed
        W: rounds that T_D looks back on
        w_prev: the global weights one round ago; the first round has none and is plain SAM
    Defaults: rho 0.1 and c 0.3: FedVLS' table 10, within the original's ranges; W 30: the authors' script
    Deviations:
        D24: 'c_os' of FedVLS' table 10 is read as the fixed c; the adaptive c of the authors' code is T_D=...
        w_prev = w gives w~ = w. Until W rounds have gone by, c is the mean over those that have.
        The original trains for 10 000 rounds of one epoch: results under another protocol are not comparable to it.
    Cost: two forward and backward passes per step and one elementwise mean; one model-sized memory on the server
    Travels: one model-sized tree more down; with T_D also one number
    Lost reply: tolerated: distances are averaged over those who replied
    """
    return method(gradient=GlobalFlat(rho, rho if rho_g is None else rho_g, c, T_D, W))
