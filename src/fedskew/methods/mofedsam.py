"""Sharpness-aware clients that share a momentum."""

from __future__ import annotations

from fedskew.methods.registry import Share, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.corrections import GlobalMomentum
from fedskew.parts.gradients import Sharpness
from fedskew.parts.stages import Method


@register("mofedsam")
def mofedsam(beta: Share = 0.1, rho: Weight = 0.1) -> Method:
    """MoFedSAM (2022)

    Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022

    Cite: qu2022generalized
    Use when: as fedsam, with few clients per round
    Equations:
        g' = grad L(w_k + rho g/|g|)
        v = beta g' + (1 - beta) Delta
        the optimizer gets v
        Delta = -mean_k(w_k - w)/(lr a) of the round before
    Symbols:
        beta: share of the client's own gradient
        rho: radius of the ball
        Delta: last round's mean step, in units of a gradient; none in the first round, when v = g'
        a: effective steps, averaged like the weights
    Defaults: beta 0.1: the original; rho 0.1: as fedsam, within the original's sweep
    Deviations:
        With momentum in the local SGD the steps are counted as its reach a, not as their number: Delta would otherwise
            grow by up to (1 - beta)/(1 - momentum) per round. With plain SGD a is the number of steps.
        Delta is the mean change of the clients before the server's own step, so that a server momentum or an
            extrapolation is not fed back; means are weighted by samples (D8, D9).
        Delta is left as it is during the round; one public code scales it in place at every step.
    Cost: two forward and backward passes per step; one model-sized memory on the server
    Travels: one model-sized tree more down, one number up
    Lost reply: tolerated: Delta is the mean over those who replied
    """
    return method(gradient=Sharpness(rho), corrections=(GlobalMomentum(beta),))
