"""The public API: its examples run, type checkers see it, and it is imported at once."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedskew
from fedskew import api
from fedskew.core.errors import UserError
from fedskew.experiment import configure

SOURCE = Path(fedskew.__file__).parents[1]
QUICK = {"clients": 3, "rounds": 2, "local_epochs": 1, "engine": "inline"}

#: what a user writes, with everything typed
SCRIPT = """
import fedskew

result = fedskew.run("fedprox(mu=0.1)", dataset="digits", partition="dirichlet:0.1", rounds=2, local_epochs=1)
accuracy: float | None = result.metrics[-1]["accuracy"]
last: float | None = result.last
comparison: fedskew.Comparison = fedskew.compare(["fedavg", "fedvls"], seeds=2, clients=4, settings=["local.lr=0.1"])
for row in comparison.table():
    print(row["method"], row["last"])
noisy: list[int] = fedskew.detect("runs/noise", seeds=9).shown.noisy
print(accuracy, last, noisy, result.summary(), [each.last for each in comparison.results["fedavg"]])
"""
WRONG = """
import fedskew

fedskew.run("fedavg", learning_rate=0.1)
fedskew.run("fedavg", rounds="2")
fedskew.compair(["fedavg"])
"""


@pytest.mark.parametrize("name", api.__all__)
def test_the_example_of_each_function_runs(name: str) -> None:
    runner = doctest.DocTestRunner()
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(api, name), name, globs={})
    assert runner.run(example).attempted and not runner.failures


def test_the_public_names_are_seen_and_found() -> None:
    assert set(fedskew.__all__) <= set(dir(fedskew))
    for name in fedskew.__all__:
        assert getattr(fedskew, name) is not None
    assert fedskew.run.__name__ == "run" and fedskew.review.__name__ == "review"


def test_the_page_has_every_function() -> None:
    page = (SOURCE.parent / "docs" / "reference" / "api.md").read_text()
    assert [name for name in api.__all__ if f"::: fedskew.api.{name}\n" not in page] == []


def test_fedskew_is_imported_at_once() -> None:
    program = (
        "import time; began = time.process_time(); import fedskew, sys; assert time.process_time() - began < 0.3; "
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": str(SOURCE)})


@pytest.mark.slow
def test_a_typed_script_passes_mypy_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    for name, text in (("right.py", SCRIPT), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    environment = os.environ | {"MYPYPATH": str(SOURCE)}
    config = str(SOURCE.parent / "pyproject.toml")
    # as for an installed package, whose own lines mypy does not judge; --strict asks more of them than the project does
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--config-file", config]
    checked = [
        subprocess.run([*command, str(tmp_path / name)], capture_output=True, text=True, env=environment, cwd=tmp_path)
        for name in ("right.py", "wrong.py")
    ]
    assert checked[0].returncode == 0, checked[0].stdout
    assert 'Unexpected keyword argument "learning_rate"' in checked[1].stdout
    assert 'has incompatible type "str"; expected "int | None"' in checked[1].stdout
    assert 'Module has no attribute "compair"' in checked[1].stdout


def test_a_result_shows_itself(tmp_path: Path) -> None:
    result = fedskew.run("fedavg", evaluate_clients=True, **QUICK)
    assert repr(result).startswith("Result(fedavg on digits, seed 0: 2 rounds, best ") and len(repr(result)) < 200
    assert [line["round"] for line in result.metrics] == [1, 2]
    assert result.summary().startswith("best ") and "weights_sha256" in result.summary()
    assert "folder" not in result.summary()  # nothing was written
    assert result._repr_html_().startswith("<table><tr><th></th><th>fedavg on digits</th></tr><tr><td>best</td>")
    assert len(result.plot(tmp_path / "run.png").axes) >= 1 and (tmp_path / "run.png").exists()


def test_a_comparison_shows_itself(tmp_path: Path) -> None:
    comparison = fedskew.compare(["FedAvg", "fedprox"], **QUICK)
    assert list(comparison.results) == ["fedavg", "fedprox"]
    assert repr(comparison) == "Comparison(fedavg, fedprox: 2 runs)"
    assert str(comparison) == comparison.summary()
    assert [[line.round for line in seed] for seed in comparison.metrics["fedprox"]] == [[1, 2]]
    assert comparison.metrics["fedavg"] == [comparison.results["fedavg"][0].metrics]
    assert comparison.summary().splitlines()[1].startswith("fedavg ")
    assert "<td>fedprox</td>" in comparison._repr_html_()
    comparison.plot(tmp_path / "both.svg")
    assert (tmp_path / "both.svg").exists()


def test_results_become_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    comparison = fedskew.compare(["fedavg"], **QUICK)
    frame = comparison.to_pandas()
    assert frame[["method", "seed", "round"]].values.tolist() == [["fedavg", 0, 1], ["fedavg", 0, 2]]
    rounds = comparison.results["fedavg"][0].to_pandas()
    assert isinstance(rounds, pandas.DataFrame) and rounds.index.tolist() == [1, 2]


def test_without_pandas_an_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fedskew.run("fedavg", **QUICK)
    monkeypatch.setitem(sys.modules, "pandas", None)  # only now: scikit-learn looks there for itself
    with pytest.raises(UserError, match="Type: pip install pandas"):
        result.to_pandas()


@pytest.mark.parametrize(
    ("keyword", "sentence"),
    [
        ("learning_rate", "there is no keyword 'learning_rate'. Type lr=5."),
        ("optim", "there is no keyword 'optim'. Type optimizer=VALUE."),
        ("partitions", "there is no keyword 'partitions'. Type partition=VALUE."),
        ("mu", "there is no keyword 'mu'. See help(fedskew.run) for all keywords."),
        ("local_epoch", "there is no keyword 'local_epoch'. Type local_epochs=5."),
        ("epochs", "there is no keyword 'epochs'. Type local_epochs=5."),
        ("batch", "there is no keyword 'batch'. Type batch_size=5."),
        ("drop_last", "there is no keyword 'drop_last'. Type settings=['local.drop_last=true']."),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(keyword: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        configure.configure(**{keyword: 5})  # type: ignore[arg-type]
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"settings": "local.lr=1"}, "settings is 'local.lr=1'. Give a list, such as ['local.lr=0.1']."),
        (
            {"callbacks": fedskew.Callback},
            "callbacks is the class Callback. Give a list of fedskew.Callback objects.",
        ),
        ({"callbacks": [3]}, "a callback is 3. Give an object of a class that inherits from fedskew.Callback."),
        ({"progress": "yes"}, "progress is 'yes'. Give True or False."),
        ({"data": ([0], [0], [0])}, "data has 3 parts. Give a path, "),
        (
            {"partition": "dirichlet(0.1)"},
            "partition 'dirichlet(0.1)' is unknown (a parameter follows a colon, as in dirichlet",
        ),
    ],
)
def test_a_wrong_kind_of_value_is_answered_with_the_right_one(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        fedskew.run("fedavg", **QUICK, **options)
    assert str(caught.value).startswith(sentence)


def test_two_arrays_are_not_two_data_sets() -> None:
    with pytest.raises(UserError, match="data has 2 parts"):
        fedskew.run("fedavg", data=(np.zeros((4, 2)), np.zeros(4)))


def test_a_grid_is_a_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Give a list"):
        fedskew.sweep(["fedavg"], grid="lr=0.1,1", out=tmp_path)


def test_a_method_is_known_in_any_case() -> None:
    assert fedskew.configure(method="FedLMD(beta=2)+Prox").method == "fedlmd(beta=2)+prox"
    assert fedskew.configure(settings=["method=FedAvg"]).method == "fedavg"
