"""Data sets of the papers, trained on from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedskew import api
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.experiment import run as experiment
from tests.data.datasets.test_digits import house_numbers


def every(path: Path, rows: int, to: Path) -> None:
    """Each so manieth line of a file; here no row has two."""
    to.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::rows]))


@pytest.fixture(scope="module")
def news(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("news")
    every(shared_data / "ag_news" / "train_subset.csv", 15, folder / "train.csv")
    every(shared_data / "ag_news" / "test.csv", 10, folder / "test.csv")
    return folder


def wanted(news: Path, **options: Any) -> Any:
    settings = [f"data.dir={news}", "data.options.verify=false", "data.options.length=50", *options.pop("settings", ())]
    flags = {"method": "fedvls", "rounds": 3, "local_epochs": 2, "lr": 0.02, "optimizer": "adam", "engine": "inline"}
    return api.configure(dataset="ag-news", partition="quantity:2", clients=4, settings=settings, **flags | options)


def test_news_under_quantity_skew(news: Path) -> None:
    result = experiment.run(wanted(news))
    vocab = sources.load("ag-news", news, length=50, verify=False).vocab
    assert result.header["model"]["name"] == "fasttext"  # for text nothing else is meant
    # Embedding, hidden layer and head: vocab * 32 + 32 * 33 + 4 * 33.
    assert result.header["model"]["args"] == {"vocab": vocab}
    assert result.header["model"]["parameters"] == vocab * 32 + 1056 + 132
    assert result.last is not None and result.last > 0.4  # by chance 0.25


def test_the_vocabulary_is_only_a_default(news: Path) -> None:
    result = experiment.run(wanted(news, rounds=0, model="fasttext", settings=["model.args.vocab=98635"]))
    # FedVLS's network has 3,157,508 parameters with its vocabulary of 98,635.
    assert result.header["model"]["parameters"] == 3_157_508


def test_a_vocabulary_that_is_too_small(news: Path) -> None:
    with pytest.raises(UserError, match=r"model\.args\.vocab is 10, but the data has \d+ tokens"):
        experiment.run(wanted(news, settings=["model.args.vocab=10"]))


@pytest.mark.parametrize("method", ["fpl", "fpl+fedvls"])
def test_digit_domains(shared_data: Path, tmp_path: Path, method: str) -> None:
    for name in ("mnist", "usps", "svhn"):
        (tmp_path / name).symlink_to(shared_data / name)
    house_numbers(tmp_path / "synthdigits" / "synth_train_32x32.mat", [k % 10 for k in range(3000)])
    house_numbers(tmp_path / "synthdigits" / "synth_test_32x32.mat", [k % 10 for k in range(20)])
    source = sources.load("digits-domains", tmp_path, fraction=0.01, clients_per_domain=2, verify=False)
    config = api.configure(
        method=method,
        partition="natural",
        clients=8,
        model="mlp",
        rounds=2,
        local_epochs=3,
        optimizer="adam",
        lr=0.002,
        batch_size=20,
        engine="inline",
        settings=["model.args.hidden=[32]", "evaluate.every=2"],
    )
    result = experiment.run(config, inputs=experiment.RunInputs(source=source))
    # A hundredth of each digit, rounded: of 5923, 6742, ... in MNIST 59, 67, ..., together 599; so on.
    assert len(source.train) == 599 + 73 + 40 + 30
    assert [line["round"] for line in result.rounds] == [1, 2]
    assert result.last is not None and result.last > 0.2  # by chance 0.1


def bag(classes: int, vocab: int) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(vocab, 4), nn.Linear(4, classes))


def test_own_networks_may_ask_for_the_vocabulary(news: Path) -> None:
    result = experiment.run(wanted(news, rounds=1, local_epochs=1, method="fedavg", model=f"{__name__}:bag"))
    vocab = result.header["model"]["args"]["vocab"]
    assert result.header["model"]["parameters"] == 4 * vocab + 4 * 5
