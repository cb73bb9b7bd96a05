"""All data in one place."""

from __future__ import annotations

from dataclasses import replace

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method


@register("centralized", baseline=True)
def centralized() -> Method:
    """Centralized training (2017)

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017

    Cite: mcmahan2017communication
    Use when: you ask what separate data cost
    Equations:
        w <- w - lr grad L(w), on batches of all clients' samples together
    Symbols:
        w: the weights
        L: the mean loss of a batch
    Defaults: no parameter of its own
    Deviations:
        A round has as many steps as its clients would take together, so that the budget is that of fedavg.
        Wrong labels stay as the clients have them.
        The optimizer is fresh in every round, as in fedavg.
    Cost: as all clients together, one after another: a round cannot be shared among workers
    Travels: all samples, so it is for simulations only; a federation refuses it
    Lost reply: tolerated: the round is lost
    """
    return replace(method(), pooled=True)
