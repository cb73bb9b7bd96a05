"""Let the site show the pages at the root of the repository, and list folders of generated pages in its navigation.

mkdocs calls these functions; mkdocs.yml names this file.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: pages outside docs/, which links in docs/ and the navigation name
PAGES = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "GOVERNANCE.md", "CODE_OF_CONDUCT.md"),
    "examples/README.md",
)
FOLDER = "project"
#: highlighted commands, and the flags in them
COMMANDS = re.compile(r'<div class="language-(?:sh|bash) highlight">.*?</div>', re.DOTALL)
FLAG = re.compile(r"(?<=[\s>])--?[a-z][\w-]*")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Replace each `FOLDER/` in the navigation by the pages in it."""
    config.nav = [_listed(item) for item in config.nav]
    return config


def _listed(item: Any) -> Any:
    if isinstance(item, dict):
        return {title: _listed(below) for title, below in item.items()}
    if isinstance(item, list):
        return [_listed(each) for each in item]
    if not item.endswith("/"):
        return item
    return [f"{item}README.md", *sorted(f"{item}{path.name}" for path in (ROOT / "docs" / item).glob("[!R]*.md"))]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the root, as if they lay in docs/project."""
    for name in PAGES:
        files.append(File.generated(config, f"{FOLDER}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links follow the pages that were moved; what has no page on the site becomes plain text."""
    there = page.file.src_uri
    if "\n## " not in markdown:  # an empty table of contents takes a third of the width, and so does a list of one page
        page.meta["hide"] = ["toc", "navigation"] if page.is_homepage else ["toc"]
    root = there.removeprefix(f"{FOLDER}/") if there.startswith(f"{FOLDER}/") else f"docs/{there}"

    def follow(match: re.Match[str]) -> str:
        target, sign, anchor = match[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(root), target))
        if place in PAGES:
            place = f"docs/{FOLDER}/{place}"
        if not place.startswith("docs/"):
            if not (ROOT / place).exists():
                raise FileNotFoundError(f"{root} links to {place}, which does not exist")
            return f"{match[1]} (`{place}`)" if "`" not in match[1] else match[1]
        return f"[{match[1]}]({os.path.relpath(place, posixpath.dirname(f'docs/{there}'))}{sign}{anchor})"

    return LINK.sub(follow, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep the dashes of a flag with its name where a long command goes on in the next line."""
    return COMMANDS.sub(lambda block: FLAG.sub(r'<span class="option">\g<0></span>', block[0]), html)
