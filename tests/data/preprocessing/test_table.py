from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.preprocessing.columns import numbers, words
from fedskew.data.preprocessing.table import MOST_CATEGORIES, Table, TableEncoder, fit, merge, summarize

NAN = float("nan")


def table(weight: list[float], stage: list[str]) -> Table:
    return {"weight": np.array(weight, float), "stage": np.array(stage, object)}


class TestByHand:
    #: weight 1, 3, missing, 8: mean 4, deviations -3, -1, 4, so variance 26/3; stage a, b, missing, b
    TRAINED = table([1, 3, NAN, 8], ["a", "b", "", "b"])

    def test_features(self) -> None:
        encoder = fit(summarize(self.TRAINED), scale=True)
        assert encoder.features == ["weight", "weight missing", "stage=a", "stage=b", "stage missing"]
        std = (26 / 3) ** 0.5
        expected = [[-3 / std, 0, 1, 0, 0], [-1 / std, 0, 0, 1, 0], [0, 1, 0, 0, 1], [4 / std, 0, 0, 1, 0]]
        assert encoder.encode(self.TRAINED) == pytest.approx(np.array(expected), abs=1e-6)

    def test_without_scaling_numbers_stay_and_the_mean_fills_the_gap(self) -> None:
        assert fit(summarize(self.TRAINED), scale=False).encode(self.TRAINED)[:, 0].tolist() == [1, 3, 4, 8]

    def test_unknown_words_are_none_of_the_known_ones(self) -> None:
        encoder = fit(summarize(self.TRAINED), scale=False)
        assert encoder.encode(table([5], ["c"])).tolist() == [[5, 0, 0, 0, 0]]

    def test_few_missing_cells_get_no_indicator(self) -> None:
        # one of 21 is below 5 %, one of 20 is not
        for cells, indicator in ((21, 0), (20, 1)):
            trained = {"x": np.array([NAN, *range(1, cells)], float)}
            assert len(fit(summarize(trained), scale=False).features) == 1 + indicator

    def test_a_constant_column_does_not_divide_by_zero_and_an_empty_one_is_left_out(self) -> None:
        trained = {"same": np.array([7.0, 7.0]), "never": np.array([NAN, NAN])}
        encoder = fit(summarize(trained), scale=True)
        assert encoder.features == ["same"]
        assert encoder.encode(trained).tolist() == [[0], [0]]

    def test_rounding_is_no_deviation(self) -> None:
        """The sum of sevenths differs from seven by rounding alone, and must not be blown up to features of size 1."""
        trained = {"same": np.full(49, 0.1), "merged": np.full(49, 1 / 7)}
        encoder = fit(merge([summarize({k: v[:13] for k, v in trained.items()}), summarize(trained)]), scale=True)
        assert [column.std for column in encoder.columns] == [1, 1]
        tiny = {"x": np.array([1 + 1e-9, 1 - 1e-9])}
        assert fit(summarize(tiny), scale=True).encode(tiny)[:, 0] == pytest.approx([1, -1], abs=1e-6)

    def test_saved_as_json(self) -> None:
        encoder = fit(summarize(self.TRAINED), scale=True)
        assert TableEncoder.from_dict(json.loads(json.dumps(encoder.as_dict()))) == encoder


numbers_or_nothing = st.lists(
    st.one_of(st.just(NAN), st.floats(-1e6, 1e6), st.floats(2000, 2030)), min_size=1, max_size=30
)


@given(numbers_or_nothing, st.data())
def test_sites_that_share_sums_agree_on_what_one_machine_computes(values: list[float], data: st.DataObject) -> None:
    """Mean and deviation to float64 tolerance, categories and indicators exactly, however rows lie among sites."""
    stages = data.draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=len(values), max_size=len(values)))
    whole = table(values, stages)
    site = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    parts = [summarize({name: column[site == k] for name, column in whole.items()}) for k in range(4)]
    together, one = merge(parts), summarize(whole)
    for name, sums in one.items():
        assert (together[name].cells, together[name].missing) == (sums.cells, sums.missing)
        assert together[name].categories == sums.categories
        assert together[name].mean == pytest.approx(sums.mean, rel=1e-12, abs=1e-9)
        known = values if name == "weight" else [0.0]
        largest = max((abs(each) for each in known if each == each), default=0.0)
        assert together[name].squares == pytest.approx(sums.squares, rel=1e-9, abs=1e-9 * (1 + largest**2))


class TestRefused:
    def test_other_columns(self) -> None:
        with pytest.raises(UserError, match="column 'b' is at some sites only"):
            merge([summarize({"a": np.array([1.0])}), summarize({"a": np.array([1.0]), "b": np.array([1.0])})])

    def test_columns_that_differ_in_capitals_are_both_named(self) -> None:
        with pytest.raises(UserError, match="column 'Weight' is at some sites only, and 'weight' at others"):
            merge([summarize({"weight": np.array([1.0])}), summarize({"Weight": np.array([1.0])})])

    def test_numbers_here_and_words_there(self) -> None:
        with pytest.raises(UserError, match="column 'a' has numbers at one site and words at another"):
            merge([summarize({"a": np.array([1.0])}), summarize({"a": np.array(["x"], object)})])

    def test_a_site_where_everything_is_missing_agrees_with_both(self) -> None:
        nothing = summarize({"a": np.array([NAN])})
        assert merge([nothing, summarize({"a": np.array(["x"], object)})])["a"].categories == ("x",)
        assert merge([nothing, summarize({"a": np.array([2.0])})])["a"].mean == 2

    def test_too_many_categories(self) -> None:
        names = np.array([f"p{k}" for k in range(MOST_CATEGORIES + 1)], object)
        with pytest.raises(UserError, match="column 'name' has 101 different words"):
            fit(summarize({"name": names}), scale=False)

    def test_nothing_at_all(self) -> None:
        with pytest.raises(UserError, match="no column"):
            fit(summarize({"a": np.array([NAN])}), scale=False)


class TestCells:
    def test_numbers(self) -> None:
        found = numbers(["1", "2.50", "?", "", "NaN", "n/a"])
        assert found[:2].tolist() == [1, 2.5]
        assert np.isnan(found[2:]).all()

    @pytest.mark.parametrize("cell", ["x", "inf", "1,5", "1 2"])
    def test_no_numbers(self, cell: str) -> None:
        with pytest.raises(ValueError):
            numbers([cell])

    def test_words(self) -> None:
        assert words(["1.0", "1", "a", "?", "NA", "1.5"]).tolist() == ["1", "1", "a", "", "", "1.5"]
