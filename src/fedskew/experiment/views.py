"""Results as text, HTML, figures and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.client_names import printable
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.record import scores
from fedskew.report import run_warnings, tables
from fedskew.report.tables import percent

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fedskew.record.schema import RoundLine, SetupLine


class ResultViews:
    """What a result shows of itself."""

    config: Any
    header: Any
    rounds: list[RoundLine]
    setups: list[SetupLine]
    end: Any
    folder: Path | None

    def summary(self) -> str:
        """Return the most important numbers as text, a line for each."""
        found = facts(self)
        widest = max(map(len, found))
        return "\n".join(f"{name:<{widest}}  {printable(value)}" for name, value in found.items())

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row per round, indexed by the round.

        Raises:
            UserError: If pandas is not installed.
        """
        return data_frame([scalars(line) for line in self.rounds]).set_index("round")

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy over rounds, and the client models if they were evaluated.

        Args:
            path: Where to save the figure, such as "curves.png". Default: nowhere.

        Returns:
            The figure.
        """
        return figure({self.config.method: [self]}, self.config.evaluate.target, path)

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", folder='{self.folder}'"
        best, last = (percent(self.end[name], digits=1) for name in ("best", "last"))
        name = f"{self.config.method} on {self.config.data.name}, seed {self.config.seed}"
        return f"Result({name}: {number_of(len(self.rounds), 'round')}, best {best} %, last {last} %{where})"

    def _repr_html_(self) -> str:
        return html_table(["", f"{self.config.method} on {self.config.data.name}"], facts(self).items())


def facts(result: ResultViews) -> dict[str, str]:
    """Return what a command prints of a result: scores, time, traffic, digest and folder, by name."""
    traffic, end = tables.traffic(result), result.end
    found = _scores(result) | ({"note": "; ".join(notes)} if (notes := run_warnings.of(result)) else {})
    if (recall := tables.final_recall(result)) is not None:
        labels = result.header["data"]["labels"]
        found["recall by class"] = "  ".join(
            f"{name} {percent(None if share != share else share, digits=0)}"
            for name, share in zip(labels, recall, strict=True)
        )
    tail = {part: share for part in tables.TAIL if (share := tables.tail_score(result, part)) is not None}
    if tail:
        found["long tail"] = "  ".join(f"{part} {percent(share)} %" for part, share in tail.items())
    for group in tables.GROUPS:
        if (score := tables.client_score(result, group)) is not None:
            found[f"clients: {group}"] = f"{percent(score)} %"
    if result.header["data"].get("notes"):
        found["data"] = "; ".join(result.header["data"]["notes"])
    if "privacy" in end:
        found["privacy"] = end["privacy"]["statement"]
    return found | {
        "time": tables.duration(end["seconds"]),
        "up, down": f"{tables.size(traffic['up'])}, {tables.size(traffic['down'])}",
        "weights_sha256": end["weights_sha256"] or "no single model",
        **({} if result.folder is None else {"folder": str(result.folder)}),
    }


def _scores(result: ResultViews) -> dict[str, str]:
    """Return how good the models were, and in which rounds."""
    end = result.end
    if not result.rounds:
        return {"rounds": "none, so nothing was trained; the weights are the initial ones"}
    best_round = "" if end["best_round"] is None else f" (round {end['best_round']})"
    found = {"best": f"{percent(end['best'])} %{best_round}", "last": f"{percent(end['last'])} %"}
    if (chosen := end.chosen) is not None:
        found["chosen"] = f"round {chosen.round}, by {chosen.metric.replace('_', ' ')} on samples held back"
    averaged = len(scores.evaluated(result.rounds)[-10:])
    if averaged > 1:
        found[f"mean of last {averaged}"] = f"{percent(end['last10'])} %"
    undecided = next((line.get("undecided") for line in reversed(result.rounds) if "accuracy" in line), None)
    if undecided:
        tested = result.header["data"]["test"]
        found["diverged"] = (
            f"the last model gives no numbers for {undecided:,} of {tested:,} test samples, which count as wrong; a "
            "smaller --lr may help"
        )
    if "target" in end:
        reached = "not reached" if end["reached"] is None else f"reached in round {end['reached']}"
        found[f"target {percent(end['target'])} %"] = reached
    return found


def scalars(line: RoundLine) -> dict[str, Any]:
    """Return the numbers of a round that have one value each."""
    return {name: value for name, value in line.items() if isinstance(value, bool | int | float)}


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame."""
    try:
        import pandas
    except ImportError:
        raise UserError("to_pandas needs pandas, which is not installed. Type: pip install pandas") from None
    return pandas.DataFrame(list(rows))


def figure(groups: Mapping[str, Sequence[Any]], target: float | None, path: str | Path | None) -> Figure:
    """Draw the runs of each method; save the figure with `path`."""
    from fedskew.report.plots import curves, style

    drawn = curves.comparison(groups, tables.comparison(groups, target), target)
    if path is not None:
        style.save(drawn, Path(path))
    return drawn


def text_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, with columns that are aligned."""
    lines = [[printable(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def html_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as HTML, for notebooks."""
    cells = [f"<th>{escape(name)}</th>" for name in heading]
    body = ["".join(f"<td>{escape(printable(cell))}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in ("".join(cells), *body)) + "</table>"
