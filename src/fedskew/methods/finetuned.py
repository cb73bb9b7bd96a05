"""A closing stage: every client trains the global model further, for itself."""

from __future__ import annotations

from fedskew.methods.registry import AtLeastOne, register
from fedskew.parts.cohorts import Everyone
from fedskew.parts.compose import method, stage
from fedskew.parts.personal import Personal
from fedskew.parts.protocol import Effort
from fedskew.parts.stages import Method


@register("finetuned", baseline=True)
def finetuned(epochs: AtLeastOne | None = None) -> Method:
    """Fine-tuning (2019)

    Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage: Federated Evaluation of On-device Personalization. arXiv
    1910.10252, 2019

    Cite: wang2019federated
    Use when: clients want their own version of the model
    Equations:
        w_k = local work of client k from the last w, once
    Symbols:
        w: the weights after the last round of the method before the '+'; alone, of fedavg
        epochs: the epochs of this work; None: those of a round
    Defaults: epochs None: as many as in a round
    Deviations:
        All weights are trained, with the run's optimizer and cross-entropy, whatever the method before has.
        The work is done after the run's rounds, as one more that does not count.
    Cost: as the method, and one more round of all clients
    Travels: as the method; at the end the weights down, and no weights up
    Lost reply: tolerated: a client whose reply is lost has the global model
    """
    own = stage(
        personal=Personal("all"),
        cohort=Everyone(),
        effort=Effort(epochs=epochs),
        rounds=1,
        counted=False,
        closing=True,
    )
    return method(stage(), own)
