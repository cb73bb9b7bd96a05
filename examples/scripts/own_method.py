"""Write a method in one file, check it against FedAvg, and compare it.

    python examples/scripts/own_method.py

The method rewards networks that stay unsure: it takes `weight` times the entropy of the predictions off the loss
(Pereyra et al. 2017). Under label skew a client sees few classes, and soon is too sure that there are no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

import fedskew
from fedskew.functional import entropy
from fedskew.methods.registry import Weight, register
from fedskew.parts.compose import method
from fedskew.parts.protocol import Term
from fedskew.parts.stages import Method
from fedskew.parts.views import ForwardPass


@dataclass(frozen=True)
class EntropyBonus(Term):
    weight: float

    def loss(self, out: ForwardPass, scratch: Any) -> Tensor:
        return -self.weight * entropy(out.logits)


@register("fedunsure")
def fedunsure(weight: Weight = 0.1) -> Method:
    """FedUnsure (2026)

    Nobody: An Example. 2026

    Use when: you want an example
    Equations:
        L_k = CE - weight * H(softmax(z))
    Symbols:
        weight: strength
        H: the entropy, averaged over the batch
    Defaults: weight 0.1, made up
    Cost: one pass over the logits
    Travels: as fedavg
    Lost reply: tolerated
    """
    return method(terms=(EntropyBonus(weight),))


def main() -> fedskew.Comparison:
    """Check that weight zero is FedAvg, then compare three methods on the same data."""
    options = {"dataset": "digits", "partition": "dirichlet:0.1", "clients": 5, "rounds": 3}
    plain, zero = fedskew.run("fedavg", **options), fedskew.run(fedunsure(weight=0.0), **options)
    assert zero.end["weights_sha256"] == plain.end["weights_sha256"]
    comparison = fedskew.compare(["fedavg", "fedunsure", "fedunsure+prox"], **options)
    print(comparison.summary())
    return comparison


if __name__ == "__main__":
    main()
