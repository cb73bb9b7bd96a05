"""How time per round and memory grow with clients, cohort, parameters and classes.

    python benchmarks/scale.py --clients 1000000 [--method scaffold]     # one setting
    python benchmarks/scale.py [PART ...]                                # all of them, or some of PARTS

All settings of one part differ in one number. Each has a process of its own; clients have ten made-up samples of 16
numbers and make one step. `benchmarks/scale.json` gets the measurements, docs/pictures/scale.svg their picture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedskew.core.types import Arrays
from fedskew.data import sources
from fedskew.experiment import run as experiment
from fedskew.experiment import run_metadata
from fedskew.experiment.configure import configure

HERE = Path(__file__).parent
FIGURES, PICTURE = HERE / "scale.json", HERE.parent / "docs" / "pictures" / "scale.svg"
#: values of one setting; the others are those of `measure`
PARTS: dict[str, dict[str, Any]] = {
    "clients": {"values": [100, 1000, 10_000, 100_000, 1_000_000], "title": "clients, 50 a round"},
    "clients-scaffold": {
        "values": [100, 1000, 10_000, 100_000],
        "title": "clients, 50 a round, scaffold",
        "setting": "clients",
        "method": "scaffold",
    },
    "cohort": {"values": [10, 100, 1000, 10_000], "title": "clients a round, of 10,000"},
    "parameters": {"values": [10**5, 10**6, 10**7, 10**8], "title": "parameters, 4 clients a round"},
    "classes": {"values": [10, 100, 1000], "title": "classes, 50 clients a round"},
}


def measure(
    clients: int = 10_000, cohort: int = 50, parameters: int = 0, classes: int = 10, method: str = "fedavg"
) -> dict[str, float]:
    """Return seconds per round (the median), seconds before the first and after the last, and MiB beside the data."""
    samples = max(10 * clients, 100 * classes)
    source = sources.load("synthetic", samples=samples, classes=classes, shape=(1, 4, 4))
    source = replace(source, test=Arrays(source.test.x[:2000], source.test.y[:2000]))
    data = _memory()
    hidden = round(parameters**0.5) if parameters else 200
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = configure(
            method=method, dataset="synthetic", partition="iid", clients=clients, clients_per_round=cohort, rounds=7,
            local_epochs=1, batch_size=10, model="mlp",
            settings=[f"model.args.hidden=[{hidden},{hidden}]", "evaluate.every=100"],
        )  # fmt: skip
        result = experiment.run(config, Path(folder) / "run", inputs=experiment.RunInputs(source=source))
        whole = time.perf_counter() - began
    seconds = [line.seconds for line in result.rounds]
    return {
        "seconds": statistics.median(seconds[1:-1]),
        "around": whole - sum(seconds),
        "MiB": _memory("VmHWM") - data,
        "data_MiB": data,
    }


def _memory(field: str = "VmRSS") -> float:
    """Return the memory of this process now, and forget its peak; or the peak since then (VmHWM)."""
    if field == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def apart(options: dict[str, Any]) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--json"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def grow(part: str) -> list[dict[str, Any]]:
    """Measure all values of a part."""
    what, rows = PARTS[part], []
    for value in what["values"]:
        options = {what.get("setting", part): value, "method": what.get("method", "fedavg")}
        if part == "cohort":
            options["clients"] = 10_000
        if part == "parameters":
            options |= {"clients": 100, "cohort": 4}
        rows.append({"value": value} | apart(options))
        print(f"{part} {value:,}: {_text(rows[-1])}", flush=True)
    return rows


def _text(found: dict[str, float]) -> str:
    return "{seconds:.3f} s a round, {around:.1f} s around the rounds, {MiB:.0f} MiB beside the data".format(**found)


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw time and memory over each setting."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "scale"}
    from matplotlib import pyplot as plt

    parts = {part: figures["parts"][part] for part in PARTS if part in figures["parts"]}
    figure, axes = plt.subplots(2, len(parts), figsize=(13, 5), squeeze=False, sharey="row", layout="constrained")
    for (part, rows), (above, below) in zip(parts.items(), axes.T, strict=True):
        x = [row["value"] for row in rows]
        above.loglog(x, [row["seconds"] for row in rows], "o-", label="a round")
        above.loglog(x, [row["around"] for row in rows], "s:", label="around the rounds")
        below.loglog(x, [row["MiB"] for row in rows], "o-", color="C2")
        below.set_xlabel(PARTS[part]["title"])
        for axis in (above, below):
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("seconds")
    axes[0][0].legend(fontsize=8)
    axes[1][0].set_ylabel("MiB beside the data")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true")
    for name in ("clients", "cohort", "parameters", "classes"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--method")
    asked = vars(parser.parse_args())
    parts, as_json = asked.pop("parts"), asked.pop("json")
    options = {name: value for name, value in asked.items() if value is not None}
    if options:
        found = measure(**options)
        print(json.dumps(found) if as_json else _text(found))
        return
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"parts": {}}
    figures |= {"cpu": run_metadata.hardware()["cpu"], "cores": os.cpu_count()}
    for part in parts or PARTS:
        figures["parts"][part] = grow(part)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    draw(figures, PICTURE)


if __name__ == "__main__":
    main()
