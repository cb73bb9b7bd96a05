"""From a verdict to a better model, on HAM10000: six sites, two of them with 30 % wrong labels, five seeds.

    FEDSKEW_DATA=DIR python scripts/label_review_ham10000.py made FILE [--seeds 0-4]  # seeds that are there stay
    python scripts/label_review_ham10000.py write results/label-review.tar.xz  # the table of the page

For each seed: train with fednoro, detect, list the most suspicious labels of each site that the verdict names, let a
physician correct the listed ones truthfully, train again, and compare both models on the test samples.

The settings were chosen on the seeds 100 to 104, before any of 0 to 4 was run: the cheapest network that learns from
these images, as few local epochs as let it, and Adam with FedNoRo's weight decay. The list has 300 samples a site.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.special import stdtrit

import fedskew
from fedskew import label_review
from fedskew.reproduce import archive

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "label-review.md"
LINES = "seeds.jsonl"
TOP, FIRST = 300, 50
SETTINGS = {
    "dataset": "dermamnist", "partition": "iid", "clients": 6, "noise": "symmetric:0.34", "rounds": 20,
    "model": "simple-cnn", "local_epochs": 2, "optimizer": "adam", "lr": 1e-3, "batch_size": 32, "weight_decay": 5e-4,
    "engine": "inline", "settings": ["noise.low=0.3", "noise.high=0.3"],
}  # fmt: skip


def reviewed(run: Path, site: int, file: Path) -> dict[str, Any]:
    """List the suspicious labels of a site, and write the truth for the listed ones, as a physician would."""
    context, source, spec = label_review.open_run(run)
    assert context.ledger is not None
    found = label_review.rank(context, spec, label_review.load_weights(context, spec, run), site)
    rows = slice(*context.ledger.offsets[site : site + 2])
    truth = dict(zip(context.shards.index[rows].tolist(), context.ledger.true[rows].tolist(), strict=True))
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["row", "corrected"])
        table.writerows([each.row, source.labels[truth[each.row]]] for each in found[:TOP])
    return {
        "site": site,
        "samples": len(found),
        "wrong": int(context.ledger.flipped[rows].sum()),
        "precision@50": label_review.measure_precision(context, site, found, FIRST),
        "precision": label_review.measure_precision(context, site, found, TOP),
        "suggestion right": float(np.mean([truth[each.row] == each.suggested for each in found[:FIRST]])),
    }


def made(seed: int, folder: Path) -> dict[str, Any]:
    """Go from the first run to the comparison with one seed."""
    began = time.time()
    result = fedskew.run("fednoro", seed=seed, out=folder / "before", progress=False, **SETTINGS)
    assert result.header.noise is not None and result.folder is not None
    shown = fedskew.detect(result.folder).shown
    files = [folder / f"site-{site}.csv" for site in shown.named]
    sites = [reviewed(result.folder, site, file) for site, file in zip(shown.named, files, strict=True)]
    found = fedskew.retrain(result.folder, files, out=folder / "after", progress=False) if files else None
    return {
        "seed": seed,
        "verdict": shown.judgment.verdict,
        "noisy": result.header.noise.noisy,
        "named": shown.named,
        "sites": sites,
        "change": None if found is None else found.as_json(),
        "weights": [
            fedskew.load(folder / name).end["weights_sha256"] for name in ("before", "after")[: 1 + bool(files)]
        ],
        "seconds": round(time.time() - began),
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()[:7],
    }


# ---- the table ------------------------------------------------------------------------------------------------------


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return a row for each seed, their sum, and a row for each class."""
    rows = [
        "| seed | noisy sites | named | precision@50 | wrong labels found | accuracy | mean over classes |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in lines:
        noisy, named = (", ".join(map(str, each[key])) or "none" for key in ("noisy", "named"))
        first = ", ".join(f"{site['precision@50']:.2f}" for site in each["sites"])
        hits = sum(round(site["precision"] * TOP) for site in each["sites"])
        wrong = sum(site["wrong"] for site in each["sites"])
        scores = " | ".join(_change(change) for change in _changes(each)[:2])
        rows.append(f"| {each['seed']} | {noisy} | {named} | {first} | {hits} of {wrong} | {scores} |")
    exact = sum(each["noisy"] == each["named"] for each in lines)
    firsts = [site["precision@50"] for each in lines for site in each["sites"]]
    gains = [_mean([_changes(each)[kind] for each in lines]) for kind in (0, 1)]
    return [
        *rows,
        "",
        f"Named exactly: {exact} of {len(lines)}. Median precision@50: {median(firsts):.2f}.",
        "",
        f"Mean gain over seeds, with its 95 % interval (Student's t): accuracy {gains[0]}, over classes {gains[1]}.",
        "The classes one by one, as means over seeds:",
        "",
        *_by_class(lines),
    ]


def _changes(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of a seed: over all test samples, over classes, then class by class."""
    found: list[dict[str, Any]] = line["change"]["changes"]
    return found


def _by_class(lines: list[dict[str, Any]]) -> list[str]:
    rows = [
        "| class | test images | before % | after % | better | worse |",
        "|---|---|---|---|---|---|",
    ]
    for seeds in zip(*(_changes(each)[2:] for each in lines), strict=True):
        before, after = (100 * float(np.mean([each[when] for each in seeds])) for when in ("before", "after"))
        better, worse = (sum(each["verdict"] == word for each in seeds) for word in ("better", "worse"))
        what, samples = seeds[0]["what"], seeds[0]["samples"]
        clear = " | ".join(f"{count} of {len(lines)}" for count in (better, worse))
        rows.append(f"| {what} | {samples} | {before:.1f} | {after:.1f} | {clear} |")
    return rows


def _mean(changes: list[dict[str, Any]]) -> str:
    values = np.array([100 * each["difference"] for each in changes])
    half = float(stdtrit(len(values) - 1, 0.975)) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.1f} ({values.mean() - half:+.1f} to {values.mean() + half:+.1f})".replace("-", "−")


def _change(change: dict[str, Any]) -> str:
    points = f"{100 * change['difference']:+.1f} ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"
    return f"{100 * change['before']:.1f} → {100 * change['after']:.1f}: {points}".replace("-", "−")


def filled(page: str, lines: list[dict[str, Any]]) -> str:
    """Put the table into the page."""
    text = "\n".join(table(lines))
    return re.sub(r"(?s)(<!-- ham10000 -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{text}\n{found[2]}", page)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the lines, in the order of seeds."""
    text = (archive.folder_of(path) / LINES).read_text()
    return sorted(map(json.loads, text.splitlines()), key=lambda each: each["seed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["made", "write"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--seeds", default="0-4")
    given = parser.parse_args()
    if given.what == "write":
        PAGE.write_text(filled(PAGE.read_text(), read(given.path)))
        return
    first, last = map(int, given.seeds.split("-"))
    there = [json.loads(line)["seed"] for line in given.path.read_text().splitlines()] if given.path.exists() else []
    for seed in range(first, last + 1):
        if seed in there:
            continue
        with tempfile.TemporaryDirectory() as folder, given.path.open("a") as file:
            line = made(seed, Path(folder))
            file.write(json.dumps(line) + "\n")
            print(f"seed {seed}: {line['verdict']}, named {line['named']} of {line['noisy']}, {line['seconds']} s")


if __name__ == "__main__":
    main()
