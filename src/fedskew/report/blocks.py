"""What pages are made of: texts, facts, tables, and pictures, which HTML and Markdown draw alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedskew.report import tables


@dataclass(frozen=True)
class Block:
    """A piece of a page; `macro` is the template's macro that draws it."""

    macro: ClassVar[str]

    def markdown(self) -> str:
        """Return the block as Markdown; nothing for what must be drawn."""
        return ""


@dataclass(frozen=True)
class Heading(Block):
    """The title of what follows inside a panel."""

    macro = "heading"
    text: str

    def markdown(self) -> str:
        return f"### {self.text}\n"


@dataclass(frozen=True)
class Paragraph(Block):
    """A text; `kind` is how much it matters, and `strong` stands before it."""

    macro = "paragraph"
    text: str
    kind: Literal["", "soft", "note", "missing", "verdict"] = ""
    strong: str = ""

    def markdown(self) -> str:
        text = f"**{self.strong}** {self.text}" if self.strong else self.text
        return f"> {text}\n" if self.kind == "note" else f"{text}\n"


@dataclass(frozen=True)
class FactList(Block):
    """Names and values below each other; as `code` where they are to be copied."""

    macro = "facts"
    values: Mapping[str, str]
    code: bool = False

    def markdown(self) -> str:
        mark = "`" if self.code else ""
        return "".join(f"- {name}: {mark}{value}{mark}\n" for name, value in self.values.items())


@dataclass(frozen=True)
class TableCell:
    """A text, a smaller one below it, a share of color behind it, a style, and a picture above."""

    text: str
    below: str = ""
    shade: float | None = None
    bold: bool = False
    style: str = ""
    picture: str = ""

    def __str__(self) -> str:
        below = self.below and (f"({self.below})" if self.text else self.below)
        return " ".join(filter(None, (self.text, below)))


@dataclass(frozen=True)
class Table(Block):
    """A table with a heading; `note` says what it leaves out, and `kind` is its style."""

    macro = "table"
    heading: Sequence[str]
    rows: Sequence[Sequence[TableCell | str]]
    note: str = ""
    title: str = ""
    kind: Literal["", "bars", "tall", "confusion", "strips", "text", "narrow"] = ""

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [list(map(str, row)) for row in self.rows]

    def markdown(self) -> str:
        table = tables.markdown(self.heading, self.cells)
        return table + (f"\n{self.note}\n" if self.note else "")


@dataclass(frozen=True)
class Picture(Block):
    """HTML or SVG that stands inside the page; `label` says what it shows, to those who cannot see it."""

    macro = "picture"
    content: str
    label: str = ""


@dataclass(frozen=True)
class Code(Block):
    """Lines to copy."""

    macro = "code"
    text: str
    language: str = ""

    def markdown(self) -> str:
        return f"```{self.language}\n{self.text.rstrip()}\n```\n"


@dataclass(frozen=True)
class Fold(Block):
    """Blocks below a title, which can be folded away."""

    macro = "fold"
    title: str
    blocks: Sequence[Block]
    open: bool = False

    def markdown(self) -> str:
        return "\n".join([f"**{self.title}**\n", markdown(self.blocks)])


def folds(titled: Iterable[tuple[str, Sequence[Block]]]) -> list[Fold]:
    """Fold away all but the first."""
    return [Fold(title, blocks, open=number == 0) for number, (title, blocks) in enumerate(titled)]


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, one below the other."""
    return "\n".join(filter(None, (each.markdown() for each in blocks)))


def points(share: float, *, sign: bool = True) -> str:
    """Write a difference in percentage points."""
    return f"{100 * share:{'+' if sign else ''}.2f}".replace("-", "−")


def shaded(share: float | None, digits: int = 2) -> TableCell:
    """Make a cell of a share, with as much color."""
    return TableCell(tables.percent(share, digits=digits), shade=shade(share))


def shade(share: float | None) -> float | None:
    """Return the share of color behind a cell; none behind what is no number."""
    return None if share is None or share != share else share
