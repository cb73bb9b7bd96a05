"""Averaging of clients whose predictions agree on two views of a sample."""

from __future__ import annotations

from typing import Literal

from fedskew.methods.registry import Count, Weight, register
from fedskew.parts.compose import method
from fedskew.parts.inputs import SecondView
from fedskew.parts.stages import Method
from fedskew.parts.terms.two_views import SelfRegularized


@register("fedlsr")
def fedlsr(
    gamma: Weight = 0.4,
    lam_e: Weight | None = None,
    t_w: Count | None = None,
    variant: Literal["code", "paper"] = "code",
    degrees: Weight = 30.0,
    flip: bool = True,
    sigma: Weight = 0.1,
) -> Method:
    """FedLSR (2022)

    Jiang, Sun, Wang, Liu: Towards Federated Learning against Noisy Labels via Local Self-Regularization. CIKM 2022

    Cite: jiang2022towards
    Use when: every client may have wrong labels
    Equations:
        L_k = L_cls + gamma min(t / t_w, 1) JS(q, q') + lam_e H
        p = u softmax(z) + (1 - u) softmax(z'), u ~ Beta(1, 1) per batch
        p_s = p^2 / sum p^2
        q = softmax(3 z), clipped to [1e-6, 1]
        paper: L_cls = -log p_s(y), H = (H(q) + H(q'))/2
        code: L_cls = CE(p_s, y), JS / C, H = H(softmax(q))
    Symbols:
        gamma: weight of the divergence between the views
        lam_e: weight of the entropy; None: 0.6 in the code's variant, 0 in the paper's
        t_w: rounds until gamma has its full weight; None: a fifth of the run
        variant: as in the released 'code', with its second softmax, or as in the 'paper'
        degrees: images are turned by up to so much for the second view
        flip: and every other one is mirrored left to right
        sigma: deviation of the noise that is the second view of inputs other than images
        z, z': logits of the two views
    Defaults: gamma 0.4, lam_e 0.6: the authors' code; t_w: FedNoRo's 20 of 100 and 60 of 300 rounds
    Deviations:
        D57: the default is the released code, whose probabilities pass through a second softmax in L_cls and in H,
            whose JS is a mean over classes too, and whose H takes the first view twice.
        D58: the authors say that the entropy belongs to FedLSR+, yet their code has it on; so has our default.
        The second view is a mirrored image turned by up to 30 degrees: the authors have color jitter for CIFAR and
            rotation alone for MNIST (flip=False), and FedNoRo does not say what it did to medical images.
        Inputs that are not images get Gaussian noise instead; text has no second view, and JS is 0 but for dropout.
        float32 throughout; the authors' half precision has no gradient scaler.
    Cost: one more forward and backward pass per step
    Travels: as fedavg
    Lost reply: tolerated
    """
    if lam_e is None:
        lam_e = 0.6 if variant == "code" else 0.0
    return method(base=SelfRegularized(gamma, lam_e, t_w, variant), inputs=(SecondView(degrees, flip, sigma),))
