"""Choose the test samples of the user's own data, by whole patients where there are any."""

from __future__ import annotations

import numpy as np

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.data.custom.rows import TEST, Rows


def for_testing(listed: Rows, y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return which rows are test samples: as the data says, else a share of each site's patients or of its classes.

    What is drawn is always whole patients; the first of a site, or of a site's class, is for training.
    """
    if listed.splits:
        return np.array(listed.splits) == TEST
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share <= 0.5:
        raise UserError(f"option test_share is {share!r}. Set it above 0 and to at most 0.5.")
    site = np.unique(listed.sites, return_inverse=True)[1] if listed.sites else np.zeros_like(y)
    if listed.patients:
        _, first, unit = np.unique(listed.patients, return_index=True, return_inverse=True)
        stratum = site[first]
    else:
        unit, stratum = np.arange(len(y)), site * (y.max() + 1) + y
    order = np.lexsort((seeds.numpy_generator(seed, "own", "test").random(len(stratum)), stratum))
    others = order[np.diff(stratum[order], prepend=-1) == 0]
    many = min(max(round(share * len(order)), 1), len(others))
    chosen = np.zeros(len(order), bool)
    chosen[others[((np.arange(many) + 0.5) * len(others) / max(many, 1)).astype(int)]] = True
    return chosen[unit]


def check_patients(listed: Rows, test: np.ndarray) -> None:
    """Refuse patients that are in both training and test samples, or at two sites."""
    seen: dict[str, tuple[bool, str]] = {}
    for row, patient in enumerate(listed.patients):
        split, site = bool(test[row]), listed.sites[row] if listed.sites else ""
        other = seen.setdefault(patient, (split, site))
        if other[0] != split:
            raise UserError(f"patient '{patient}' is in both the training and the test samples. Choose one of them.")
        if other[1] != site:
            raise UserError(
                f"patient '{patient}' is at two sites, '{other[1]}' and '{site}'. Correct the site, or call them "
                f"'{other[1]}-{patient}' and '{site}-{patient}'."
            )
