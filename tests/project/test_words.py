"""The project speaks the field's language: words that were replaced do not come back."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src", "tests", "scripts", "benchmarks", "examples")
FILES = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py") if path != Path(__file__))

#: names of modules that were replaced
MODULES = {
    *("face", "evidence", "leaving", "worklist", "space", "names", "sections", "record_lines", "hurt", "contact"),
    *("shortfalls", "numbers", "cells", "one", "still", "sheet", "again", "pace", "post", "office", "whereabouts"),
    *("glance", "catalogue", "entries", "optimisers", "optimiser", "work", "dossier"),
}
#: identifiers that were replaced: classes, functions, arguments, attributes, variables
IDENTIFIERS = {
    *("Keep", "Desk", "Pass", "Sums", "Settled", "Seal", "Cover", "Gathered", "Inspector", "Given", "NOTHING", "Shelf"),
    *("Pupil", "Keeper", "Tell", "Advance", "Progress", "Door", "Opened", "Ran", "Entry", "Asked"),
    *("desk", "mine", "told", "gives", "needs", "individual", "counts_steps", "one_model", "paced", "ragged"),
    *("gaps", "sift", "lift", "settle", "settled", "furnish", "theirs", "begun", "_begun", "_go", "held"),
    *("_class_room", "shelf", "pupil", "heard", "unheard", "office", "whereabouts", "glance", "worklist", "mended"),
    *("door", "doors", "opened", "seed_name", "optimiser", "per_round", "score_clients", "Local", "Site"),
    *("Sheet", "STILL", "seal", "unseal", "is_sealed", "inspector", "MINE", "KEEPER"),
}
#: (beginning of the path, names): what classes and functions there must not define; elsewhere the names have a meaning
DEFINITIONS = {
    "src/fedskew/core/": {"State", "nearest", "theirs"},
    "src/fedskew/parts/": {"Run", "ask", "gather", "several"},
    "src/fedskew/methods/": {"Run", "ask", "gather", "several"},
    "src/fedskew/runtime/": {"Run", "State"},
    "src/fedskew/config/schema.py": {"batch", "score_clients"},
    "src/fedskew/config/keywords.py": {"batch", "epochs"},
}
#: words that are part of a longer identifier, in any place of it
PIECES = {
    "desk",
    "told",
    "heard",
    "furnish",
    "pupil",
    "whereabouts",
    "worklist",
    "mended",
    "dossier",
    "optimiser",
    "normalise",
}
#: strings that were replaced: kinds of record lines, keys of the configuration, flags
STRINGS = {
    *("door", "doors", "local.batch", "evaluate.batch", "per_round", "evaluate.score_clients", "keeps"),
    *("--batch", "--per-round", "--epochs", "--score-clients", "--optimiser", "--engine=wire"),
}
BRITISH = re.compile(
    r"\b\w*(?:(?:optim|normal|regular|initial|memor|general|personal|central|summar|random|minim|maxim|recogn)is|"
    r"realis(?=e|ing|ation)|organis(?=e|ing|ation)|behaviour|colour|neighbour|favour|licence|catalogue|judgement)\w*",
    re.IGNORECASE,
)

#: words and phrases of docstrings and pages that have no other meaning here
PROSE = re.compile(
    r"\b(?:whoever|furnish\w*|mended|unheard|turned round|no use for it)\b"
    r"|\b(?:is|are|was|were|be) (?:heard|told(?! apart| from))\b",
    re.IGNORECASE,
)
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md")
    if path.name != "CHANGELOG.md"
)

#: (end of the path, word): why it stays
ALLOWED = {
    ("record/schema.py", "held"): "a key of the record: the samples of each class that a site scored",
    ("models/test_weights.py", "held"): "what a file of weights holds",
    ("report/test_participation.py", "held"): "the same key of the record",
    ("report/test_two_models.py", "held"): "the same key of the record",
    ("experiment/callbacks/progress.py", "Progress"): "a class of rich",
    ("detection/cells.py", "cells"): "the cells of FedNoRo's table of losses: client by class",
    ("detection/test_cells.py", "cells"): "the cells of FedNoRo's table of losses: client by class",
    ("parts/servers/reduce.py", "Normalised"): "the part's first name, which enters the seeds",
    ("parts/terms/two_views.py", "SelfRegularised"): "the part's first name, which enters the seeds",
    ("methods/test_fednova.py", "Normalised"): "the part's first name, which enters the seeds",
    ("reference/combinations.md", "Normalised"): "the same, as errors show it",
    ("reference/combinations.md", "SelfRegularised"): "the same, as errors show it",
}


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every identifier with its line."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                line = getattr(node, "lineno", 0)
                yield from ((piece, line) for piece in name.split("."))


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of classes, functions and fields with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node.lineno
        for each in node.body if isinstance(node, ast.ClassDef | ast.Module) else ():
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            yield from ((target.id, target.lineno) for target in targets if isinstance(target, ast.Name))


def faults(text: str) -> list[tuple[str, int]]:
    """Return the replaced words of a source text, each with its line."""
    tree = ast.parse(text)
    found = {
        (name, line)
        for name, line in identifiers(tree)
        if name in IDENTIFIERS or PIECES & set(name.lower().split("_")) or BRITISH.search(name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in STRINGS:
                found.add((node.value, node.lineno))
            found |= {(word, node.lineno) for word in BRITISH.findall(node.value)}
    return sorted(found, key=lambda fault: fault[1])


def allowed(path: Path, word: str) -> bool:
    return any(str(path).endswith(end) and word == each for end, each in ALLOWED)


def test_replaced_words_do_not_come_back() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in FILES
        for word, line in faults(path.read_text())
        if not allowed(path, word)
    ]
    assert not found, "\n" + "\n".join(found)


def test_replaced_definitions_do_not_come_back_where_they_were() -> None:
    texts = [(str(path.relative_to(ROOT)), path.read_text()) for path in FILES]
    assert all(any(name.startswith(begin) for name, _ in texts) for begin in DEFINITIONS)
    found = [
        f"{name}:{line}: {word}"
        for begin, words in DEFINITIONS.items()
        for name, text in texts
        if name.startswith(begin)
        for word, line in definitions(ast.parse(text))
        if word in words
    ]
    assert not found, "\n" + "\n".join(found)


def test_replaced_names_of_modules_do_not_come_back() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in FILES
        if MODULES & {path.stem.removeprefix("test_"), path.parent.name}
        and not allowed(path, path.stem.removeprefix("test_"))
    ]
    assert not found, "\n" + "\n".join(found)


def test_replaced_words_of_prose_do_not_come_back() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in (*FILES, *PAGES)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in (*PROSE.finditer(line), *BRITISH.finditer(line))
        if not allowed(path, match[0])
    ]
    assert not found, "\n" + "\n".join(found)


def test_a_public_class_has_one_home() -> None:
    assert not homes([(path, path.read_text()) for path in FILES if "src" in path.parts])


def homes(sources: list[tuple[Path, str]]) -> dict[str, list[str]]:
    """Return the public classes that several modules define."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in sources:
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_this_test_can_fail() -> None:
    snippet = """
class Desk(Part):
    needs = frozenset()

    def lift(self, update, told=None, *, optimiser="adam"):
        '''Normalise it.'''
        return run("--per-round", settled=told.held)
"""
    words = {word for word, _ in faults(snippet)}
    assert words == {
        *("Desk", "needs", "lift", "told", "optimiser", "Normalise", "--per-round", "settled", "held"),
    }
    assert not faults("def accumulate(self, update, sums):\n    return sums.add('optimizer', update.checkpoint.keep)\n")
    defined = {word for word, _ in definitions(ast.parse("class A:\n    several = True\n    batch: int = 5"))}
    assert defined == {"A", "several", "batch"}
    assert BRITISH.search("evaluate.memorisation") and not BRITISH.search("a promise in the realism of organisms")
    assert PROSE.search("No site is told.") and not PROSE.search("They cannot be told apart.")
    assert homes([(Path("a.py"), "class Task: ..."), (Path("b.py"), "class Task: ...\nclass _X: ...")]) == {
        "Task": ["a.py", "b.py"]
    }
