"""Two stages: find the noisy clients, then train with them at a distance."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import AtLeastOne, Chance, Positive, Share, Weight, register
from fedskew.parts.cohorts import AtMost
from fedskew.parts.compose import method, stage
from fedskew.parts.detect import Detect
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.distance import Distance, DistanceAware
from fedskew.parts.stages import Method
from fedskew.parts.terms.cross_entropy import CrossEntropy
from fedskew.parts.terms.prior import PriorCrossEntropy, RampedDistillation


@register("fednoro")
def fednoro(
    warmup: AtLeastOne = 10,
    a: Share = 0.8,
    T: Positive = 0.8,
    ramp_end: AtLeastOne | None = None,
    distil: bool = True,
    distance: Distance | None = "sum_of_tensor_norms",
    buffers: bool = True,
    soft: bool = False,
    drop: bool = False,
    kd_logits: Literal["adjusted", "raw"] = "adjusted",
    la: bool = True,
    gate: bool = True,
    seeds: AtLeastOne = 9,
    covariance: Literal["full", "diag"] = "full",
    component: Literal["sum", "norm"] = "sum",
    view: Literal["plain", "varied"] = "plain",
    redetect: AtLeastOne | None = None,
    patience: AtLeastOne = 2,
    epsilon: Positive | None = None,
    delta: Chance = 1e-5,
    clip: Positive = 5.0,
    joint_noise: Weight = 0.0,
) -> Method:
    """FedNoRo (2023)

    Wu, Yu, Jiang, Cheng, Yan: FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label
    Noise Heterogeneity. IJCAI 2023

    Cite: wu2023fednoro
    Use when: some clients have many wrong labels
    Equations:
        1. warmup rounds of L_k = CE(z + log pi_k, y)
        2. l_kc = mean CE(z, y) of client k's samples labeled c, missing ones filled with the least, scaled to 0..1 per
            class, split by a two-component Gaussian mixture
        3. clean clients as before, noisy ones lam KL(softmax(z_G / T) || p) + (1 - lam) CE(p, y), p = softmax(z + log
            pi_k), lam = a exp(-5 (1 - u)^2)
        w = sum N_i e^{-D_i} w_i / sum N_i e^{-D_i}, D_i = d_i / max d, d_i the distance to the nearest clean client, 0
            for clean ones
    Symbols:
        warmup: T1, rounds before the detection
        a: the distillation's final weight
        T: the teacher's temperature
        ramp_end: the round at which lam reaches a (u goes from 0 at T1 to 1); None: 0.43 of the way to the end
        distil: whether noisy clients distil
        distance: d as in the released code, or the paper's 'global_l2'; None: plain averaging
        buffers: whether d counts batch-norm statistics, as in the released code; the paper has parameters only
        soft: D_i counts as far as a client is thought noisy: N_i exp(-p_i D_i)
        drop: noisy clients leave after the detection
        kd_logits: whether the student's logits in the distillation are 'adjusted' by log pi, or 'raw'
        la: whether the warm-up adjusts logits
        gate: whether 'is anybody noisy at all?' is asked first; False splits any federation in two, as published
        seeds: fits of the mixture that vote
        covariance: of the mixture's components
        component: by which measure of its center the mixture's noisy component is larger: 'sum' as in the code, or the
            paper's 'norm'
        view: whether indicators are measured on 'plain' samples, or on 'varied' ones as in the code
        redetect: detect again every so many rounds
        patience: equal verdicts in a row after which a client's status changes
        epsilon: privacy of the indicators per detection; None: they travel as they are
        delta: of the same
        clip: the loss at which indicators are cut off for it
        joint_noise: deviation of the noise with which the matrix of confusions travels, where there is no epsilon
    Defaults: warmup 10, a 0.8, T 0.8, seeds 9: the authors' code for ICH (warmup 20 for ISIC); ramp_end None is their
        49 for 100 rounds
    Deviations:
        The detection asks first whether anybody is noisy (the published one splits clean federations, too); where
            nobody is, the second stage is fedla. gate=False is as published.
        D47: the mixture is our own, with nine votes as in the code; the paper fits once.
        D45: indicators are measured on plain samples; the code measures on randomly varied ones: view='varied'.
        D48, D50: the KL goes from the teacher to the student, and lam starts at a e^-5: the code; the paper has the
            arguments exchanged and lam starting at 0.
        D51: the distance is the sum of per-tensor norms, batch-norm statistics included: the code; counters never
            enter.
        Classes that a client lacks are left out of the KL without renormalizing the teacher, which is the code's
            gradient; the value shown is renormalized.
        D46: the noisy component is the one with the larger sum of means: the code; the paper says norm:
            component='norm'.
    Cost: in the second stage one more forward pass per step on noisy clients; one pass over the data at the setup; the
        server compares every noisy with every clean model
    Travels: as fedavg; at the setup per class a mean loss, its standard error and a bucket of counts up, and, without
        epsilon, what the page of the detection shows (a matrix of confusions; per predicted class feature means,
        variances and a bucket of counts; the client's mean loss, confidences and LID); a client's lam down. The server
        sees single models: not for secure aggregation
    Lost reply: tolerated; a client that does not answer the setup trains like a clean one; where others are noisy, and
        until it has answered a later one, distance-aware averaging counts e^{-1/2} of its samples and compares others
        with it only if no clean client replied
    """
    fit = PriorCrossEntropy() if la else CrossEntropy()
    weigh = None if distance is None else DistanceAware(distance, buffers, soft)
    aware = Aggregate() if weigh is None else Aggregate(weigh, statistics="weights")
    detect = Detect(seeds, covariance, gate, patience, epsilon, delta, clip, joint_noise, view, component)
    denoise = stage(
        setups=(detect,),
        every=redetect,
        base=RampedDistillation(a, T, warmup, ramp_end, kd_logits) if distil and not drop else fit,
        server=Aggregate() if drop else aware,
        cohort=AtMost("noisy", 0) if drop else None,
    )
    return method(stage(base=fit, rounds=warmup), denoise)
