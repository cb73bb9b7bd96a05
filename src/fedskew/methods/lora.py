"""Low-rank adapters travel; the network that they adapt stays at the clients."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, Positive, register
from fedskew.parts.adapters import TRAINED, LowRankAdapters
from fedskew.parts.compose import method
from fedskew.parts.personal import untrained
from fedskew.parts.stages import Method


@register("lora")
def lora(rank: AtLeastOne = 8, alpha: Positive = 16.0) -> Method:
    """LoRA (2022)

    Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022

    Cite: hu2022lora
    Use when: the network is large and pretrained
    Equations:
        layer(x) = W x + b + alpha/rank U D x, for every linear layer but the head;  U is first 0
        U, D, head <- sum_k n_k (U_k, D_k, head_k) / sum_k n_k;  W and b are never trained
    Symbols:
        rank: rows of D and columns of U
        alpha: strength of the adapters
    Defaults: rank 8, alpha 16: usual values
    Deviations:
        D76: U and D are averaged apart, so their product is not the mean of the clients' products.
        The head is trained whole, as it is new to the task. Attention modules that keep their weights in one tensor get
            no adapters inside.
        Layers that are not trained behave as in evaluation: batch norm has its first statistics, dropout is off.
    Cost: one more small product per linear layer
    Travels: adapters and head both ways; the network down once, with a client's first round
    Lost reply: tolerated: a client that never answered receives the network again
    """
    return method(setups=(LowRankAdapters(rank, alpha),), train=TRAINED, personal=untrained(TRAINED))
