"""What each client-loss method is made of, and what it refuses."""

from __future__ import annotations

import pytest

from fedskew.core.errors import UserError
from fedskew.methods import registry
from fedskew.parts.protocol import Term
from fedskew.parts.terms.contrast import ModelContrast
from fedskew.parts.terms.cross_entropy import CrossEntropy
from fedskew.parts.terms.curvature import Curvature
from fedskew.parts.terms.distillation import DKD, EKD, KD, LMD, NTD, VacantDistillation
from fedskew.parts.terms.features import Manifold
from fedskew.parts.terms.margins import (
    CalibratedCrossEntropy,
    LogitSuppression,
    MarginCrossEntropy,
    RestrictedCrossEntropy,
    SmoothedCrossEntropy,
)
from fedskew.parts.terms.prototypes import Prototypes
from fedskew.parts.terms.proximal import Proximal

CE, CAL = CrossEntropy(), CalibratedCrossEntropy(1e-9)
VLS = (LogitSuppression(0.005, "code"), VacantDistillation(0.1))

# the defaults are those of the house, part 7.2
MADE_OF: dict[str, tuple[Term, tuple[Term, ...]]] = {
    "fedavg-ls": (SmoothedCrossEntropy(0.1), ()),
    "fedrs": (RestrictedCrossEntropy(0.5, "binary"), ()),
    "fedlc": (MarginCrossEntropy(1.0), ()),
    "fedcal": (CAL, ()),
    "fedkd": (CE, (KD(1, 1),)),
    "fedekd": (CE, (EKD(0.1, 1),)),
    "feddkd": (CE, (DKD(0.1, 1, 8, 1),)),
    "fedntd": (CE, (NTD(1, 1),)),
    "fedntd-tf": (CE, (NTD(1, 1, teacher=False),)),
    "fedlmd": (CE, (LMD(1, 1),)),
    "fedlmd-tf": (CE, (LMD(1, 1, teacher=False),)),
    "feded": (CAL, VLS),
    "fedvls": (CAL, VLS),
    "vls": (CAL, VLS),
    "fedmr": (CE, (Manifold(0.01),)),
    "moon": (CE, (ModelContrast(1, 0.5),)),
    "fpl": (CE, (Prototypes(0.02),)),
    "fedcurv": (CE, (Curvature(1, 500, "batch", 50),)),
    # combinations: terms add up, the one base that is not plain cross-entropy stays
    "fedlmd+prox": (CE, (LMD(1, 1), Proximal(0.01))),
    "fpl+fedvls": (CAL, (VLS[0], Prototypes(0.02), VLS[1])),
    "fedlmd+fedlc": (MarginCrossEntropy(1.0), (LMD(1, 1),)),
    "fedlmd(beta=2, tau=3, majority='mean_present')": (CE, (LMD(2, 3, majority="mean_present"),)),
    "fedvls(lam=0.5, gamma=1, form='paper', statistics='batch')": (
        CAL,
        (LogitSuppression(1, "paper"), VacantDistillation(0.5, "batch")),
    ),
}


@pytest.mark.parametrize("expression", MADE_OF)
def test_composition(expression: str) -> None:
    (stage,) = registry.build(expression).stages
    assert (stage.base, stage.terms) == MADE_OF[expression]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (
            "fedlc+fedvls",
            "'fedlc' and 'fedvls' both bring their own base (MarginCrossEntropy and CalibratedCrossEntropy)",
        ),
        ("fedavg-ls+fedcal", "'fedavg-ls' and 'fedcal' both bring their own base"),  # edge 18
        ("fedrs+fedrs(alpha=0.7)", "both bring their own base"),
        ("fedlmd+fedlmd-tf", "has the part LMD twice"),
        ("fedkd+fedkd(beta=2)", "has the part KD twice"),
        ("fedlmd(teacher_from=2)+fedlmd(teacher_from=3)", "both have several stages"),
        ("fedlmd(beta=-1)", "beta is -1"),
        ("fedkd(tau=0)", "tau is 0"),
        ("fedrs(alpha=1.5)", "alpha is 1.5"),
        ("fedvls(form='printed')", "form is 'printed'"),
        ("fedlmd(majority='mean')", "majority is 'mean'"),
        ("fedntd(statistics='none')", "statistics is 'none'"),
        ("fedntd-tf(statistics='batch')", "has no parameter 'statistics'"),
        ("fedcurv(batch=0)", "batch is 0"),
    ],
)
def test_refused_with_one_sentence(expression: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        registry.build(expression)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("fedrs", "D34"),
        ("fedlc", "D30 D36"),
        ("fedcal", "D5 D31 D36"),
        ("fedkd", "D14 D33"),
        ("fedntd", "D14 D22 D33"),
        ("fedlmd", "D9 D10 D11 D12 D14 D33"),
        ("fedlmd-tf", "D9 D10 D11 D12 D13 D14"),
        ("fedvls", "D1 D2 D3 D4 D5 D6 D33 D36"),
        ("feded", "D1 D2 D3 D4 D5 D6 D33 D36"),
        ("fedmr", "D35"),
        ("fedcurv", "D28"),
    ],
)
def test_the_card_names_its_entries_in_the_ledger(name: str, numbers: str) -> None:
    said = " ".join(registry.build(name).card.deviations).replace(",", " ").replace(":", " ").split()
    assert set(numbers.split()) <= set(said)
