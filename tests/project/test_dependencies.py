"""What src imports is what pyproject.toml declares, extra by extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import fedskew

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedskew"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: where the packages of an extra may be imported: a folder or a file
PLACES = {
    "flower": ("federation/", "cli/federation"),
    "ray": ("engines/ray.py", "experiment/preparation/resolve.py"),
    "privacy": ("experiment/privacy.py",),
    "track": ("experiment/callbacks/trackers.py",),
    "data": ("data/",),
    "pandas": ("experiment/views.py",),
    "onnx": ("experiment/export.py",),
    "timm": ("models/registry.py",),
}
#: distributions whose modules have another name, for those that may not be installed
MODULES = {
    **{"pillow": "PIL", "scikit-learn": "sklearn", "typing-extensions": "typing_extensions"},
    **{
        "protobuf": "google",
        "dp-accounting": "dp_accounting",
        "mlflow-skinny": "mlflow",
        "tensorboard": "torch.utils.tensorboard",
    },
}
#: imported only inside the program that brings it: a notebook
HOST = {"IPython"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", requirement)[0].lower() for requirement in requirements}


DECLARED = {"": names(PROJECT["dependencies"])}
DECLARED |= {extra: names(PROJECT["optional-dependencies"][extra]) for extra in PLACES}


def modules(extra: str) -> set[str]:
    return {MODULES.get(name, name) for name in DECLARED[extra]}


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, by statement or by name, but for those that only the type checker sees."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "importlib.import_module",
            "files.extra",
            "_extra",
        ):
            yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))
        pending += ast.iter_child_nodes(node)


def third_party() -> dict[str, set[str]]:
    """Every module from outside, and the files that import it."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in imported(path):
            top = name if name == "torch.utils.tensorboard" else name.partition(".")[0]
            if top not in (sys.stdlib_module_names | {"fedskew"}):
                found.setdefault(top, set()).add(str(path.relative_to(SOURCE)))
    return found


def test_what_is_imported_is_declared_in_the_right_extra() -> None:
    for module, files in third_party().items():
        if module in modules("") | HOST:
            continue
        allowed = [place for extra, places in PLACES.items() if module in modules(extra) for place in places]
        assert allowed, f"{module} is imported by {sorted(files)} and not declared in pyproject.toml"
        for file in files:
            assert file.startswith(tuple(allowed)), f"{file} imports {module}, which is not in its extra"


def test_what_is_declared_is_imported() -> None:
    found = third_party()
    for extra in DECLARED:
        assert modules(extra) <= found.keys(), extra


def test_declared_names_are_those_of_the_modules_distributions() -> None:
    distributions = metadata.packages_distributions()
    for declared in DECLARED.values():
        for name in declared:
            module = MODULES.get(name, name).partition(".")[0]
            if module in distributions and module != "torch":
                known = {re.sub(r"[-_.]+", "-", each).lower() for each in distributions[module]}
                assert name in known, name


def test_there_is_one_version_and_it_is_complete() -> None:
    assert "version" in PROJECT["dynamic"] and re.fullmatch(r"\d+\.\d+\.\d+", fedskew.__version__)
    for field in ("readme", "authors", "keywords", "classifiers"):
        assert PROJECT[field]
