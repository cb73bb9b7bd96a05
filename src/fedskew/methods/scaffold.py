"""Control variates against client drift."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.corrections import ControlVariate
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.weigh import Samples, Uniform
from fedskew.parts.stages import Method


@register("scaffold")
def scaffold(weights: Literal["uniform", "samples", "mixed"] = "uniform") -> Method:
    """SCAFFOLD (2020)

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
    ICML 2020

    Cite: karimireddy2020scaffold
    Use when: clients drift and take part often
    Equations:
        g <- g - c_k + c
        c_k+ = c_k - c + (w - w_k)/(a lr)
        c <- c + sum_S (c_k+ - c_k)/K  (option II)
    Symbols:
        c, c_k: control variates of the server and of client k, zero at the start
        a: effective steps
        weights: what counts by samples: nothing (uniform), model and variates (samples), the model only (mixed)
    Defaults: server rate 1 and plain means from the paper
    Deviations:
        With momentum the steps are counted as a = sum of the momentum's reach, as in the FedNTD code; with plain SGD
            this is the number of steps.
        D29: plain mean for both weights and variates, as the paper; the FedLMD code counts samples in the model and not
            in the variates, which is weights='mixed'.
        Variates cover trained parameters only, not batch-norm statistics.
    Cost: one elementwise addition per step; one model-sized memory on each client and on the server
    Travels: one model-sized tree more in each direction
    Lost reply: exact: the client forgets what the server never absorbed
    """
    variate = ControlVariate(by_samples=weights == "samples")
    mean = Aggregate(weigh=Uniform() if weights == "uniform" else Samples(), statistics="weights")
    return method(corrections=(variate,), server=mean)
