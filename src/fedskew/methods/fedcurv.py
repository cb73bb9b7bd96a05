"""Averaging with elastic weight consolidation between clients."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import AtLeastOne, Count, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.curvature import Curvature


@register("fedcurv")
def fedcurv(
    s: Count = 500, lam: Weight = 1.0, fisher: Literal["batch", "sample"] = "batch", batch: AtLeastOne = 50
) -> Method:
    """FedCurv (2019)

    Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: Overcoming Forgetting in Federated Learning on Non-IID
    Data. arXiv:1910.07796, 2019

    Cite: shoham2019overcoming
    Use when: clients forget others' data and memory is plentiful
    Equations:
        L_k = CE + lam sum_{j != k} (w - w_j)' diag(I_j) (w - w_j), computed as lam (w' diag(U) w - 2 V' w), U = sum_{j
            != k} I_j, V = sum_{j != k} I_j w_j
        I_j = mean over batches of (grad CE)^2 at w_j
    Symbols:
        lam: weight of the pull
        s: the Fisher information is taken from batches until more than s samples were seen
        fisher: 'batch': squares of the gradients of batches; 'sample': of single samples
        batch: samples per batch of the Fisher information
        w_j, I_j: the weights that client j sent last, and its diagonal Fisher information there
    Defaults: s 500, lam 1, batch 50: the FedNTD and FedLMD configuration; FedLMD's table 6 has s 250, lam 2 too
    Deviations:
        fisher='batch', as in the FedNTD code: squares of the gradients of batches; the Fisher information proper,
            fisher='sample', is larger by about the batch size, so that lam does not carry over.
        D28: the client takes off its own share only; in that code the removals of a round pile up.
        The constant is dropped: the loss may be negative. Before anybody has sent anything the term is 0.
        The information is taken in evaluation mode, without augmentation, over trained parameters only.
    Cost: three elementwise passes over the weights per step; gradients of about s samples per round; two model-sized
        memories on each client and on the server
    Travels: two model-sized trees more in each direction
    Lost reply: exact: the client forgets what the server never absorbed
    """
    return method(terms=(Curvature(lam, s, fisher, batch),))
