"""The updates that have the closest neighbors."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedskew.methods.registry import AtLeastOne, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import Krum
from fedskew.parts.stages import Method


@register("krum")
def krum(f: Annotated[float, Field(ge=0, lt=0.5)] = 0.2, m: AtLeastOne = 1) -> Method:
    """Krum (2017)

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
    NeurIPS 2017

    Cite: blanchard2017machine
    Use when: a known share of clients may be hostile
    Equations:
        s_k = sum of |w_k - w_i|^2 over the n - ceil(f n) - 2 clients i nearest to k
        w <- mean of the m models with the smallest s_k
    Symbols:
        f: share of hostile clients to expect
        m: models that are averaged; above 1 this is multi-Krum
        w_k: parameters and batch-norm statistics of client k
        n: clients of the round
    Defaults: f 0.2 is ours; m 1: the paper's Krum
    Deviations:
        Of parameters after several local steps; the paper chooses among gradients.
        f is a share, for the clients of a round may differ in number; at least one neighbor counts.
        Under label skew, clients with classes that few others have look hostile, and count little or not at all.
    Cost: the server holds all updates of a round at once and compares every two
    Travels: as fedavg. The server sees single models: not for secure aggregation
    Lost reply: tolerated
    """
    return method(server=Aggregate(Krum(f, m), statistics="weights"))
