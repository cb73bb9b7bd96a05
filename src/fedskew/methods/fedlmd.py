"""Averaging of clients that distil the labels they have little of."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedskew.core.types import Statistics
from fedskew.methods.registry import Count, Positive, Weight, register
from fedskew.parts.compose import method, stage
from fedskew.parts.stages import Method
from fedskew.parts.terms.distillation import LMD

Majority = Literal["mean_all", "mean_present"]


@register("fedlmd")
def fedlmd(
    beta: Weight = 1.0,
    tau: Positive = 1.0,
    teacher_from: Count = 0,
    majority: Majority = "mean_all",
    statistics: Statistics = "running",
    free_beta: Weight | None = None,
    free_tau: Positive | None = None,
) -> Method:
    r"""FedLMD (2023)

    Lu, Li, Bao, Wang, Qian, Ge: Federated Learning with Label-Masking Distillation. ACM MM 2023

    Cite: lu2023federated
    Use when: label skew is strong and minority classes suffer
    Equations:
        L_k = CE + beta tau^2 KL(softmax_A(z^g/tau) || softmax_B(z/tau)), A = Min \ {y}, B = all \ {y} (their Eqs. 3-7)
        until round teacher_from the teacher is uniform on A (Eq. 8)
    Symbols:
        beta: weight of the distillation
        tau: temperature
        teacher_from: first round with a teacher; the rounds before it are those of fedlmd-tf
        free_beta: beta of the rounds before teacher_from; None: the same
        free_tau: tau of the rounds before teacher_from; None: the same
        majority: which labels are not in Min: 'mean_all' n_c > n/C, or 'mean_present' n_c >= n/#present
        statistics: what the teacher's batch norm goes by: 'running' averages or those of the 'batch'
        Min: the client's minority labels, vacant ones included
    Defaults: beta 1, tau 1: table 6, which has 2 and 3 for CIFAR-10 with alpha 0.05 and CIFAR-100 with shards of 10;
        FedVLS' table 10 has beta 0.1
    Deviations:
        D10: majority is n_c > n/C, as released. The printed rule, majority='mean_present', makes every class of a
            balanced client a majority one and leaves nothing to distil.
        D11, D12: the target is masked in teacher and student, as released; Eq. 3 keeps a minority target in the
            teacher, against a student probability of zero.
        D14: tau^2 is included, as released; table 6 was tuned with it.
        D9: weighted mean, as released and as the caption of figure 3 says; algorithm 1 prints the plain one.
        A sample whose Min \ {y} is empty distils nothing; the released code gives it a loss of hundreds.
        D33: the teacher evaluates with running statistics unless statistics='batch'.
    Cost: one more forward pass per step, from round teacher_from on
    Travels: as fedavg
    Lost reply: tolerated
    """
    taught = LMD(beta, tau, True, majority, statistics)
    free = replace(
        taught,
        teacher=False,
        beta=beta if free_beta is None else free_beta,
        tau=tau if free_tau is None else free_tau,
    )
    before = (stage(terms=(free,), rounds=teacher_from),) if teacher_from else ()
    return method(*before, stage(terms=(taught,)))


@register("fedlmd-tf")
def fedlmd_tf(beta: Weight = 1.0, tau: Positive = 1.0, majority: Majority = "mean_all") -> Method:
    r"""FedLMD-Tf (2023)

    Lu, Li, Bao, Wang, Qian, Ge: Federated Learning with Label-Masking Distillation. ACM MM 2023

    Cite: lu2023federated
    Use when: as fedlmd, without the cost of a teacher
    Equations:
        L_k = CE + beta tau^2 KL(uniform on A || softmax_B(z/tau)), A = Min \ {y}, B = all \ {y} (Eq. 8)
    Symbols:
        beta: weight of the distillation
        tau: temperature
        majority: which labels are not in Min: 'mean_all' n_c > n/C, or 'mean_present' n_c >= n/#present
        Min: the client's minority labels, vacant ones included
    Defaults: beta 1, tau 1: the released configuration; the paper finds that a larger tau helps, a larger beta hurts
    Deviations:
        D13: the teacher is 1/#(Min \ {y}). Eq. 8 counts y too; the released code divides by a number that depends on
            the batch size and cannot run.
        D10: majority is n_c > n/C, as released. The printed rule, majority='mean_present', makes every class of a
            balanced client a majority one and leaves nothing to distil.
        D11, D12: the target is masked in teacher and student, as released; Eq. 3 keeps a minority target in the
            teacher, against a student probability of zero.
        D14: tau^2 is included, as released; table 6 was tuned with it.
        D9: weighted mean, as released and as the caption of figure 3 says; algorithm 1 prints the plain one.
        A sample whose Min \ {y} is empty distils nothing; the released code gives it a loss of hundreds.
    Cost: as fedavg
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(LMD(beta, tau, teacher=False, majority=majority),))
