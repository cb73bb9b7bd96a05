"""A model of each client's own beside the global one, pulled towards it."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.personal import Personal
from fedskew.parts.protocol import Phase
from fedskew.parts.stages import Method
from fedskew.parts.terms.proximal import PersonalPull


@register("ditto")
def ditto(lam: Weight = 0.1, epochs: AtLeastOne | None = None) -> Method:
    """Ditto (2021)

    Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021

    Cite: li2021ditto
    Use when: clients want own models and a global one
    Equations:
        w_k <- local work from w;  w <- sum_k n_k w_k / sum_k n_k
        v_k <- local work on F_k(v) + lam/2 ||v - w||^2, from the client's own v_k
    Symbols:
        w: the global model, as received
        v_k: the own model of client k, which is first w
        lam: strength of the pull to w; 0: each client alone
        epochs: epochs on v_k; None: those of a round
    Defaults: lam 0.1: in the middle of the paper's grid of 0.05, 0.1 and 0.2; epochs None: as many as for w
    Deviations:
        D74: v_k sees the same batches as w_k, and the run's optimizer; the method before or after the '+' changes how w
            is trained, and v_k has its inputs and base loss only.
    Cost: twice that of fedavg with as many epochs; one model-sized memory on each client
    Travels: as fedavg; no v_k
    Lost reply: tolerated: the client forgets the round, its v_k with it
    """
    own = Phase(epochs=epochs, own=True, terms=(PersonalPull(lam),))
    return method(personal=Personal("all", beside=True), phases=(Phase(), own))
