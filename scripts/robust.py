"""Measure what rules against hostile clients withstand, and what they cost clients with rare classes.

    python scripts/robust.py run    train what is missing, into build/robust
    python scripts/robust.py pack   pack the records into results/robust/records.tar.xz
    python scripts/robust.py page   write docs/results/robust.md from them

Digits, 20 clients, a small network, 20 rounds. The rules were chosen beforehand, with the share of hostile clients that
there is; nothing was tuned.
"""

from __future__ import annotations

import argparse
import itertools
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy import stats

import fedskew
from fedskew.core import atomic_io
from fedskew.record import reader
from fedskew.record.reader import RunRecord
from fedskew.report.tables import markdown
from fedskew.reproduce import archive

ROOT = Path(__file__).parent.parent
BUILD, ARCHIVE = ROOT / "build" / "robust", ROOT / "results" / "robust" / "records.tar.xz"
PAGE = ROOT / "docs" / "results" / "robust.md"

PARTITIONS = {"iid": "iid", "skewed": "dirichlet:0.1"}
ATTACKS = ("label_flip", "sign_flip", "scaled", "random")
SHARES = (0.2, 0.4, 0.1)
SEEDS, SEEDS_WITHOUT = 3, 10
CLIENTS = 20
RULES = ("fedavg", "fedmedian", "fedtrim", "krum", "multi-krum", "rfa", "normclip")
#: this many classes, those with the fewest holders, are called rare
RARE = 3


def method(rule: str, share: float) -> str:
    """Return the method of a rule that assumes this share of hostile clients, a fifth where there are none."""
    share = share or 0.2
    if rule == "multi-krum":
        return f"krum(f={share}, m={CLIENTS // 2})"
    return {"krum": f"krum(f={share})", "fedtrim": f"fedtrim(beta={share})"}.get(rule, rule)


@dataclass(frozen=True)
class Cell:
    """One run."""

    partition: str
    attack: str
    share: float
    rule: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.partition}-{self.attack}{self.share:.0%}-{self.rule}-seed{self.seed}".replace("%", "")

    def train(self) -> None:
        fedskew.run(
            method=method(self.rule, self.share),
            partition=PARTITIONS[self.partition],
            clients=CLIENTS,
            attack=f"{self.attack}:{self.share}" if self.share else None,
            rounds=20,
            local_epochs=2,
            batch_size=16,
            lr=0.1,
            momentum=0.0,
            weight_decay=0.0,
            model="mlp",
            engine="inline",
            seed=self.seed,
            out=BUILD / self.name,
            force=True,
            progress=False,
            settings=["model.args.hidden=[64]", "evaluate.every=20", "checkpoint.every=0", "partition.min_size=5"],
        )


def cells() -> Iterator[Cell]:
    """Return every run, the telling ones first."""
    for seed, partition, rule in itertools.product(range(SEEDS_WITHOUT), PARTITIONS, RULES):
        yield Cell(partition, "none", 0.0, rule, seed)
    for share, seed, partition, attack, rule in itertools.product(SHARES, range(SEEDS), PARTITIONS, ATTACKS, RULES):
        yield Cell(partition, attack, share, rule, seed)


def run() -> None:
    """Train what is missing."""
    for number, cell in enumerate(cells()):
        record = BUILD / cell.name / reader.NAME
        if not record.exists() or not reader.read(record).end:
            cell.train()
            print(f"{number + 1}: {cell.name}", flush=True)


def pack() -> None:
    """Pack configurations and records of the runs that are finished."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE, "w:xz") as packed:
        for cell in sorted(cells(), key=lambda cell: cell.name):
            for name in ("config.toml", reader.NAME) if (BUILD / cell.name / reader.NAME).exists() else ():
                packed.add(BUILD / cell.name / name, f"records/{cell.name}/{name}")


# ---- the page -------------------------------------------------------------------------------------------------------

TEXT = """\
# What robust rules withstand

**With skewed labels, most rules against hostile clients cost more than the attack.** Look at the
[last table](#what-it-costs-honest-clients) before you choose one.

- *Clients alike:* the median, the trimmed mean and `rfa` cost nothing and withstand all four attacks, multi-Krum best
  when two fifths of the clients are hostile.
- *Clients with few classes:* only `rfa` and `normclip` are near `fedavg` when nobody attacks. Both are better than it
  under sign flips and under many random updates; nothing here withstands 40 % of sign flips.
- *Flipped labels* of skewed clients hardly differ from the honest labels of others: `rfa` gains little, the rest
  nothing.
- *Scaled* updates harm plain averaging only where two fifths of clients that are alike send them. Elsewhere they do
  little, or even help: these clients train on right labels, and ten times a right step is a large learning rate.

```sh
fedskew compare fedavg fedmedian --dataset digits --partition iid --clients 20 --attack sign_flip:0.4 --rounds 5 \\
  --out runs/attacked
```

`--attack KIND:SHARE` is for simulations only; federations refuse it. Hostile clients train on flipped labels
(`label_flip`: the last class for the first, and so on), or change what they send: the opposite of their change
(`sign_flip`), ten times as much (`scaled`), or a random change ten times as long (`random`).
"""

SETTING = """\
## Setting

Digits (1,797 images of 8x8 pixels), 20 clients that all take part, 20 rounds of two local epochs, batches of 16,
`--lr 0.1` without momentum, one hidden layer of 64. *Skewed* is `dirichlet:0.1`. `krum` and `fedtrim` assume the true
share of hostile clients, and a fifth where there are none; `multi-krum` averages 10 of 20 updates. `rfa` and
`normclip` have their defaults. All of this was chosen beforehand, and nothing was tuned. With another clip,
`normclip` is another method: here it hardly shortens honest updates. Accuracies are those after the last round, on
{tested} test images; three seeds leave them uncertain by some points where labels are skewed.

`python scripts/robust.py run` makes the {runs} runs, `page` writes this page from their records,
`results/robust/records.tar.xz`.
"""

COSTS = """\
## What it costs honest clients

Nobody is hostile, and labels are skewed. In percent, means of ten seeds; in brackets the difference from `fedavg` on
the same seeds, and its 95 % interval. *Rare* are the three classes with the fewest holders (1 / sum of p squared, p a
client's share of the class). A client's accuracy weighs the recalls by its own classes; *worst* are the two clients of
twenty with the lowest.

A client whose classes few others have sends an update that lies far from the rest. That is how these rules know a
hostile client, too. The median forgets what only a minority moves, and Krum chooses others' updates.
"""


@cache
def records() -> dict[str, RunRecord]:
    """Return the records by the names of their cells."""
    folder = archive.folder_of(ARCHIVE.parent / ARCHIVE.name)
    return {path.name: reader.read(path) for path in folder.iterdir()}


def last(cell: Cell) -> tuple[float, np.ndarray]:
    """Return accuracy and recall by class after the last round."""
    line = records()[cell.name].rounds[-1]
    return float(line["accuracy"]), np.array(line["recall"])


def withstood(partition: str) -> str:
    """Return the table of one partition: rules against attacks, mean accuracy of three seeds."""
    attacks = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in sorted(SHARES))]
    rows = []
    for attack, share in attacks:
        found = [fmean(last(Cell(partition, attack, share, r, seed))[0] for seed in range(SEEDS)) for r in RULES]
        cells = [f"**{100 * each:.1f}**" if each == max(found) else f"{100 * each:.1f}" for each in found]
        rows.append([f"{attack.replace('_', ' ')}, {share:.0%}" if share else "no attack", *cells])
    return markdown(["attack", *(f"`{rule}`" for rule in RULES)], rows)


def punished(partition: str) -> str:
    """Return what rules do without an attack: to rare classes, to others, and to the clients that are worst off."""
    rows = []
    base = [parts(Cell(partition, "none", 0.0, "fedavg", seed)) for seed in range(SEEDS_WITHOUT)]
    for rule in RULES:
        own = [parts(Cell(partition, "none", 0.0, rule, seed)) for seed in range(SEEDS_WITHOUT)]
        rows.append(
            [f"`{rule}`", *(shown(*each) for each in zip(zip(*own, strict=True), zip(*base, strict=True), strict=True))]
        )
    return markdown(["rule", "rare classes", "other classes", "two worst clients", "all clients"], rows)


def parts(cell: Cell) -> tuple[float, float, float, float]:
    """Return the recall of rare and of other classes, and the accuracy of the two worst clients and of all.

    Rare are the three classes with the fewest holders, 1 / sum_k p_kc^2, where p_kc is client k's share of class c. A
    client's accuracy weighs recalls by its own classes.
    """
    counts = np.array(records()[cell.name].header["counts"], dtype=float)
    holders = 1 / ((counts / counts.sum(0)) ** 2).sum(0)
    rare = np.argsort(holders, kind="stable")[:RARE]
    _, recall = last(cell)
    clients = np.sort(counts / counts.sum(1, keepdims=True) @ recall)
    others = np.delete(recall, rare)
    return recall[rare].mean(), others.mean(), clients[:2].mean(), clients.mean()


def shown(own: tuple[float, ...], base: tuple[float, ...]) -> str:
    """Return the mean and, unless it is the baseline itself, the paired difference with its 95 % t interval."""
    mean, away = 100 * fmean(own), 100 * (np.array(own) - np.array(base))
    if not away.any():
        return f"{mean:.1f}"
    half = stats.t.ppf(0.975, len(away) - 1) * away.std(ddof=1) / len(away) ** 0.5
    return f"{mean:.1f} ({away.mean():+.1f} [{away.mean() - half:+.1f}, {away.mean() + half:+.1f}])"


def page() -> str:
    """Return the page in Markdown."""
    tested = next(iter(records().values())).header["data"]["test"]
    return "\n".join(
        (
            TEXT,
            "## Clients alike\n\nAccuracy in percent, mean of three seeds; the best of a line is bold.\n",
            withstood("iid"),
            "## Clients with few classes\n\nThe same where labels are skewed.\n",
            withstood("skewed"),
            COSTS,
            punished("skewed"),
            SETTING.format(runs=len(list(cells())), tested=tested),
        )
    )


def write_page() -> None:
    """Write the page."""
    atomic_io.write(PAGE, page())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "pack", "page"))
    {"run": run, "pack": pack, "page": write_page}[parser.parse_args().what]()
