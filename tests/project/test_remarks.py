"""What results/remarks.toml says in words is true of the records: computed here again, each share by itself."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from fedskew.reproduce import archive

ROOT = Path(__file__).parents[2]
VERDICTS = ("Reached", "Reached in part", "Not reached", "Not comparable")

Run = list[dict[str, Any]]


@cache
def remarks() -> dict[str, str]:
    return tomllib.loads((ROOT / "results" / "remarks.toml").read_text(encoding="utf-8"))


@cache
def runs() -> list[Run]:
    paths = sorted(path for each in archive.folders(ROOT / "results") for path in each.rglob("record.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def these(data: str, seed: int, rounds: int, **wanted: Any) -> dict[str, Run]:
    """Finished runs on a data set by method; `wanted` are options of the data, or the partition's alpha and s."""
    found = {}
    for run in runs():
        config = run[0]["config"]
        split = {name: config["partition"][name] for name in ("alpha", "s")}
        known = split | config["data"]["options"]
        same = (config["data"]["name"], config["seed"], config["rounds"]) == (data, seed, rounds)
        if same and run[-1]["kind"] == "end" and all(known.get(key) == value for key, value in wanted.items()):
            found[run[0]["method"].split("(")[0]] = run
    return found


def find(data: str, method: str, seed: int, rounds: int, **wanted: Any) -> Run:
    return these(data, seed, rounds, **wanted)[method]


def curve(run: Run) -> list[float]:
    return [100 * line["accuracy"] for line in run if line["kind"] == "round" and line.get("accuracy") is not None]


def best(run: Run) -> float:
    return max(curve(run))


def mnist(method: str, seed: int, alpha: float = 0.05) -> Run:
    return find("mnist", method, seed, 50, alpha=alpha)


def test_every_section_ends_with_whether_it_was_reached() -> None:
    page = (ROOT / "docs" / "results" / "tables.md").read_text(encoding="utf-8")
    sections = [title.partition(",")[0] for title in re.findall(r"^## (.*)$", page, re.MULTILINE)]
    assert set(sections) - {"Other records"} == set(remarks())
    for name, said in remarks().items():
        (verdict,) = re.findall(r"^\*\*([^*]+?)[.:]?\*\*", said.strip())
        assert verdict in VERDICTS, name


# ---- MNIST ----------------------------------------------------------------------------------------------------------


def apart(run: Run) -> tuple[float, float]:
    """Of pairs of classes, the share that no client has twenty of each of; of mistakes, those between such classes."""
    counts, confusion = np.array(run[0]["counts"]), np.array(run[-1]["confusion"])
    pairs = [(a, b) for a, b in combinations(range(10), 2) if not ((counts[:, a] >= 20) & (counts[:, b] >= 20)).any()]
    between = sum(confusion[a, b] + confusion[b, a] for a, b in pairs)
    return len(pairs) / 45, between / (confusion.sum() - np.trace(confusion))


@pytest.mark.parametrize(
    "method, seed, pairs, mistakes",
    [
        ("fedvls", 1, (0.5, 0.65), (0.85, 0.95)),
        ("fedvls", 3, (0.4, 0.5), (0.8, 0.9)),
        ("fedvls", 2, (0.2, 0.3), (0.65, 0.75)),
        ("fedmr", 1, (0.5, 0.65), (0.85, 0.95)),
        ("fedavg", 1, (0.5, 0.65), (0.65, 0.75)),
    ],
)
def test_mistakes_are_between_classes_that_no_client_has_together(
    method: str, seed: int, pairs: tuple[float, float], mistakes: tuple[float, float]
) -> None:
    share, wrong = apart(mnist(method, seed))
    assert pairs[0] < share < pairs[1] and mistakes[0] < wrong < mistakes[1]


def test_with_seed_2_nearly_half_of_the_mistakes_are_fours_taken_for_nines() -> None:
    run = mnist("fedvls", 2)
    confusion = np.array(run[-1]["confusion"])
    assert 0.4 < confusion[4, 9] / (confusion.sum() - np.trace(confusion)) < 0.5
    assert not any(client[4] >= 20 and client[9] >= 20 for client in run[0]["counts"])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_model_of_fedvls_is_below_that_of_fedavg_but_its_clients_know_more_of_what_they_lack(seed: int) -> None:
    assert best(mnist("fedvls", seed)) < best(mnist("fedavg", seed))
    vacant = {
        method: fmean(line["client_vacant"] for line in mnist(method, seed)[-11:-1]) for method in ("fedvls", "fedavg")
    }
    assert vacant["fedvls"] > vacant["fedavg"] + 0.2


@pytest.mark.parametrize("seed", [2, 3])
def test_fedmr_does_not_leave_the_level_of_guessing(seed: int) -> None:
    assert best(mnist("fedmr", seed)) < 15


def test_what_the_test_on_the_pool_adds() -> None:
    printed = {0.5: {"fedavg": 98.96, "fedvls": 99.23}, 0.05: {"fedavg": 94.77, "fedvls": 95.56}}
    pool = {
        (method, alpha): best(find("mnist-pooled", method, 1, 50, alpha=alpha, tested="pool"))
        for method in ("fedavg", "fedvls")
        for alpha in (0.5, 0.05)
    }
    assert abs(pool["fedavg", 0.5] - printed[0.5]["fedavg"]) < 0.1
    assert 0.25 < printed[0.5]["fedvls"] - pool["fedvls", 0.5] < 0.4
    assert pool["fedvls", 0.5] < pool["fedavg", 0.5]
    assert abs(pool["fedavg", 0.05] - printed[0.05]["fedavg"]) < 0.25
    others = {
        method: best(find("mnist-pooled", method, 1, 50, alpha=0.05, tested=None)) for method in ("fedavg", "fedvls")
    }
    assert 0.4 < pool["fedavg", 0.05] - others["fedavg"] < 0.6
    assert 0 < pool["fedvls", 0.05] - others["fedvls"] < 1
    assert printed[0.05]["fedvls"] - pool["fedvls", 0.05] > 4


# ---- CIFAR-10 -------------------------------------------------------------------------------------------------------


@cache
def cifar10() -> dict[str, np.ndarray]:
    return {name: np.array(curve(find("cifar10", name, 2022, 200))) for name in ("fedavg", "fedkd", "fedntd", "fedlmd")}


def test_accuracy_swings_as_much_as_neighbors_differ() -> None:
    late = {name: values[100:] for name, values in cifar10().items()}
    swings = [np.abs(np.diff(values)) for values in late.values()]
    assert all(3.5 < each.mean() < 6 for each in swings) and max(each.max() for each in swings) > 20
    means = [values.mean() for values in late.values()]
    assert all(3 < gap < 10 for gap in np.diff(means))


def test_fedavgs_best_is_reached_in_fewer_than_a_third_of_its_rounds() -> None:
    for name in ("fedntd", "fedlmd"):
        assert np.argmax(cifar10()[name] >= cifar10()["fedavg"].max()) + 1 < 200 / 3


def test_both_are_above_fedavg_and_fall_with_it_where_it_falls_far() -> None:
    fedavg, fedntd, fedlmd = (cifar10()[name][20:] for name in ("fedavg", "fedntd", "fedlmd"))
    assert min((fedntd - fedavg).mean(), (fedlmd - fedavg).mean()) > 10 and (fedlmd > fedntd).mean() > 0.5
    far = np.diff(fedavg) < -10
    both = (np.diff(fedntd) < 0) & (np.diff(fedlmd) < 0)
    assert both[far].mean() > 0.75


# ---- AG News, CIFAR-10N ---------------------------------------------------------------------------------------------

DISTIL = {"fedntd", "fedlmd", "fedvls"}


def agnews(**split: Any) -> dict[str, list[float]]:
    found = {name: curve(run) for name, run in these("ag-news", 1, 30, **split).items()}
    assert len(found) >= 8 and set(found) >= DISTIL
    return found


def test_methods_that_distil_lead_where_clients_have_two_classes() -> None:
    curves = agnews(s=2)
    bests = {name: max(values) for name, values in curves.items()}
    last = {name: fmean(values[-10:]) for name, values in curves.items()}
    first, *_ = order = sorted(bests, key=bests.__getitem__, reverse=True)
    assert set(order[:3]) == DISTIL and order[2] == "fedvls" and bests["fedvls"] - bests[order[3]] > 5
    assert max(last, key=last.__getitem__) == "fedvls" and first != "fedvls"


def test_fedvls_leads_with_dirichlet_skew() -> None:
    mild = {name: max(values) for name, values in agnews(alpha=0.1).items()}
    others = sorted(value for name, value in mild.items() if name != "fedvls")
    assert mild["fedvls"] - others[-1] > others[-1] - others[0]
    curves = agnews(alpha=0.05)
    bests = sorted(curves, key=lambda name: max(curves[name]), reverse=True)
    assert bests[0] == "fedvls" and set(bests[1:3]) == {"fedlmd", "fedntd"}
    last = {name: fmean(values[-10:]) for name, values in curves.items()}
    assert abs(last["fedprox"] - last["fedlmd"]) < 1


def test_wrong_labels_of_people_are_hardly_learned_yet() -> None:
    found = [run for run in runs() if run[0]["config"]["data"]["name"] == "cifar10" and run[-1].get("memorization")]
    assert len(found) == 3
    for run in found:
        stated = run[-1]["memorization"]
        assert 0.4 < stated["flipped_true"] < 0.6 and 0.1 < stated["flipped_observed"] < 0.18
