"""Averaging of updates that are clipped and noised before they leave the client."""

from __future__ import annotations

from fedskew.core.errors import UserError
from fedskew.methods.registry import Chance, Positive, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.privacy import GaussianMechanism
from fedskew.parts.stages import Method


@register("dp")
def dp(clip: Positive | None = 1.0, sigma: Weight = 1.0, delta: Chance = 1e-5) -> Method:
    """Private updates (2018)

    McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018

    Cite: mcmahan2018learning
    Use when: updates must be differentially private
    Equations:
        w_k <- w + D_k min(1, clip / |D_k|) + sigma clip z
        z ~ N(0, I), from a secret of the site
    Symbols:
        clip: the greatest length of a client's change; None: any (then sigma must be 0)
        sigma: the noise's deviation in units of clip, on every client
        delta: the probability at which epsilon is stated
        D_k: change of client k's trained parameters and batch-norm statistics, as one vector
    Defaults: none of the paper's, whose values are for its data; clip and sigma 1 show the order of magnitude, and
        choosing them by looking at clients' data is not covered
    Deviations:
        Every client adds the whole noise itself and need not trust the server; the paper's server adds it once to the
            mean, so that there the same epsilon costs far less accuracy.
        Epsilon holds for all data of a client exchanged for any other of the same size, which moves an update by up to
            2 clip; the paper's is for a client left out, by clip.
        No amplification by sampling is claimed: who takes part is public.
        Clients count by their samples, as in the method it is added to; their numbers are taken to be public.
        A change that is not finite counts as no change.
    Cost: one draw of noise per parameter and round; accuracy
    Travels: as fedavg, clipped and noised; without the training loss. What the method it is added to sends beside the
        weights is not covered, and then no epsilon is stated
    Lost reply: tolerated; it counts as sent, and asked the same again a client sends the same bits
    """
    if clip is None and sigma:
        raise UserError(f"method 'dp': sigma is {sigma}, in units of clip, but clip is None. Give clip a number.")
    return method(privacy=GaussianMechanism(clip, sigma, delta))
