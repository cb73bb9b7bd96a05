"""Averaging of clients that learn with a symmetric loss."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.stages import Method
from fedskew.parts.terms.robust import SymmetricCrossEntropy


@register("sce")
def sce(
    alpha: Weight = 0.1, beta: Weight = 1.0, A: Annotated[float, Field(lt=0, allow_inf_nan=False)] = -4.0
) -> Method:
    """SCE (2019)

    Wang, Ma, Chen, Luo, Yi, Bailey: Symmetric Cross Entropy for Robust Learning With Noisy Labels. ICCV 2019

    Cite: wang2019symmetric
    Use when: wrong labels anywhere; only the loss may change
    Equations:
        L_k = alpha CE + beta RCE, RCE = -A sum_{c != y} clip(p_c, 1e-7, 1)
    Symbols:
        alpha: weight of the cross-entropy
        beta: weight of the reverse cross-entropy
        A: what stands for log 0 in the reverse cross-entropy
    Defaults: alpha 0.1, beta 1, A -4: the paper's for CIFAR-10
    Deviations:
        D65: the authors' code clips labels at 1e-4, which is A = -9.21; rhfl has that.
    Cost: none
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(base=SymmetricCrossEntropy(alpha, beta, A))
