"""Every client alone."""

from __future__ import annotations

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.personal import Personal
from fedskew.parts.stages import Method


@register("local", baseline=True)
def local() -> Method:
    """Local training (2020)

    Yu, Bagdasaryan, Shmatikov: Salvaging Federated Learning by Local Adaptation. arXiv 2002.04758, 2020

    Cite: yu2020salvaging
    Use when: you ask whether clients gain by federating
    Equations:
        w_k <- local work of client k from its own w_k; nothing is averaged
    Symbols:
        w_k: the weights of client k
    Defaults: no parameter of its own
    Deviations:
        A client works in the rounds in which it would be asked, with the same epochs, batches and learning rates. So
            it takes as many steps as in fedavg.
        The optimizer is fresh in every round, as in fedavg.
    Cost: as fedavg
    Travels: the initial weights down, once; then nothing but the number of samples, the loss and scores
    Lost reply: tolerated: the client forgets the round
    """
    return method(personal=Personal("all"))
