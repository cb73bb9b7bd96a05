"""The pages and files around the code are true: changelog, compatibility, licenses, workflows, templates, hooks."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import fedskew
from fedskew import cli
from fedskew.config import keys
from fedskew.core import atomic_io
from fedskew.runtime import checkpoint
from tests.commands import complaint

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
YAML = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".pre-commit-config.yaml"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def renamed(heading: str) -> list[tuple[str, str]]:
    """Return the rows of a table of the changelog, without code marks."""
    section = CHANGELOG.split(f"### Changed: {heading}\n")[1].split("\n### ")[0]
    rows = [line.replace("`", "").strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(old, new) for old, new in rows[1:]]


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield every command with its flags."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        flags = {flag for option in command.get_params(click.Context(command)) for flag in option.opts}
        yield f"{path}{name}", flags


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_parses(path: Path) -> None:
    assert isinstance(load(path), dict)


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)) | {".venv/.installed"}
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = load(path)
        assert True in workflow, "YAML reads the key 'on' as true"
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                for line in step.get("run", "").splitlines():
                    words = line.split()
                    if words[:1] == ["make"]:
                        assert {word for word in words[1:] if "=" not in word} <= targets, line


def test_workflows_do_what_the_page_for_contributors_says() -> None:
    assert {path.stem for path in (ROOT / ".github" / "workflows").glob("*.yml")} == {"docs", "lint", "tests", "wheel"}
    run = (ROOT / ".ci" / "run").read_text()
    assert "export CI=true" in run and "make check-wheel" in run, "else missing browsers and files go unnoticed"


def test_what_make_lint_checks_is_checked_before_a_commit() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    hooks = load(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert re.findall(r"\$\(BIN\)/(\w+)", recipe) == [
        hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks
    ]


def test_tests_run_on_every_python_that_is_promised() -> None:
    tests = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["tests"]
    assert tests["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(
    ("linked", "code"),
    [("there.md#part", 0), ("nowhere.md", 1), ("there.md#nowhere", 1)],
    ids=["good", "page", "anchor"],
)
def test_a_broken_link_or_anchor_fails_the_site(tmp_path: Path, linked: str, code: int) -> None:
    """The command of the Makefile with the checks of mkdocs.yml, on two pages; --quiet would undo --strict."""
    pytest.importorskip("mkdocs", reason="mkdocs is an extra: make docs-site")
    (words,) = re.findall(r"\$\(BIN\)/python (-m mkdocs build .*)", (ROOT / "Makefile").read_text())
    site = load(ROOT / "mkdocs.yml")
    (tmp_path / "mkdocs.yml").write_text(
        yaml.safe_dump({name: site[name] for name in ("site_name", "strict", "validation")})
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[x]({linked})\n")
    (tmp_path / "docs" / "there.md").write_text("# There\n\n## Part\n")
    done = subprocess.run([sys.executable, *shlex.split(words)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def test_only_the_folders_at_the_root_are_not_spelled() -> None:
    """docs/results is read by people; results/ has records."""
    excluded = tomllib.loads((ROOT / "typos.toml").read_text())["files"]["extend-exclude"]
    assert not [pattern for pattern in excluded if pattern.endswith("/") and not pattern.startswith("/")]


def test_issue_forms_have_what_a_form_needs() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = load(path)
        if path.stem == "config":
            continue
        assert form["name"] and form["description"] and form["body"]
        named = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(named) == len(set(named)) > 0
        assert all(field["attributes"].get("label") for field in form["body"] if field["type"] != "markdown")


def test_hooks_are_local() -> None:
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repositories[0]["hooks"])


def test_the_changelog_has_this_version_or_what_is_not_released() -> None:
    headings = re.findall(r"^## \[?([\w.]+)", CHANGELOG, re.M)
    assert "Unreleased" in headings or fedskew.__version__ in headings


def test_renamed_flags_and_commands_are_those_of_the_command_line() -> None:
    assert isinstance(cli.main, click.Group)
    known = dict(commands(cli.main))
    flags = set().union(*known.values())
    for old, new in renamed("flags and commands"):
        if new.startswith("fedskew"):
            name, *flag = new.split()[1:]
            assert name in known and set(flag) <= known[name], new
            name, *flag = old.split()[1:]
            assert name not in known or not set(flag) & known[name], old
        else:
            assert new in flags and old not in flags
            assert new in complaint("run", old, "1")


@pytest.mark.parametrize(("old", "new"), renamed("keys of the configuration"))
def test_renamed_keys_are_refused_under_their_old_name(old: str, new: str) -> None:
    assert new in keys.KEYS and old not in keys.KEYS
    with pytest.raises(fedskew.UserError, match=re.escape(f"there is no key '{old}'")):
        fedskew.configure(settings=[f"{old}=1"])


def test_renamed_keywords_are_refused_under_their_old_name() -> None:
    keywords = {key.keyword for key in keys.KEYS.values()}
    rows = [re.findall(r"run\((\w+)=\.\.\.\)", f"{old} {new}") for old, new in renamed("Python")]
    pairs = [row for row in rows if len(row) == 2]
    assert len(pairs) == 5
    for old, new in pairs:
        assert new in keywords and old not in keywords
        with pytest.raises(fedskew.UserError, match=f"there is no keyword '{old}'"):
            fedskew.run("fedavg", **{old: 1})  # type: ignore[arg-type]


def test_a_record_of_an_older_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_bytes(
        atomic_io.with_checksum(json.dumps({"kind": "header", "schema": 2})) + b"\n"
    )
    with pytest.raises(fedskew.UserError, match="has schema 2, but this version of fedskew reads schema 3"):
        fedskew.load(tmp_path)


def test_a_checkpoint_with_other_fields_is_refused(tmp_path: Path) -> None:
    manifest = {
        "state": "state-1.safetensors",
        "others": {},
        "serial": 1,
        "round": 1,
        "record_bytes": 1,
        "seconds": 1.0,
    }
    path = tmp_path / checkpoint.MANIFEST
    path.write_bytes(atomic_io.with_checksum(json.dumps(manifest)))
    with pytest.raises(fedskew.UserError, match="is damaged"):
        checkpoint.read(path)


def test_licenses_are_those_of_the_packages() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "licenses.py"))
    assert script["outdated"]() == []
    listed = re.findall(r"^\| ([\w-]+) \| (.+?) \|", (ROOT / "docs" / "reference" / "licenses.md").read_text(), re.M)
    assert script["declared"]().keys() <= {name for name, _ in listed}
    assert not [name for name, license in listed if "GPL" in license]


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "GOVERNANCE.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / link).exists(), link


def test_governance_is_ten_lines() -> None:
    assert len(re.findall(r"^\d+\. ", (ROOT / "GOVERNANCE.md").read_text(), re.M)) == 10
