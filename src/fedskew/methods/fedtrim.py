"""The mean without the extremes of every coordinate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import TrimmedMean
from fedskew.parts.stages import Method


@register("fedtrim", "trim")
def fedtrim(beta: Annotated[float, Field(ge=0, lt=0.5)] = 0.2) -> Method:
    """Trimmed mean (2018)

    Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018

    Cite: yin2018byzantine
    Use when: a known share of clients may be hostile
    Equations:
        w_j <- mean over k of w_kj, without the floor(beta n) smallest and as many greatest
    Symbols:
        beta: share that is cut off at either end; at least that of the hostile clients
        w_kj: coordinate j of client k's parameters and batch-norm statistics
        n: clients of the round
    Defaults: beta 0.2 is ours
    Deviations:
        Of parameters after several local steps; the paper trims gradients. All clients count alike.
        Under label skew, clients with classes that few others have look hostile, and count little or not at all.
    Cost: the server holds all updates of a round at once and sorts them
    Travels: as fedavg. The server sees single models: not for secure aggregation
    Lost reply: tolerated
    """
    return method(server=Aggregate(reduce=TrimmedMean(beta)))
