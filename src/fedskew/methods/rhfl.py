"""Averaging by the confidence in clients that learn with a symmetric loss."""

from __future__ import annotations

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.confidence import Confidence
from fedskew.parts.stages import Method
from fedskew.parts.terms.robust import SymmetricCrossEntropy


@register("rhfl")
def rhfl(
    alpha: Weight = 0.1, beta: Weight = 1.0, eta: Weight = 0.5, safe: bool = True, size_weighted: bool = True
) -> Method:
    """RHFL (2022)

    Fang, Ye: Robust Federated Learning with Noisy and Heterogeneous Clients. CVPR 2022

    Cite: fang2022robust
    Use when: wrong labels, and clients differ in quality
    Equations:
        L_k = alpha CE + beta RCE, RCE = -sum_c clip(p_c, 1e-7, 1) log clip(onehot_c, 1e-4, 1)
        q_k = (L_k^{t-1} - L_k^t) / L_k^t
        W = softmax(eta q / sum |q|)
        w <- sum_k n_k W_k w_k / sum_k n_k W_k
    Symbols:
        alpha: weight of the cross-entropy
        beta: weight of the reverse cross-entropy
        eta: how much confidence counts
        safe: divide by sum |q|; False: by sum q as printed, which rewards the wrong clients where that is negative
        size_weighted: multiply by the samples n_k
        L_k^t: mean loss of client k at the model received in round t
    Defaults: alpha 0.1, beta 1, eta 0.5: the authors' code
    Deviations:
        D56: the form that FedNoRo compares with: one architecture and no public data, so that confidence weighs
            averaging instead of distillation. Its code is unpublished; keeping the symmetric loss and n_k are our
            reading.
        L_k^t is measured in evaluation mode without gradients; the authors measure in training mode.
        W is even in round 0 and where sum |q| is under 1e-12; a client that was not in the last round has q = 0.
        The printed 1 / (K - 1) is left out, for the softmax cancels it.
    Cost: one forward pass over the client's data per round; the server holds all updates of a round at once
    Travels: as fedavg, and one number up
    Lost reply: tolerated: such a client counts as absent
    """
    weigh = Confidence(eta, alpha, beta, safe, size_weighted)
    server = Aggregate(weigh=weigh, statistics="weights")
    return method(base=SymmetricCrossEntropy(alpha, beta), server=server)
