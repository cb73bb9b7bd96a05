"""First-neighbour agglomeration: every point joins its nearest neighbour, clusters do the same, until little is left.

Written from the description of the linkage by Sarfraz, Sharma, Stiefelhagen (Efficient Parameter-free Clustering
Using First Neighbor Relations, CVPR 2019); there is no number of clusters to choose.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def first_neighbours(points: Tensor) -> Tensor:
    """The cluster of each point [n, F] by cosine distance, numbered from 0: the coarsest level that is not one cluster.

    The first level is taken whatever it gives; no level is tried after one that removed a single cluster.
    """
    labels = _linked(points)
    before, now = len(points), int(labels.max()) + 1
    while now > 1 and before - now > 1:
        coarser = _linked(means(points, labels))[labels]
        before, now = now, int(coarser.max()) + 1
        if now == 1 or now == before:
            break
        labels = coarser
    return labels


def means(points: Tensor, labels: Tensor) -> Tensor:
    """The mean of each cluster's points."""
    members = F.one_hot(labels).to(points).T
    return members @ points / members.sum(1, keepdim=True)


def _linked(points: Tensor) -> Tensor:
    """Connected components of the graph in which each point meets its nearest neighbour (the first of several)."""
    if len(points) == 1:
        return torch.zeros_like(points[:, 0], dtype=torch.int64)
    directions = F.normalize(points, eps=1e-8)
    nearest = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(1)
    meets = F.one_hot(nearest, len(points)).bool()
    meets = meets | meets.T
    labels = torch.arange(len(points), device=points.device)
    while True:
        # a point takes the least label among itself and those it meets
        least = torch.where(meets, labels, labels[:, None]).amin(1)
        if torch.equal(least, labels):
            return labels.unique(return_inverse=True)[1]
        labels = least
