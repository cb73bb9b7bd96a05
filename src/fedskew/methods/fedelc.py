"""Two stages: find the noisy clients, then learn their labels."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Positive, Weight, register
from fedskew.parts.compose import method, stage
from fedskew.parts.detect import Detect
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.distance import DistanceAware
from fedskew.parts.stages import Method
from fedskew.parts.terms.prior import PriorCrossEntropy
from fedskew.parts.terms.robust import LearnedLabels


@register("fedelc")
def fedelc(
    warmup: AtLeastOne = 20,
    K: Positive = 10.0,
    lam: Weight = 1000.0,
    alpha: Weight = 0.5,
    beta: Weight = 0.2,
    gate: bool = True,
) -> Method:
    """FedELC (2024)

    Jiang, Sun, Li, Xue, Li, Wu, Xu, Wang, Liu: Tackling Noisy Clients in Federated Learning with End-to-end Label
    Correction. CIKM 2024

    Cite: jiang2024tackling
    Use when: few clients have many wrong labels
    Equations:
        1. warmup rounds of L_k = CE(z + log pi_k, y), then the detection of fednoro
        2. clean clients as before, noisy ones (KL(p || y_i) + beta H(p)) / C + alpha CE(y_i, y), y_i = softmax(v_i)
        v_i <- v_i - lam dL/dv_i, from v_i = K onehot(y);  after a round v_i <- K (y_i + p_i) / 2
        w as in fednoro
    Symbols:
        warmup: rounds before the detection
        K: how surely the given labels are taken to begin with
        lam: learning rate of the labels
        alpha: weight of the given labels, which hold the learned ones
        beta: weight of the entropy
        gate: whether 'is anybody noisy at all?' is asked first; False splits any federation in two, as published
        y_i: learned label of sample i, stored by the client
    Defaults: warmup 20, K 10, lam 1000, alpha 0.5, beta 0.2: the authors' code for CIFAR-10
    Deviations:
        D68: divergence and entropy are divided by the number of classes, and the learned labels are averaged with the
            predictions after a round: the code; the paper's objective has neither.
        p_i after a round is that of the network in evaluation, on samples as they are; the code leaves it in training.
        Detection and averaging are those of fednoro, with its deviations.
        The code trains without the last batch of an epoch; here local.drop_last decides.
    Cost: as fednoro, without its teacher; on noisy clients one more pass over the data per round
    Travels: as fednoro; instead of lam, whether the client is thought noisy
    Lost reply: tolerated, as in fednoro; the client forgets the round, its labels with it
    """
    second = stage(
        setups=(Detect(gate=gate),),
        base=LearnedLabels(K, lam, alpha, beta),
        server=Aggregate(DistanceAware("sum_of_tensor_norms", buffers=True, soft=False), statistics="weights"),
    )
    return method(stage(base=PriorCrossEntropy(), rounds=warmup), second)
