"""First-neighbor agglomeration: points join their nearest neighbors, then clusters do, level by level.

Written from the description of the linkage by Sarfraz, Sharma, Stiefelhagen (Efficient Parameter-free Clustering
Using First Neighbor Relations, CVPR 2019); there is no number of clusters to choose.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def first_neighbors(points: Tensor) -> Tensor:
    """Return the cluster of each point [n, F] by cosine distance, numbered from 0.

    The first level always counts; a later one counts unless it leaves one cluster. Each level has at most half the
    clusters of the level before, so the published rule against levels that remove one cluster or none never applies.
    """
    labels = _linked(points)
    while labels.any():
        coarser = _linked(means(points, labels))[labels]
        if not coarser.any():
            break
        labels = coarser
    return labels


def means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of each cluster's points."""
    members = F.one_hot(labels).to(points).T
    return members @ points / members.sum(1, keepdim=True)


def _linked(points: Tensor) -> Tensor:
    """Return the connected components of the graph that joins each point to its (first) nearest neighbor."""
    labels = torch.arange(len(points), device=points.device)
    if len(points) == 1:
        return labels
    directions = F.normalize(points, eps=1e-8)
    nearest = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(1)
    meets = F.one_hot(nearest, len(points)).bool()
    meets = meets | meets.T
    while True:
        least = torch.where(meets, labels, labels[:, None]).amin(1)  # of its own label and of those it meets
        if torch.equal(least, labels):
            return labels.unique(return_inverse=True)[1]
        labels = least
