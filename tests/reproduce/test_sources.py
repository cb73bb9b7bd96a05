"""Every hyper-parameter of every row of the papers' tables comes from somewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedskew.methods import registry
from fedskew.reproduce import presets
from fedskew.reproduce.schema import Hyper

ROWS = {(file, row): hyper for file in presets.FILES for row, hyper in presets.read(file).methods.items()}

#: Switches that presets leave alone, for the ledger says which reading is taken: the row or the method's card cites it.
READINGS = {
    "fedcurv.fisher": "D61",
    "fedexp.reported": "D62",
    "fedrs.mode": "D34",
    "fedgf.T_D": "D24",
    "fedlmd.majority": "D10",
    "fedlmd-tf.majority": "D10",
    "fedvls.form": "D3",
    **{f"{name}.statistics": "D33" for name in ("fedkd", "fedekd", "feddkd", "fedntd", "fedlmd", "fedvls")},
    "fedlsr.lam_e": "D58",
    "fednoro.view": "D45",
    "fednoro.component": "D46",
    "fednoro.covariance": "D47",
    "fednoro.ramp_end": "D49",
    "fednoro.kd_logits": "D50",
    "fednoro.distance": "D51",
    "fednoro.buffers": "D51",
}
#: Parts of a method that only its ablations leave out, and what no paper has and is off.
LEFT_ALONE = {
    "moon.head": "FedLMD's code has no projection",
    "fedlmd.teacher_from": "figure 8 alone begins without a teacher",
    "fedgf.rho_g": "is rho",
    "fedlsr.sigma": "of inputs that are not images",
    "fednoro.distil": "table 4 leaves it out",
    "fednoro.drop": "a row of table 4",
    "fednoro.la": "table 3 leaves it out",
    "fednoro.soft": "ours, and off",
    "fednoro.redetect": "ours, and off but for figure 4",
    "fednoro.epsilon": "ours, and off",
    "fednoro.joint_noise": "ours, and off",
}
#: What does nothing as long as another parameter has this value.
IDLE = {
    ("moon", "head", None): {"hidden"},
    ("fedlmd", "teacher_from", 0): {"free_beta", "free_tau"},
    ("fedgf", "T_D", None): {"W"},
    ("fedvls", "lam", 0.0): {"statistics"},
    ("fedvls", "gamma", 0.0): {"form"},
    ("fednoro", "distil", False): {"a", "T", "ramp_end", "kd_logits"},
    ("fednoro", "distance", None): {"buffers", "soft"},
    ("fednoro", "drop", True): {"a", "T", "ramp_end", "kd_logits", "distil", "distance", "buffers", "soft"},
    ("fednoro", "redetect", None): {"patience"},
    ("fednoro", "epsilon", None): {"delta", "clip"},
}


def pieces(row: str, hyper: Hyper) -> list[tuple[registry.RegisteredMethod, dict[str, Any]]]:
    """The registered methods that a row is made of, each with what the row gives to it."""
    if hyper.is_ is None:
        of_the_run = presets._OF_THE_RUN
        return [(registry.entry(row), {name: hyper.usual.get(name) for name in hyper.source.keys() - of_the_run})]
    return registry.parse(hyper.is_.format(**hyper.usual))


def left_to_defaults(row: str, hyper: Hyper) -> set[str]:
    """The parameters that count in a row and are not written there, each as method.parameter."""
    found = set()
    for entry, given in pieces(row, hyper):
        values, method = entry.defaults | given, entry.alias_of or entry.name
        idle = {name for (one, other, value), names in IDLE.items() for name in names
                if one == method and values[other] == value}  # fmt: skip
        found |= {f"{method}.{name}" for name in entry.defaults.keys() - given.keys() - idle}
    return found


@pytest.mark.parametrize(("file", "row"), ROWS)
def test_every_parameter_of_a_row_has_a_source(file: str, row: str) -> None:
    """Values that are written have one, or they could not be read."""
    hyper = ROWS[file, row]
    left = left_to_defaults(row, hyper)
    assert left <= READINGS.keys() | LEFT_ALONE.keys()
    cards = " ".join(line for entry, _ in pieces(row, hyper) for line in registry.build(entry.name).card.deviations)
    cited = {*hyper.ledger, *re.findall(r"\bD\d+\b", cards)}
    assert {READINGS[name] for name in left & READINGS.keys()} <= cited


def test_the_lists_have_nothing_that_no_row_needs() -> None:
    left = set().union(*(left_to_defaults(row, hyper) for (_, row), hyper in ROWS.items()))
    assert left == READINGS.keys() | LEFT_ALONE.keys()
    assert not READINGS.keys() & LEFT_ALONE.keys()


@pytest.mark.parametrize(("file", "row"), [key for key, hyper in ROWS.items() if hyper.is_])
def test_what_a_row_writes_is_what_it_runs(file: str, row: str) -> None:
    """A value beside an expression gets into it; what the expression itself says makes the row another method."""
    hyper = ROWS[file, row]
    assert hyper.is_ is not None
    fields = set(re.findall(r"\{(\w+)(?:!r)?\}", hyper.is_))
    assert fields == hyper.source.keys() - presets._OF_THE_RUN
    fixed = re.findall(r"(\w+)=(?!\{)", hyper.is_)
    for entry, given in pieces(row, hyper):
        assert not [name for name in fixed if name in given and given[name] == entry.defaults[name]]


def test_what_stands_still_in_fednoro_is_no_part_of_it() -> None:
    """Return the entries of the lists above that follow from a method's parts."""
    others = {"a": 0.5, "T": 0.5, "ramp_end": 7, "kd_logits": "'raw'", "distil": False, "distance": None,
              "buffers": False, "soft": True}  # fmt: skip
    for switch in (("distil", False), ("distance", None), ("drop", True)):
        fixed = f"{switch[0]}={switch[1]}"
        usual = registry.build(f"fednoro({fixed})").stages
        for name in IDLE["fednoro", *switch]:
            assert registry.build(f"fednoro({fixed}, {name}={others[name]})").stages == usual, (switch, name)
    whole = registry.build("fednoro").stages
    assert all(registry.build(f"fednoro({name}={value})").stages != whole for name, value in others.items())


def test_what_neither_paper_nor_code_says_is_assumed() -> None:
    """FedVLS prints beta alone of FedNTD and FedLMD; FedNoRo and FNBench do not say how they ran RHFL, nor FedNoRo
    FedLSR on its images. FedLC is no method of NIID-Bench."""
    assert ROWS["fedvls", "fedlmd"].usual == ROWS["fedvls", "fedntd"].usual == {"beta": 0.1, "tau": 1.0}
    assumed = {
        (file, row, name)
        for (file, row), hyper in ROWS.items()
        for name, source in hyper.source.items()
        if source == "assumed" and hyper.is_ is None
    }
    assert assumed == {
        *(("fedlmd", row, name) for row in ("fedkd", "fedntd-tf") for name in ("beta", "tau")),
        *(("fedvls", row, "tau") for row in ("fedntd", "fedlmd")),
        *(("fedvls", row, name) for row in ("fedkd", "fedekd") for name in ("beta", "tau")),
        *(("fedvls", "feddkd", name) for name in ("gamma", "alpha", "beta", "tau")),
        *((file, "rhfl", name) for file in ("fednoro", "fnbench") for name in ("safe", "size_weighted")),
        ("fnbench", "rhfl", "eta"),
        ("niid-bench", "fedlc", "tau"),
        *(("fednoro", "fedlsr", name) for name in ("degrees", "flip")),
    }
