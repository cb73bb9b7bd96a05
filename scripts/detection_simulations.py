"""Train small federations whose wrong labels are known, for `detection_shares.py`; every line of the result is one.

    FEDSKEW_DATA=DIR python scripts/detection_simulations.py FILE [--part fit|check|unseen] [--from 0] [--to 500]

Each is a real run of fednoro's warm-up and detection. Of every eight federations, six have 3, 4 and 5 sites and one has
6 to 12; half of these are clean, and the others have one noisy site up to half of them. In the eighth most or all of 3
to 10 sites are noisy. Noisy sites have 5 to 60 % wrong labels, by symmetric flips or pair flips. Data are digits,
MNIST, DermaMNIST (HAM10000) or drawn tables, spread evenly or by Dirichlet shares, with 60 to 300 samples a site on
average. In one of five federations the sites' devices differ. `unseen` takes USPS and the four hospitals of heart
disease. A number always gives the same federation; the parts draw from different seeds. Lines that are there are not
made again.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fedskew import api
from fedskew.core import seeds
from fedskew.data import sources
from fedskew.data.partitions import partition as partitions
from fedskew.experiment import run as experiment

KNOWN = ("digits", "mnist", "dermamnist", "tables")
UNSEEN = ("usps", "heart")
SIZES = {"fit": KNOWN, "check": KNOWN, "unseen": UNSEEN}
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


class Samples(NamedTuple):
    """Samples and labels; `sites` are given where the data has its own."""

    x: np.ndarray
    y: np.ndarray
    sites: np.ndarray | None = None


@cache
def real(name: str) -> Samples:
    """Return all training samples of a data set; 28x28 pixels become 14x14, which trains four times as fast."""
    folder = Path(os.environ["FEDSKEW_DATA"])
    if name == "heart":
        return heart(folder / "heart-disease")
    train = sources.load(name, folder).train
    x = train.x
    if x.shape[-1] == 28:
        x = F.avg_pool2d(x.float(), 2).round().to(torch.uint8)
    return Samples(x.numpy(), train.y.numpy())


def heart(folder: Path) -> Samples:
    """Read four hospitals: 13 features, missing ones replaced by the median; diseased or not."""
    rows, sites = [], []
    for number, name in enumerate(HOSPITALS):
        for line in (folder / f"processed.{name}.data").read_text().split():
            rows.append([np.nan if cell == "?" else float(cell) for cell in line.split(",")])
            sites.append(number)
    table = np.array(rows)
    x = table[:, :-1]
    x = np.where(np.isnan(x), np.nanmedian(x, axis=0), x)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return Samples(x.astype(np.float32), (table[:, -1] > 0).astype(np.int64), np.array(sites))


def table(rng: np.random.Generator, samples: int) -> Samples:
    """Draw classes that are mixtures of two normal distributions, 3 to 6 deviations from the middle."""
    classes, features = int(rng.integers(2, 9)), int(rng.integers(8, 25))
    center = rng.normal(size=(classes, 2, features))
    center *= rng.uniform(3, 6) / np.linalg.norm(center, axis=2, keepdims=True)
    y = np.concatenate([np.arange(classes), rng.choice(classes, samples, p=rng.dirichlet(np.full(classes, 3.0)))])
    x = center[y, rng.integers(0, 2, len(y))] + rng.normal(size=(len(y), features))
    return Samples(x.astype(np.float32), y)


def sites_of(rng: np.random.Generator, name: str, clients: int) -> tuple[Samples, Samples, str]:
    """Return training samples with their sites, samples for testing, and how they were spread."""
    if name == "heart":
        found = real(name)
        return found, Samples(found.x[::9], found.y[::9]), "natural"
    wanted = int(clients * np.exp(rng.uniform(np.log(60), np.log(300))))
    if name == "tables":
        x, y, _ = table(rng, wanted + 100)
    else:
        x, y, _ = real(name)
        at = rng.permutation(len(x))[: wanted + 100]
        x, y = x[at], y[at]
    train, test = Samples(x[:-100], y[:-100]), Samples(x[-100:], y[-100:])
    alpha = [None, 0.3, 0.5, 1.0, 3.0][int(rng.integers(5))]
    rule: dict[str, Any] = {"name": "iid"} if alpha is None else {"name": "dirichlet", "alpha": alpha, "min_size": 20}
    parts = partitions.partition(train.y, int(y.max()) + 1, clients, seed=int(rng.integers(2**31)), **rule)
    sites = np.full(len(train.y), -1)
    for site, members in enumerate(parts):
        sites[members] = site
    kept = sites >= 0
    return Samples(train.x[kept], train.y[kept], sites[kept]), test, "iid" if alpha is None else f"dirichlet:{alpha}"


def other_devices(rng: np.random.Generator, train: Samples, clients: int) -> Samples:
    """Give each site its own contrast and brightness."""
    scale, shift = np.exp(rng.normal(0, 0.4, clients)), rng.normal(0, 0.15, clients)
    shape = (-1, *(1,) * (train.x.ndim - 1))
    s, b = scale[train.sites].reshape(shape), shift[train.sites].reshape(shape)
    if train.x.dtype == np.uint8:
        x = np.clip(train.x * s + 255 * b, 0, 255).astype(np.uint8)
    else:
        x = (train.x * s + b).astype(np.float32)
    return Samples(x, train.y, train.sites)


def shares(rng: np.random.Generator, kind: int, clients: int) -> np.ndarray:
    """Return each site's share of wrong labels."""
    if kind == 7:
        noisy = clients if rng.random() < 0.5 else clients - 1
    else:
        noisy = 0 if rng.random() < 0.5 else int(rng.integers(1, clients // 2 + 1))
    wrong = np.zeros(clients)
    wrong[rng.permutation(clients)[:noisy]] = rng.uniform(0.05, 0.6, noisy)
    return wrong


def federation(part: str, number: int) -> dict[str, Any]:
    """Train one federation, and return what its sites report, and the truth."""
    rng = seeds.numpy_generator(number, "detection simulation", part)
    kind = number % 8
    clients = (3, 4, 5)[kind % 4] if kind % 4 < 3 else int(rng.integers(6, 13) if kind == 3 else rng.integers(3, 11))
    names = SIZES[part]
    name = names[int(rng.integers(len(names)))]
    clients = 4 if name == "heart" else clients
    train, test, spread = sites_of(rng, name, clients)
    devices = name != "heart" and rng.random() < 0.2
    if devices:
        train = other_devices(rng, train, clients)
    wrong = shares(rng, kind, clients)
    flips = "pairflip" if rng.random() < 0.4 else "symmetric"
    warmup, batch, rate = int(rng.integers(3, 11)), 16, (1e-3, 3e-3)[int(rng.integers(2))]
    steps = np.exp(rng.uniform(np.log(150), np.log(600)))
    epochs = int(np.clip(round(steps * batch / (len(train.y) * warmup)), 1, 5))
    image = train.x.dtype == np.uint8
    model = ("mlp3", "tiny")[int(rng.integers(2))] if image else "mlp3"
    source = sources.from_arrays(train.x, train.y, test.x, test.y, sites=train.sites)
    settings = ["engine.name=inline", f"evaluate.every={warmup + 1}"]
    if wrong.any():
        settings += [
            f"noise.kind={flips}",
            "noise.who=explicit",
            f"noise.rates={[round(w, 4) for w in wrong.tolist()]}",
        ]
    config = api.configure(
        method=f"fednoro(warmup={warmup})", rounds=warmup + 1, seed=number, model=model, partition="natural",
        clients=clients, local_epochs=epochs, batch_size=batch, optimizer="adam", lr=rate, weight_decay=5e-4,
        settings=settings,
    )  # fmt: skip
    result = experiment.run(config, inputs=experiment.RunInputs(source=source))
    verdict = result.setups[-1]["verdict"]
    realized = result.header["noise"]["realized"] if wrong.any() else [0.0] * clients
    return {
        "part": part, "number": number, "data": name, "spread": spread, "devices": devices, "model": model,
        "warmup": warmup, "epochs": epochs, "flips": flips if wrong.any() else "none", "kind": kind,
        "samples": np.bincount(train.sites, minlength=clients).tolist(), "truth": realized,
        "cells": verdict["cells"], "scalars": verdict["scalars"], "evidence": verdict["evidence"],
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Keep five significant digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--part", choices=tuple(SIZES), default="fit")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="end", type=int, default=500)
    parser.add_argument("--few", action="store_true", help="only those with 3, 4 and 5 sites that test verdicts")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = asked.file.read_text().splitlines() if asked.file.exists() else []
    done = {(each["part"], each["number"]) for each in map(json.loads, lines)}
    for number in range(asked.first, asked.end):
        if (asked.part, number) not in done and not (asked.few and number % 4 == 3):
            line = json.dumps(rounded(federation(asked.part, number)))
            with asked.file.open("a") as file:
                file.write(line + "\n")
            print(asked.part, number, flush=True)


if __name__ == "__main__":
    main()
