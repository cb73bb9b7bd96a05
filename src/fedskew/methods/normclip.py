"""The mean of changes that are bounded."""

from __future__ import annotations

from fedskew.methods.registry import Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.robust import ClippedMean
from fedskew.parts.stages import Method


@register("normclip")
def normclip(clip: Positive = 1.0) -> Method:
    """Norm clipping (2019)

    Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? arXiv:1911.07963, 2019

    Cite: sun2019can
    Use when: single clients must not change much at once
    Equations:
        w <- w + sum_k n_k D_k min(1, clip / |D_k|) / sum_k n_k
    Symbols:
        clip: the greatest length of a client's change
        D_k: change of client k's parameters and batch-norm statistics, as one vector
    Defaults: clip 1 shows the order of magnitude; the paper chooses it for its data
    Deviations:
        The paper adds weak noise, too; dp does that at the clients.
    Cost: the server holds all updates of a round at once
    Travels: as fedavg. The server sees single models: not for secure aggregation
    Lost reply: tolerated
    """
    return method(server=Aggregate(reduce=ClippedMean(clip)))
