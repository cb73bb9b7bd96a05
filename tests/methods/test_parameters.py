"""The numbers of a method's expression reach the part that has the golden values, each in its own place."""

from __future__ import annotations

import pytest

from fedskew.methods import registry
from fedskew.parts.adapters import LowRankAdapters
from fedskew.parts.part import Part, with_inner_parts
from fedskew.parts.personal import Personal
from fedskew.parts.servers.calibrate import Calibrate
from fedskew.parts.servers.robust import ClippedMean, GeometricMedian, Krum, Median, TrimmedMean
from fedskew.parts.servers.steps import Adaptive, AddPastDrift
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.terms.dynamic import DynamicRegularizer
from fedskew.parts.terms.features import Decorrelation
from fedskew.parts.terms.proximal import PersonalPull
from fedskew.parts.terms.robust import (
    EarlyLearning,
    GeneralizedCrossEntropy,
    JointOptimization,
    LearnedLabels,
    SymmetricCrossEntropy,
)

PARTS: dict[str, list[Part]] = {
    "fedadam(eta=0.1, beta1=0.2, beta2=0.3, tau=0.4)": [Adaptive("adam", 0.1, 0.2, 0.3, 0.4)],
    "fedyogi(eta=0.1, beta1=0.2, beta2=0.3, tau=0.4)": [Adaptive("yogi", 0.1, 0.2, 0.3, 0.4)],
    "fedadagrad(eta=0.1, beta1=0.2, tau=0.4)": [Adaptive("adagrad", 0.1, 0.2, 0.0, 0.4)],
    "feddyn(alpha=0.3)": [DynamicRegularizer(0.3), AddPastDrift(), Uniform()],
    "feddecorr(beta=0.3)": [Decorrelation(0.3, "code")],
    "feddecorr(form='paper')": [Decorrelation(0.1, "paper")],
    "ccvr(virtual=3, decay=0.3)": [Calibrate(3, 0.3)],
    "fedbn": [Personal("batchnorm")],
    "fedper": [Personal("head")],
    "fedrep": [Personal("head")],
    "ditto(lam=0.3)": [Personal("all", beside=True), PersonalPull(0.3)],
    "fedbabu": [Personal("head")],
    "fedmedian": [Median()],
    "fedtrim(beta=0.3)": [TrimmedMean(0.3)],
    "krum(f=0.3, m=4)": [Krum(0.3, 4)],
    "rfa(R=7, nu=0.3)": [GeometricMedian(7, 0.3)],
    "normclip(clip=0.3)": [ClippedMean(0.3)],
    "fedelc(K=0.1, lam=0.2, alpha=0.3, beta=0.4)": [LearnedLabels(0.1, 0.2, 0.3, 0.4)],
    "fedelr(lam=0.1, beta=0.2)": [EarlyLearning(0.1, 0.2)],
    "jointopt(alpha=0.1, beta=0.2, start=3)": [JointOptimization(0.1, 0.2, 3)],
    "sce(alpha=0.1, beta=0.2, A=-3.0)": [SymmetricCrossEntropy(0.1, 0.2, -3.0)],
    "gce(q=0.3)": [GeneralizedCrossEntropy(0.3)],
    "lora(rank=3, alpha=0.3)": [LowRankAdapters(3, 0.3)],
}


@pytest.mark.parametrize(("expression", "wanted"), PARTS.items())
def test_numbers_are_in_their_places(expression: str, wanted: list[Part]) -> None:
    stages = registry.build(expression).stages
    found = [each for s in stages for part in (*s.parts, *s.setups) for each in with_inner_parts(part)]
    assert not [part for part in wanted if part not in found]


@pytest.mark.parametrize(
    ("method", "defaults"),
    [
        ("sce", SymmetricCrossEntropy(0.1, 1.0, -4.0)),
        ("gce", GeneralizedCrossEntropy(0.7)),
        ("fedelr", EarlyLearning(3.0, 0.7)),
        ("jointopt", JointOptimization(1.2, 0.8, 10)),
        ("fedelc", LearnedLabels(10.0, 1000.0, 0.5, 0.2)),
    ],
)
def test_the_papers_numbers_are_the_defaults(method: str, defaults: Part) -> None:
    assert defaults in registry.build(method).stages[-1].parts
