"""Three stages: find the noisy clients one by one, train on the clean ones, correct the labels of the others."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Annotated, Any

from pydantic import Field

from fedskew.methods.registry import AtLeastOne, Count, Positive, Share, Weight, register
from fedskew.parts.cohorts import AtMost, OneByOne
from fedskew.parts.compose import method, stage
from fedskew.parts.corrected import (
    AdaptiveProximal,
    DrawOrder,
    JudgeByDimension,
    LocalDimension,
    Losses,
    RelabelAll,
    RelabelWorst,
)
from fedskew.parts.mixup import MixUp
from fedskew.parts.stages import Method
from fedskew.parts.terms.prior import PriorCrossEntropy

Neighbors = Annotated[int, Field(ge=2)]


@register("fedcorr")
def fedcorr(
    warmup: AtLeastOne = 2,
    finetune: Count = 50,
    beta: Weight = 5.0,
    k: Neighbors = 20,
    kappa: Share = 0.1,
    relabel: Share = 0.5,
    confidence: Share = 0.5,
    alpha: Positive = 1.0,
    losses: Losses = "code",
) -> Method:
    """FedCorr (2022)

    Xu, Chen, Quek, Chong: FedCorr: Multi-Stage Federated Learning for Label Noise Correction. CVPR 2022

    Cite: xu2022fedcorr
    Use when: many labels are wrong and clients may relabel
    Equations:
        L_k = CE(mixed x, mixed y) + beta mu_k |w - w_g|.  1. warmup times: every client once, one a round, in random
            order; each measures its mean LID = -k / sum_i log(r_i / r_k), r the distances to the k nearest of its own
            softmax outputs. A mixture of two Gaussians on the LID, summed over the times, splits noisy clients (higher)
            from clean ones; mu_k is the share of a noisy client's samples in the higher of two Gaussians on their
            losses, 0 for clean ones. A noisy client's floor(relabel mu_k N_k) samples of largest loss take the global
            model's label where its probability exceeds the confidence.  2. finetune rounds with the clients of mu_k <=
            kappa. Then noisy clients relabel all samples of which the global model is confident.  3. everybody; in 2
            and 3 beta = 0
    Symbols:
        warmup: T1, how often every client is visited in the first stage; its rounds are not counted
        finetune: T2, rounds of the second stage; the third has the rest of the run's rounds
        beta: strength of the pull towards the weights received
        k: neighbors, at most N_k - 1
        kappa: the greatest mu_k with which a client takes part in the second stage
        relabel: which share of the samples thought wrong may be relabeled after each time
        confidence: the probability that the global model must exceed to relabel
        alpha: mixing weights are drawn from Beta(alpha, alpha), one per batch
        losses: what mu_k is fitted to: the released 'code' takes softmax outputs for logits, the 'paper' does not
        mu_k: estimated share of wrong labels of a client
    Defaults: FedCorr's code, but warmup 2 and finetune 50, FedNoRo's for ICH (5 and 150 for ISIC)
    Deviations:
        D59: losses='code', a second softmax: the published results are with it, and it bounds the losses.
        D60: the pull is not squared: the code (the paper's is, as far as we remember it). The code skips it in the
            first batch of each epoch, where the root has no gradient at 0; here it is 0 there, and nothing is skipped.
        Measured on plain samples; the code measures on randomly varied ones.
        k neighbors are k in the numerator, too; the code keeps 20 there for clients with fewer samples.
        In the second stage all clients of mu_k <= kappa take part in every round, however many the run asks per round;
            where there is none, those with the least mu_k (the code divides by zero).
        The mixtures are our own, from one seed each; at the first setup nothing was measured and all are clean.
        A visit whose reply got lost counts in the sum of LID like the mean of the client's others.
    Cost: the first stage visits warmup times all clients, one after another; each visit ends with a pass over the data
        and N_k^2 distances; at each setup a pass over the data of noisy clients
    Travels: as fedavg; in the first stage the mean LID and the share of high losses up, mu_k down; at setups the count
        of changed labels up, mu_k or the status down. Labels and losses stay with the client
    Lost reply: tolerated: a client is judged by the visits that arrived, and is clean without any; labels whose
        correction got lost are not corrected
    """
    correct = (JudgeByDimension(), RelabelWorst(relabel, confidence))
    usual = stage(inputs=(MixUp(alpha),))
    one_by_one = replace(
        usual,
        setups=(*correct, DrawOrder()),
        terms=(AdaptiveProximal(beta), LocalDimension(k, losses)),
        cohort=OneByOne(),
        passes=warmup,
        counted=False,
    )
    clean_ones = replace(usual, setups=correct, cohort=AtMost("mu", kappa), rounds=finetune)
    return method(one_by_one, clean_ones, replace(usual, setups=(RelabelAll(confidence),)))


@register("fedcorr-la", like="fedcorr")
@wraps(fedcorr, assigned=("__annotations__",))
def fedcorr_la(**given: Any) -> Method:
    """FedCorr+LA (2022)

    Xu, Chen, Quek, Chong: FedCorr: Multi-Stage Federated Learning for Label Noise Correction. CVPR 2022; with the logit
    adjustment of FedNoRo, IJCAI 2023

    Cite: xu2022fedcorr, wu2023fednoro
    Use when: as fedcorr, with imbalanced classes too
    Equations:
        as fedcorr with CE(z + log pi_k, y), pi_k the shares of the classes among the client's labels as they are now
            corrected
    Deviations:
        FedNoRo names FedCorr+LA without saying how: here both mixed labels are adjusted, in all three stages, and
            measurements are on raw logits.
    """
    plain = fedcorr(**given)
    return replace(plain, stages=tuple(replace(each, base=PriorCrossEntropy()) for each in plain.stages))
