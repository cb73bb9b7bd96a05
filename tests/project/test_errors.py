"""Every error for users names a fix: the literals of UserError and its subclasses, over the syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: errors for users; InvalidData is a clause about another machine's data, and Refused is one about a message
ERRORS = {"UserError", "Damaged", "Unusable", "Diverged"}
#: what the sentence with the fix begins with
VERBS = re.compile(
    r"(Add|Admit|Agree|Approve|Ask|Begin|Call|Check|Choose|Compare|Compute|Convert|Copy|Correct|Create|Do|Drop|End|"
    r"Exclude|Fetch|Fill|Find|Finish|Fix|Flatten|Get|Give|Install|Label|Leave|List|Make|Move|Name|Number|Paste|Provide|"
    r"Put|Read|Register|Remove|Rename|Replace|Resize|Restore|Resume|Return|Revoke|Run|Save|Say|See|Send|"
    r"Set|Sort|Start|Stop|Train|Try|Type|Undo|Use|Verify|Wait|Widen|Write)\b"
)
#: values that are or end with a sentence with the fix
FIXES = re.compile(r"\b(did_you_mean|hint|advice|fix|how|_REMEDY|_how_to_get|_parameters)\b")
#: (end of the path, beginning of the text): why it has no fix of its own
ALLOWED = {
    ("engines/ray.py", "on machine "): "passes another machine's error on, with its fix",
    ("data/custom/own.py", "<listed.name(row)>: "): "passes an error of an image on, with its fix",
    ("config/validate.py", "<source>: "): "passes an error of _complaint on, with its fix",
}


def literal(node: ast.expr) -> str | None:
    """Return the text of a literal with its values in angle brackets; None for what passes an error on."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"<{ast.unparse(part.value)}>" if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
            for part in node.values
        )
    return None


def texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an error may have."""
    if isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for each in node.values for text in texts(each))
    elif (text := literal(node)) is not None:
        yield text


def has_fix(text: str) -> bool:
    """Return whether a sentence after the first begins with a verb, or a value holds the fix."""
    values = re.findall(r"<(.*?)>", text)
    later = re.split(r"[.?!:;]['\")]* |<[^<>]*> ", text)[1:]
    return any(map(FIXES.search, values)) or any(map(VERBS.match, later))


def errors(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module's errors with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ERRORS and node.args:
            yield from ((node.lineno, text) for text in texts(node.args[-1]))


def test_every_error_names_a_fix() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in errors(path.read_text())
        if not has_fix(text) and not any(str(path).endswith(end) and text.startswith(start) for end, start in ALLOWED)
    ]
    assert not missing, "\n" + "\n".join(missing)


def test_this_test_can_fail() -> None:
    source = """
raise UserError("rounds is 0, and must be at least 1.")
raise errors.UserError(f"rounds is {rounds}. It must be at least 1.")
raise UserError(problem or f"'{name}' is missing")
raise Damaged(f"'{path}' is damaged. {_REMEDY}")
raise UserError(f"rounds is {rounds}. Set it to 1." if rounds else f"no method '{name}'{did_you_mean(name, known)}")
raise InvalidData("its loss is missing")
raise UserError(str(error))
"""
    assert [line for line, text in errors(source) if not has_fix(text)] == [2, 3, 4]
