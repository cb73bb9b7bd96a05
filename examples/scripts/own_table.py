"""Train on a table of your own, compare with each site alone, and predict with the model.

    python examples/scripts/own_table.py [TABLE.csv]

Each row of the table is a sample. The column `label` is its class, and `site` says whose it is. Without a table, the
script writes one: the 569 tumors of scikit-learn's breast cancer data. Their three sites are made up.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedskew

OUT = Path("runs/own-table")


def main(table: str | None = None) -> fedskew.Comparison:
    """Train FedAvg and FedProx, and each site alone."""
    data = table or str(write_example(Path("tumors.csv")))
    comparison = fedskew.compare(
        ["fedavg", "fedprox"],
        baselines=["local"],
        data=data,
        settings=["data.options.scale=true"],
        rounds=10,
        lr=0.05,
        out=OUT,
        force=True,
    )
    print(comparison.summary())
    for row in comparison.versus_local():
        if row.label is None and row.method == "fedavg":
            print(f"{row.site}: federated {row.federated:.3f}, alone {row.local:.3f}, {row.verdict}")
    predicted = fedskew.predict(OUT / "fedavg-seed0", data)
    print("predicted:", dict(Counter(predicted.labels)))
    return comparison


def write_example(path: Path) -> Path:
    """Write a table in which site-0 has mostly malignant tumors, site-2 mostly benign ones, and site-1 both."""
    data = load_breast_cancer()
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*data.feature_names, "label", "site"])
        for features, target in zip(data.data, data.target, strict=True):
            shares = (0.6, 0.3, 0.1) if target == 0 else (0.1, 0.3, 0.6)
            rows.writerow([*features, data.target_names[target], f"site-{rng.choice(3, p=shares)}"])
    return path


if __name__ == "__main__":
    main(*sys.argv[1:2])
