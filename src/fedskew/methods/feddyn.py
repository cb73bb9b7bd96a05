"""Averaging of clients whose regularizers follow their own past."""

from __future__ import annotations

from fedskew.methods.registry import Positive, register
from fedskew.parts.compose import method
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.steps import AddPastDrift
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.stages import Method
from fedskew.parts.terms.dynamic import DynamicRegularizer


@register("feddyn")
def feddyn(alpha: Positive = 0.01) -> Method:
    """FedDyn (2021)

    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization. ICLR 2021

    Cite: acar2021federated
    Use when: clients drift and take part often
    Equations:
        L_k = CE - <g_k, w_k> + alpha/2 ||w_k - w||^2
        g_k <- g_k - alpha (w_k - w)
        h <- h - alpha/K sum_S (w_k - w)
        w <- mean_S(w_k) - h/alpha
    Symbols:
        alpha: strength of the regularizer
        g_k: what client k remembers, its gradient where it ended last; zero at the start
        h: what the server remembers; zero at the start
        K, S: all clients, and those of the round
    Defaults: alpha 0.01: the paper's for CIFAR-10, from memory; it tries 0.1, 0.01 and 0.001
    Deviations:
        D70: one alpha for all clients, as printed; the authors' code divides it by a client's share of the samples.
        The server's h/alpha is stored in place of h, and moves by |S|/K times the mean change, which is the same.
        So alpha does not reach the server: as it goes to 0, clients are those of fedavg, while the server still adds up
            all past changes. The limit is not fedavg.
        Both act on trained parameters only; batch-norm statistics are averaged plainly.
    Cost: one elementwise pass over the weights per step; one model-sized memory on each client and on the server
    Travels: as fedavg
    Lost reply: exact: the client forgets what the server never absorbed
    """
    return method(terms=(DynamicRegularizer(alpha),), server=Aggregate(weigh=Uniform(), step=AddPastDrift()))
