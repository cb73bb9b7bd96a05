"""Averaging of clients that learn the network and their labels in turns."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.robust import JointOptimization


@register("jointopt")
def jointopt(alpha: Weight = 1.2, beta: Weight = 0.8, start: AtLeastOne = 10) -> Method:
    """Joint Optimization (2018)

    Tanaka, Ikami, Yamasaki, Aizawa: Joint Optimization Framework for Learning with Noisy Labels. CVPR 2018

    Cite: tanaka2018joint
    Use when: many wrong labels anywhere; clients return often
    Equations:
        L_k = KL(s_i || p_i) + alpha KL(pi || mean p) + beta H(p)
        from round start on: s_i is the mean of the p_i of the client's last round
    Symbols:
        alpha: weight of the prior, which prevents that all samples get one label
        beta: weight of the entropy
        start: round from which soft labels replace the given ones
        s_i: label of sample i
        pi: shares of the classes among the client's labels
    Defaults: alpha 1.2, beta 0.8: the paper's for CIFAR-10 with symmetric noise; start 10 is ours
    Deviations:
        D67: the paper averages over ten epochs; here over the local epochs of a round.
        The shares of classes are the client's own, for under label skew equal shares would be wrong.
        The paper's second phase, a new network trained on the labels found, is not here.
        mean p is at least 1e-7 in the logarithm.
    Cost: one row of class probabilities per sample, which the client stores
    Travels: as fedavg
    Lost reply: tolerated: the client forgets the round, its labels with it
    """
    return method(base=JointOptimization(alpha, beta, start))
