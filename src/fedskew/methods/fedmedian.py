"""The median of all clients, coordinate by coordinate."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import Median
from fedskew.parts.stages import Method


@register("fedmedian", "median")
def fedmedian() -> Method:
    """Median (2018)

    Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018

    Cite: yin2018byzantine
    Use when: fewer than half of clients may be hostile
    Equations:
        w_j <- median over k of w_kj
    Symbols:
        w_kj: coordinate j of client k's parameters and batch-norm statistics
    Defaults: no parameter
    Deviations:
        Of parameters after several local steps; the paper takes the median of gradients. All clients count alike.
        Under label skew, clients with classes that few others have look hostile, and count little or not at all.
    Cost: the server holds all updates of a round at once and sorts them
    Travels: as fedavg. The server sees single models: not for secure aggregation
    Lost reply: tolerated
    """
    return method(server=Aggregate(reduce=Median()))
