"""Averaging of clients that learn with a loss between cross-entropy and absolute error."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedskew.methods.registry import register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.robust import GeneralizedCrossEntropy


@register("gce")
def gce(q: Annotated[float, Field(gt=0, le=1)] = 0.7) -> Method:
    """GCE (2018)

    Zhang, Sabuncu: Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels. NeurIPS 2018

    Cite: zhang2018generalized
    Use when: wrong labels anywhere; one parameter to tune
    Equations:
        L_k = (1 - p_y^q) / q
    Symbols:
        q: 1 is the absolute error, which tolerates most and learns slowest; towards 0 it is the cross-entropy
    Defaults: q 0.7, the paper's
    Deviations:
        The paper's second loss, which leaves out samples whose p_y is below a threshold, is not here.
    Cost: none
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(base=GeneralizedCrossEntropy(q))
