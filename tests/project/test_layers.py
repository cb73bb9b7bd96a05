"""Imports go downwards, runtime and engines know no method, and nothing grows too large to read."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.methods import registry

SOURCE = Path(__file__).parents[2] / "src" / "fedskew"
PAGE = SOURCE.parents[1] / "docs" / "explanation" / "architecture.md"

#: what each place may import beside itself, from the lowest place to the highest; `""` is the package's version
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "config": {"core"},
    "functional": {"core"},
    "record": {"core", "config"},
    "data": {"", "core"},
    "models": {"core", "record"},
    "detection": {"core"},
    "metrics": {"core", "record"},
    "parts": {"core", "functional", "models", "detection"},
    "methods": {"core", "parts"},
    "runtime": {"core", "functional", "data", "models", "parts"},
    "engines": {"core", "runtime"},
    "report": {"", "core", "config", "record", "detection", "metrics"},
    "experiment": {
        *("core", "config", "record", "data", "models", "metrics", "parts", "methods", "runtime", "engines", "report")
    },
    "benchmark": {"core", "config", "functional", "data", "runtime", "engines", "experiment"},
    "label_review": {"core", "config", "record", "data", "models", "parts", "runtime", "experiment"},
    "tuning": {"core", "config", "record", "methods", "experiment", "report"},
    "reproduce": {
        *("core", "config", "record", "data", "models", "detection", "methods", "runtime", "experiment", "report")
    },
    "federation": {
        *("", "core", "config", "record", "data", "models", "metrics", "parts", "methods", "runtime"),
        *("experiment", "report"),
    },
    "api": {"core", "config", "record", "experiment", "report", "label_review", "tuning"},
    "cli": {
        *(
            "",
            "core",
            "config",
            "record",
            "data",
            "methods",
            "experiment",
            "benchmark",
            "report",
            "label_review",
            "api",
        ),
        *("reproduce", "federation"),
    },
    "__main__": {"cli"},
}
#: the modules of parts that runtime and engines may know: what a part is, not which parts there are
PROTOCOL = {"part", "protocol", "stages", "views"}
#: strings outside methods/, reproduce/ and benchmark/ that equal the name of a method, each with its reason
NAMES = {
    ("config/schema.py", "fedavg"): "the default of the key method",
    ("config/schema.py", "fedntd"): "a value of cohort.replay: the draws of that code, part of the record's format",
    ("experiment/preparation/prepare.py", "fedntd"): "reads that value of cohort.replay",
    ("data/transforms/augment.py", "fednoro"): "an augmentation, a value of data.augment",
    ("data/transforms/augment.py", "fpl"): "an augmentation, a value of data.augment",
    ("config/noise.py", "local"): "a value of noise.scope",
    ("engines/ray.py", "local"): "Ray's word for a cluster of this machine alone",
    ("report/html/panels.py", "local"): "the section of the configuration",
    ("report/versus_local.py", "local"): "what federated methods are compared with",
    ("report/versus_local.py", "centralized"): "what they could reach at most",
    ("report/detection.py", "fednoro"): "tells a user whose run has no detection which method has one",
}
#: names of methods that runtime and engines may use, for they are words of the language
WORDS = {"local", "median"}
LARGE_FOLDERS = {
    "methods": "one file for each paper",
    "parts": "one file for each kind of part, which a method's author picks from",
    "cli": "one file for each group of commands",
    "report": "one file for each question that a report answers",
}

FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return a file's dotted name below the package: "" for the package itself."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_of(path): path for path in FILES}


def imports(tree: ast.AST) -> set[str]:
    """Return the modules of the package that a file imports, inside functions too, but not for type checkers only."""
    found = set()
    for node in _walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            head, _, rest = node.module.partition(".")
            if head == "fedskew":
                inner = {".".join(filter(None, (rest, alias.name))) for alias in node.names}
                found |= {name if name in MODULES else rest for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("fedskew.")}
    return found


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _walk(child)


TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
IMPORTS = {name: imports(tree) for name, tree in TREES.items()}


def place(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_downwards(module: str) -> None:
    if not module:
        assert not IMPORTS[""], "the package itself looks names up when they are used"
        return
    assert {place(each) for each in IMPORTS[module]} <= LAYERS[place(module)] | {place(module)}


def test_a_layer_comes_after_all_that_it_imports() -> None:
    below: set[str] = {""}
    for name, allowed in LAYERS.items():
        assert allowed <= below, name
        below.add(name)
    assert set(LAYERS) == {place(module) for module in MODULES if module}
    assert not any("methods" in LAYERS[name] for name in ("parts", "runtime", "engines"))


def test_no_module_imports_itself_by_a_circle() -> None:
    # a package's own __init__ may name its modules, which do not import it back
    order = list(graphlib.TopologicalSorter(IMPORTS).static_order())
    assert order.index("core.errors") < order.index("parts.part") < order.index("runtime.loop") < order.index("api")
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(IMPORTS | {"core.errors": {"parts.part"}}).static_order())


def test_no_kind_of_part_imports_another_kind() -> None:
    kinds = ("terms", "gradients", "corrections", "cohorts", "optimizers", "setups")
    for module, imported in IMPORTS.items():
        for kind in kinds:
            if module.startswith(f"parts.{kind}"):
                others = {each for each in imported if each.startswith(tuple(f"parts.{k}" for k in kinds if k != kind))}
                assert not others, module


@pytest.mark.parametrize("folder", ["runtime", "engines"])
def test_runtime_and_engines_know_no_concrete_part(folder: str) -> None:
    concrete = {
        node.name
        for module, tree in TREES.items()
        if place(module) == "parts" and module.removeprefix("parts.") not in PROTOCOL
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert {"Aggregate", "CrossEntropy", "SGD", "Detect"} <= concrete
    own = {module: tree for module, tree in TREES.items() if place(module) == folder}
    assert len(own) > 3
    for module, tree in own.items():
        assert {each.removeprefix("parts.") for each in IMPORTS[module] if place(each) == "parts"} <= PROTOCOL, module
        used = {getattr(node, "id", getattr(node, "attr", getattr(node, "value", None))) for node in ast.walk(tree)}
        assert not {name for name in used if isinstance(name, str)} & concrete, module


def test_no_method_is_named_outside_its_package() -> None:
    known = set(registry.known(aliases=True))
    found = {
        (str(MODULES[module].relative_to(SOURCE)), node.value)
        for module, tree in TREES.items()
        if place(module) not in ("methods", "reproduce", "benchmark")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    }
    assert found == set(NAMES)
    for folder in ("runtime", "engines"):
        text = "\n".join(path.read_text() for path in (SOURCE / folder).rglob("*.py"))
        assert not named(text) - WORDS, folder


def named(text: str) -> set[str]:
    """Return the methods whose names are in a text, also as pieces of longer names such as `krum_weights`."""
    each = registry.known(aliases=True)
    return {name for name in each if re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", text.lower())}


@pytest.mark.parametrize(
    "line", ['if method.startswith("krum("):', "def rfa_weights() -> None:", "# as LoRA does", "from x import fedbn"]
)
def test_a_method_in_the_text_of_runtime_would_be_found(line: str) -> None:
    assert named(line) - WORDS


def test_the_page_has_every_place_in_order_and_every_folder() -> None:
    page = PAGE.read_text()
    table = page[page.index("| place |") : page.index("## One round")]
    order = re.findall(r"^\| `([^`/]+?)(?:/|\.py)?` \|", table, re.MULTILINE)
    assert order == [name for name in LAYERS if name != "__main__"]
    folders = {path.parent.relative_to(SOURCE) for path in FILES} - {Path(".")}
    assert not {str(folder) for folder in folders if f"`{folder}/`" not in page}
    assert "../pictures/architecture.svg" in page


def test_the_picture_shows_every_place_below_or_right_of_what_imports_it() -> None:
    picture = (PAGE.parents[1] / "pictures" / "architecture.svg").read_text()
    names = re.findall(r'class="name" x="([\d.]+)" y="(\d+)">([a-z_]+)', picture)
    where = {name: (int(y), float(x)) for x, y, name in names}
    assert set(where) == set(LAYERS) - {"__main__"}
    wrong = [(a, b) for a in where for b in LAYERS[a] if b and where[b] <= where[a]]
    assert not wrong


def test_no_file_is_too_long() -> None:
    assert not {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 400}


def test_no_function_is_too_long() -> None:
    long = {
        # a docstring does not count: a method's is its card
        (str(MODULES[module].relative_to(SOURCE)), node.name): node.end_lineno
        - node.lineno
        + 1
        - (node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    }
    assert not {key: lines for key, lines in long.items() if lines > 60}


def test_no_folder_is_too_large() -> None:
    sizes = {str(p.parent.relative_to(SOURCE)): len(list(p.parent.glob("*.py"))) for p in FILES}
    assert {folder for folder, n in sizes.items() if n > 15} == set(LARGE_FOLDERS)
