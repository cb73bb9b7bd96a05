from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.limit import limited
from fedskew.data.sources import Source, from_arrays


def made(counts: list[int], tested: list[int], sites: int = 1) -> Source:
    """Return a source whose features are the numbers of its rows."""
    y, y_test = (np.repeat(np.arange(len(each)), each) for each in (counts, tested))
    x, x_test = (np.arange(len(each), dtype=np.float32)[:, None] for each in (y, y_test))
    return from_arrays(x, y, x_test, y_test, sites=np.arange(len(y)) % sites, labels=list("abcdef")[: len(counts)])


def test_shares_stay() -> None:
    # 60, 30, 10 of 100 at 20: two of each class are kept, and 14 are dealt in proportion to 58 : 28 : 8, which is
    # 8.64, 4.17 and 1.19: 8, 4, 1 and one more for the first
    found = limited(made([60, 30, 10], [30, 15, 5]), 20)
    assert found.train.y.bincount().tolist() == [11, 6, 3]
    # 10 of 50 test samples: one of each class, and 7 in proportion to 29 : 14 : 4, which is 4.3, 2.1 and 0.6
    assert found.test.y.bincount().tolist() == [5, 3, 2]
    assert found.notes == ("limited to 20 of 100 training samples, stratified",)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 200))
def test_every_class_of_every_site_keeps_some(counts: list[int], sites: int, most: int) -> None:
    counts = [each * 2 * sites for each in counts]
    source = made(counts, counts, sites)
    least = 2 * sites * len(counts)
    if most < least:
        with pytest.raises(UserError, match=f"Type --limit {least}"):
            limited(source, most)
        return
    found = limited(source, most)
    assert len(found.train) == min(most, sum(counts))
    assert found.sites is not None and source.sites is not None
    rows = found.train.x[:, 0].long()
    assert torch.equal(found.train.y, source.train.y[rows])
    assert torch.equal(found.sites, source.sites[rows])
    cells = (found.sites * found.classes + found.train.y).bincount(minlength=sites * len(counts))
    assert int(cells.min()) >= 2
    assert limited(found, most) is found


def test_the_same_samples_every_time() -> None:
    source = made([60, 30], [5, 5])
    assert torch.equal(limited(source, 10).train.x, limited(source, 10).train.x)
    assert limited(source, None) is source
