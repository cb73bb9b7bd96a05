"""Measure what LoRA sends for a transformer on AG News, beside training the whole network.

    FEDSKEW_DATA=DIR python scripts/lora.py run   train both, into build/lora; DIR has ag_news/train_subset.csv
    python scripts/lora.py pack                   pack the records into results/lora/records.tar.xz
    python scripts/lora.py page                   write table and picture of docs/how-to/large-networks.md from them

The learning rates are from a trial of three to six rounds on 6,000 texts.
"""

from __future__ import annotations

import argparse
import tarfile
from itertools import accumulate
from pathlib import Path

import fedskew
from fedskew.core import atomic_io
from fedskew.record import reader
from fedskew.record.reader import RunRecord
from fedskew.report.plots import style
from fedskew.report.tables import markdown, percent, size, traffic
from fedskew.reproduce import archive

ROOT = Path(__file__).parent.parent
BUILD, ARCHIVE = ROOT / "build" / "lora", ROOT / "results" / "lora" / "records.tar.xz"
PAGE = ROOT / "docs" / "how-to" / "large-networks.md"
PICTURE = ROOT / "docs" / "pictures" / "lora.png"
BEGIN, END = "<!-- figures: written by python scripts/lora.py page -->\n", "<!-- end of figures -->\n"

#: name: method and learning rate
RUNS = {"fedavg": ("fedavg", 0.001), "lora": ("lora(rank=8, alpha=32.0)", 0.01)}
SETTINGS = ["data.options.train=train_subset.csv", "data.options.length=64", "data.options.verify=false"]


def run() -> None:
    """Train what is missing."""
    for name, (method, lr) in RUNS.items():
        if not (BUILD / name / reader.NAME).exists():
            fedskew.run(
                method=method,
                lr=lr,
                dataset="ag-news",
                limit=8000,
                model="transformer",
                partition="dirichlet:0.5",
                clients=10,
                rounds=40,
                local_epochs=1,
                batch_size=32,
                optimizer="adam",
                momentum=0.0,
                weight_decay=0.0,
                engine="inline",
                out=BUILD / name,
                settings=[*SETTINGS, "evaluate.every=5"],
            )


def pack() -> None:
    """Pack configurations and records."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE, "w:xz") as packed:
        for run, name in ((run, name) for run in RUNS for name in ("config.toml", reader.NAME)):
            packed.add(BUILD / run / name, f"records/{run}/{name}")


def records() -> dict[str, RunRecord]:
    """Return the two records."""
    folder = archive.folder_of(ARCHIVE)
    return {name: reader.read(folder / name) for name in RUNS}


def traveled(run: RunRecord) -> list[int]:
    """Return the bytes that have traveled after each round."""
    return list(accumulate(line["up"] + line["down"] for line in run.rounds))


def table() -> str:
    """Return the table of both methods."""
    found = records()
    whole = traveled(found["fedavg"])[-1]
    rows = []
    for name, run in found.items():
        ways, last = traffic(run), run.rounds[-1]
        rows.append(
            [
                f"`{RUNS[name][0]}`",
                size(last["up"]),
                size(ways["up"]),
                size(ways["down"]),
                f"{percent((ways['up'] + ways['down']) / whole)} %",
                percent(last["accuracy"]),
            ]
        )
    heading = ["method", "up in a round", "up in all", "down in all", "of the full traffic", "accuracy %"]
    return markdown(heading, rows)


def draw() -> None:
    """Draw accuracy over traffic."""
    figure = style.figure(6.5, 3.4)
    axes = figure.subplots()
    for number, (name, run) in enumerate(records().items()):
        sent = traveled(run)
        points = [(sent[line.round - 1] / 1e6, 100 * line["accuracy"]) for line in run.rounds if "accuracy" in line]
        axes.plot(*zip(*points, strict=True), label=RUNS[name][0], **style.look(number))
    style.clean(axes)
    axes.set(xscale="log", xlabel="traffic up and down, MB", ylabel="accuracy, %")
    axes.legend(frameon=False)
    style.save_small(figure, PICTURE)


def page() -> None:
    """Write the table into the page, and the picture."""
    text = PAGE.read_text(encoding="utf-8")
    draw()
    atomic_io.write(PAGE, text[: text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END) :])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "pack", "page"))
    {"run": run, "pack": pack, "page": page}[parser.parse_args().what]()
