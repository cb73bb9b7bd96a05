"""Plain averaging of clients that judge labels by centroids they share."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Count, Share, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.stages import Method
from fedskew.parts.terms.centroids import CentroidCrossEntropy


@register("rofl")
def rofl(
    T_pl: Count = 10,
    forget: Share = 0.2,
    gradual: AtLeastOne = 10,
    lam_cen: Weight = 1.0,
    lam_e: Weight = 0.8,
    detach_features: bool = True,
) -> Method:
    """RoFL (2022)

    Yang, Park, Byun, Kim: Robust Federated Learning With Noisy Labels. IEEE Intelligent Systems 2022

    Cite: yang2022robust
    Use when: wrong labels, and class centroids may travel
    Equations:
        over the floor((1 - r_t) B) samples of smallest CE: L_k = CE(target) + lam_cen(t) sum m |h - c_y|^2 + lam_e
            H(softmax(z))
        m = 1[argmax_j cos(h, c_j) = y]
        target = y if m or t < T_pl, else argmax f_g(x)
        per batch c_j <- (1 - s^2) c_j + s^2 c'_j, s = cos(c_j, c'_j)
        on the server w <- mean_k w_k, G_j <- sum_k s_kj c_kj / sum_k s_kj, s_kj = cos(G_j, c_kj)
    Symbols:
        T_pl: round from which doubted labels give way to pseudo-labels; lam_cen(t) = lam_cen min(t / T_pl, 1)
        forget: share of the batch left out in the end; r_t = forget min(t / (gradual - 1), 1)
        gradual: rounds until then
        lam_cen: weight of the pull to the centroids
        lam_e: weight of the entropy
        detach_features: no gradient through the features in the pull, as in the public code; False: as printed
        c_j, c'_j, G_j: centroid of class j: at work on a client, the mean of a batch, and the server's
        h, f_g: penultimate features, and the model received this round
    Defaults: T_pl 10: FedNoRo; forget 0.2 over 10 rounds, lam_cen 1, lam_e 0.8: the unofficial code it links
    Deviations:
        D55: after the unofficial code that FedNoRo links; the authors' is not available. In it features are detached,
            so that the pull has no gradient: detach_features=False gives it one.
        A class without a centroid yet, all of them in round 0, takes the clients' own mean features, weighted by their
            samples; in that code the first weights are similarities with random vectors, of either sign.
        Similarities below 0 count as 0 in the merge; a class whose weights are all 0 keeps its centroid.
        A class that nobody has shown is no candidate for the most similar; in that code it may win, not being a number.
        At least one sample of a batch is kept, counted by the batch's real size.
        Means for the first centroids are taken in evaluation mode with the received model.
    Cost: one forward pass over the client's data in round 0 and in every round from T_pl on; products with centroids
    Travels: one feature vector per class up and down; up also the samples of classes that have no centroid yet
    Lost reply: tolerated: the centroids of the others are used
    """
    base = CentroidCrossEntropy(T_pl, forget, gradual, lam_cen, lam_e, detach_features)
    return method(base=base, server=Aggregate(weigh=Uniform(), statistics="weights"))
