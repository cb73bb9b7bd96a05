"""Imports go downwards only, and neither the work nor an engine knows a method by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.methods import registry

SOURCE = Path(__file__).parent.parent / "src" / "fedskew"

#: what each place may import of fedskew: the layers below it, and its own folder
L0 = {"errors", "types", "tree", "seeds", "sections", "config", "functional", "record", "record_lines"}
L0 |= {"run_folder", "run_lock", "atomic_io", "codec", "names", "consent", "site_scores"}
BELOW: dict[str, set[str]] = {
    "data": L0,
    "models": L0,
    "detection": L0,
    "parts": L0 | {"models", "detection"},
    "methods": L0 | {"parts"},
    "work": L0 | {"models", "parts", "data"},
    "engines": L0 | {"work", "parts"},
    "privacy": L0 | {"parts"},
    "evidence": L0 | {"data", "work", "privacy"},
    "resolve": L0 | {"data", "models"},
    "recording": L0 | {"models", "work", "evidence"},
    "experiment": L0 | {"data", "models", "parts", "methods", "work", "engines", "evidence", "resolve", "recording"},
    "verification": L0 | {"data", "models", "methods", "work", "privacy", "evidence", "resolve", "experiment"},
    "leaving": L0 | {"data", "parts", "work", "engines", "experiment"},
    "flower": L0 | {"data", "models", "parts", "methods", "work", "privacy", "resolve", "experiment"},
    "worklist": L0 | {"data", "models", "parts", "work", "experiment"},
    "report": {"errors", "names", "record", "run_lock", "config", "detection", "site_scores"},
    "watch": {"errors", "record", "run_lock", "report"},
    "track": {"errors", "names", "record"},
    "face": L0 | {"data", "parts", "methods", "experiment", "verification", "report", "track"},
    "space": L0 | {"methods", "face"},
    "sweep": L0 | {"resolve", "experiment", "report", "face", "space"},
    "reproduce": L0 | {"data", "models", "detection", "methods", "work", "experiment", "report"},
    "cli": L0
    | {
        "data",
        "methods",
        "parts",
        "experiment",
        "verification",
        "worklist",
        "face",
        "report",
        "watch",
        "track",
        "sweep",
        "reproduce",
    }
    | {"leaving", "federation"},
    "federation": L0 | {"data", "methods", "resolve", "experiment", "leaving", "flower", "report", "face"},
    "__main__": {"cli"},
}
#: within the lowest layer
FLOOR: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "names": {"errors"},
    "site_scores": set(),
    "seeds": set(),
    "tree": {"types"},
    "sections": {"errors"},
    "config": {"errors", "sections"},
    "consent": {"errors", "config"},
    "record_lines": set(),
    "atomic_io": set(),
    "record": {"errors", "record_lines", "atomic_io"},
    "run_lock": {"errors"},
    "run_folder": {"errors", "config", "record", "atomic_io"},
    "functional": {"errors", "types"},
    "codec": {"errors", "types", "tree", "atomic_io"},
}


def imports(path: Path) -> set[str]:
    """The places of fedskew that a file imports, those inside functions too."""
    found = set()
    for node in _walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            head, _, rest = node.module.partition(".")
            if head == "fedskew":
                found |= {rest.split(".")[0]} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedskew.")}
    return found - {"__version__"}


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only the type checker sees."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _walk(child)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    place = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if place == "__init__":
        assert not imports(path), "the public face looks names up when they are used"
        return
    allowed = FLOOR[place] if place in FLOOR else BELOW[place] | {place}
    assert imports(path) <= allowed


def test_the_page_lists_every_place_after_what_it_imports() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    table = page[page.index("| place |") : page.index("## A method is a sentence")]
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row]
    order = [name.removesuffix(".py").rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    places = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert sorted(order) == sorted(places - {"__init__", "__main__"})
    for place in order:
        files = [*(SOURCE / place).rglob("*.py"), *SOURCE.glob(f"{place}.py")]
        used = set().union(*map(imports, files))
        assert used <= {*order[: order.index(place)], place}, place


def test_no_part_of_a_family_imports_another_family() -> None:
    families = ("terms", "gradients", "corrections", "cohorts", "optimisers", "entries")
    for family in families:
        for path in [*(SOURCE / "parts" / family).glob("*.py"), *(SOURCE / "parts").glob(f"{family}.py")]:
            for other in families:
                assert other == family or f"fedskew.parts.{other}" not in path.read_text(), path


@pytest.mark.parametrize("folder", ["work", "engines"])
def test_no_method_is_named_where_none_may_be_known(folder: str) -> None:
    text = "\n".join(path.read_text().lower() for path in (SOURCE / folder).rglob("*.py"))
    assert text
    for name in registry.known(aliases=True):
        assert name.lower() not in text.split() and f"'{name}'" not in text and f'"{name}"' not in text, name
        if name.startswith("fed") and name != "fedskew":
            assert name not in text, name


def test_no_file_is_too_long() -> None:
    long = {str(p): n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400}
    assert not long
