"""One encoder per cluster of clients, all of them under one classifier."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import AtLeastOne, Positive, register
from fedskew.parts.compose import method, stage
from fedskew.parts.protocol import Effort
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.setups import ClusterByLabels, Concatenate
from fedskew.parts.stages import Method


@register("fedconcat")
def fedconcat(
    clusters: AtLeastOne = 2,
    encoder_rounds: AtLeastOne = 50,
    steps: AtLeastOne = 3,
    head: Literal["fresh", "joined"] = "fresh",
    cap: Positive | None = None,
) -> Method:
    """FedConcat (2024)

    Diao, Li, He: Exploiting Label Skews in Federated Learning with Model Concatenation. AAAI 2024

    Cite: diao2024exploiting
    Use when: clients form clusters of similar classes
    Equations:
        1. k-means on the clients' class proportions p_k gives M clusters
        2. FedAvg inside each cluster for R1 rounds
        3. the M encoders are frozen, their features put side by side, and one linear head is trained by averaging for
            the remaining rounds, a few batches per client and round
    Symbols:
        clusters: M
        encoder_rounds: R1; a run of no more rounds than this ends with M models and no single one to evaluate
        steps: batches per client and round in the last stage
        head: 'fresh', or 'joined': starts from the cluster heads, weights side by side and biases summed
        cap: largest cluster as a multiple of clients / M; None: no limit
    Defaults: clusters 2: FedVLS' table 10 for ten classes (4 for more; the code has 5); encoder_rounds 50, steps 3,
        head 'fresh': the authors' code, which for 100 classes and more has head='joined' and cap=1.2
    Deviations:
        R1 counts towards the run's rounds, and the rest is R2; the authors run 50 + 1000, of 10 epochs in the first
            stage.
        All clusters start from the same initial weights; in the authors' code later ones may start from a trained
            client's, because tensors are shared.
        An empty cluster is seeded again at the farthest client. A client that did not answer goes where the average
            client would.
        The capped k-means serves the nearest pairs of client and center first; the code solves a flow problem.
        Proportions are exact; the estimate from local predictions (FedConcat-ID) is not offered.
        Batch norm of the frozen encoders runs in evaluation mode.
    Cost: first stage as fedavg; then M forward passes per step, backward through the head only; the model is M times as
        large
    Travels: class proportions up, once; then one model each way; in the last stage all M encoders and the head down,
        the head and batch-norm statistics up
    Lost reply: tolerated: a cluster without replies keeps its model
    """
    encoders = stage(
        setups=(ClusterByLabels(clusters, cap),), server=PerCluster(Aggregate(), clusters), rounds=encoder_rounds
    )
    classifier = stage(
        setups=(Concatenate(clusters, head),),
        server=Aggregate(weigh=Uniform()),
        effort=Effort(steps=steps),
        train="head",
    )
    return method(encoders, classifier)
