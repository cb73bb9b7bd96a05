"""How likely each client is noisy: one level per client, and two groups that allow for its standard error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.detection.chance import between

#: Part of the class's median added to a loss before its logarithm, so that losses near zero do not run away.
OFFSET = 0.1
#: Before any client is seen: clean clients' levels differ by PRIOR_SPREAD, believed like PRIOR_CLIENTS observations.
PRIOR_SPREAD = 0.2
PRIOR_CLIENTS = 4
#: At this gap of log losses two groups are as credible as one before the clients' likelihood has its say, and each
#: tenth more or less is worth so many tenths of STEEPNESS in log odds. Fixed by scripts/detection_calibration.py.
EVEN_GAP = 0.5
STEEPNESS = 8.0
#: Nothing is certain, however far apart: without this the logistic function rounds to 1.
SUREST = 1 - 1e-9

_MOST_STEPS = 500
_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Levels:
    """log(loss + offset) = class effect [C] + client level [K], and the variance of each level."""

    level: np.ndarray
    variance: np.ndarray
    effect: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class Groups:
    """Levels of clean and noisy clients, the spread in each group, the share of noisy ones.

    `two` is the probability that there are two groups at all.
    """

    clean: float
    noisy: float
    spread: float
    share: float
    two: float

    def posterior(self, level: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """The probability of belonging to the noisy group if there are two; it rises with the level."""
        return _probability(_log_odds(np.array([self.clean, self.noisy]), self.share, level, variance + self.spread**2))


def offsets(mean: np.ndarray) -> np.ndarray:
    """Return what is added to the losses of each class; if most losses are zero, the mean replaces the median."""
    size = np.abs(mean)
    typical = np.nanmedian(size, axis=0)
    typical = np.where(typical > 0, typical, np.nanmean(size, axis=0))
    return OFFSET * np.where(typical > 0, typical, 1.0)


def logs(mean: np.ndarray, se: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log(loss + offset) and its standard error; a loss that privacy noise made negative counts as zero."""
    raised = np.maximum(mean, 0.0) + offset
    return np.log(raised), se / raised


def levels(mean: np.ndarray, se: np.ndarray) -> Levels:
    """Fit levels by least squares over the defined cells; a client without a class is compared on the others."""
    offset = offsets(mean)
    log, error = logs(mean, se, offset)
    known = np.isfinite(log)
    filled = np.where(known, log, 0.0)
    per_client, per_class = known.sum(axis=1), known.sum(axis=0)
    # Normal equations of the client levels after the class effects are eliminated; they leave one level free.
    normal = np.diag(per_client.astype(np.float64)) - (known / per_class) @ known.T
    right = filled.sum(axis=1) - (known / per_class) @ filled.sum(axis=0)
    level = np.linalg.pinv(normal, hermitian=True) @ right
    effect = (filled - np.where(known, level[:, None], 0.0)).sum(axis=0) / per_class
    variance = np.where(known, error, 0.0) ** 2
    return Levels(level, variance.sum(axis=1) / per_client**2, effect, offset)


def groups(level: np.ndarray, variance: np.ndarray, scale: float = 1.0) -> Groups:
    """Fit two groups with one spread by expectation-maximization, and compare them with a single group.

    `scale` is that of the levels beside those for which the constants were fixed.
    """
    order = np.argsort(level, kind="stable")
    high = np.zeros(len(level))
    high[order[between(level[order]).argmax() + 1 :]] = 1.0
    centers, spread, share, both = _fit(level, variance, high, scale)
    # Two groups that start alike stay alike, and are one.
    _, _, _, single = _fit(level, variance, np.full(len(level), 0.5), scale)
    clean, noisy = centers.tolist()
    two = float(_probability(both - single + STEEPNESS * ((noisy - clean) / scale - EVEN_GAP)))
    two = min(two, SUREST)
    return Groups(clean, noisy, spread, share, two)


def _fit(
    level: np.ndarray, variance: np.ndarray, noisy: np.ndarray, scale: float
) -> tuple[np.ndarray, float, float, float]:
    """Return (centers, spread, share of noisy, log-likelihood) from initial memberships of the noisy group."""
    prior, clients = PRIOR_CLIENTS * (scale * PRIOR_SPREAD) ** 2, len(level) + PRIOR_CLIENTS
    column, member = level[:, None], np.stack([1 - noisy, noisy], axis=1)
    centers = member.T @ level / member.sum(axis=0)
    spread2 = float((member * (column - centers) ** 2).sum() + prior) / clients
    share, now = _share(noisy), -np.inf
    for _ in range(_MOST_STEPS):
        total = variance + spread2
        odds = _log_odds(centers, share, level, total)
        clean = -0.5 * (np.log(2 * np.pi * total) + (level - centers[0]) ** 2 / total) + np.log1p(-share)
        before, now = now, float((clean + np.logaddexp(0.0, odds)).sum())
        if abs(now - before) < _TOLERANCE:
            break
        member = np.stack([_probability(-odds), _probability(odds)], axis=1)
        weight = member / total[:, None]
        centers = weight.T @ level / weight.sum(axis=0)
        # The true level of a client lies between what was measured and its group's center.
        pull = (spread2 / total)[:, None]
        spread2 = (
            float((member * ((pull * (column - centers)) ** 2 + pull * variance[:, None])).sum() + prior) / clients
        )
        share = _share(member[:, 1])
    return centers, spread2**0.5, share, now


def _share(noisy: np.ndarray) -> float:
    """Return the share of noisy clients, with one clean and one noisy client added so that no group vanishes."""
    return float((noisy.sum() + 1) / (len(noisy) + 2))


def _log_odds(centers: np.ndarray, share: float, level: np.ndarray, total: np.ndarray) -> np.ndarray:
    clean, noisy = centers
    return np.log(share / (1 - share)) + (noisy - clean) * (level - (clean + noisy) / 2) / total


def _probability(log_odds: np.ndarray | float) -> np.ndarray:
    """1 / (1 + e^-x) without overflow. In numpy: importing scipy takes longer than a detection."""
    with np.errstate(invalid="ignore"):  # what is not known stays NaN
        return np.exp(-np.logaddexp(0.0, np.negative(log_odds)))
