"""Write docs/reference/licenses.md: the license of every package that fedskew needs or brings.

    python scripts/licenses.py            # write the page
    python scripts/licenses.py --check    # exit with 1 if the page is out of date

The packages are those of pyproject.toml and constraints.txt. Licenses are what the installed packages state themselves.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "licenses.md"
#: what the projects state of packages that `make test` does not install
STATED = {
    name: license
    for license, several in {
        "Apache-2.0": "datasets ghp-import mkdocs-click mlflow-skinny msgpack onnx ray tensorboard timm watchdog",
        "BSD-2-Clause": "mkdocs",
        "BSD-3-Clause": "babel colorama markdown pandas",
        "ISC": "griffelib mkdocs-autorefs mkdocstrings mkdocstrings-python",
        "MIT": "backrefs jsonschema jsonschema-specifications mergedeep mkdocs-get-deps mkdocs-material "
        "mkdocs-material-extensions onnxscript paginate platformdirs pymdown-extensions "
        "pyyaml-env-tag referencing rpds-py wandb",
    }.items()
    for name in several.split()
}
SHORT = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF",
}
SPELLED = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
INTRODUCTION = """\
# Licenses of dependencies

fedskew is under [Apache-2.0](../../LICENSE). It contains no code of the packages below; pip installs them beside it.
No package on this page is under the GPL, LGPL or AGPL.

A license is what the package's own metadata state. Packages marked with * are not installed for `make test`; for
them it is what their project states. Packages may contain libraries with licenses of their own, which lie in their
installed folders. Builds of torch for NVIDIA GPUs also install NVIDIA's libraries, which are not open source.
`make docs` writes this page from `pyproject.toml`, `constraints.txt` and the installed packages.
"""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: Iterable[str]) -> list[str]:
    return [normalized(re.split(r"[\[<>=~!; ]", each)[0]) for each in requirements]


def declared() -> dict[str, list[str]]:
    """Return every package that pyproject.toml declares, and for what: "always", or the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[str]] = {name: ["always"] for name in names(project["dependencies"])}
    for extra, requirements in sorted(project["optional-dependencies"].items()):
        for name in names(requirements):
            if name != "fedskew":
                found.setdefault(name, []).append(f"`{extra}`")
    return dict(sorted(found.items()))


def other_packages() -> list[str]:
    """Return the other packages of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return sorted(set(names(line for line in lines if line and not line.startswith("#"))) - declared().keys())


def license_of(name: str) -> str:
    """Return the license that a package states; with * if it is one of STATED, installed here or not."""
    if name in STATED:
        return STATED[name] + " *"
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        sys.exit(f"'{name}' is not installed. Install it, or add its license to STATED in scripts/licenses.py.")
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [each.rpartition(" :: ")[2] for each in fields.get_all("Classifier") or [] if "License ::" in each]
    classifiers = [SHORT.get(each, each) for each in classifiers if each != "DFSG approved"]
    text = str(fields.get("License") or "")
    plain = text if "\n" not in text and 0 < len(text) < 40 and text != "UNKNOWN" else ""
    if plain and len(classifiers) < 2:
        return SPELLED.get(plain, plain)
    if not classifiers:
        sys.exit(f"'{name}' states no license. Look it up, and let scripts/licenses.py say it.")
    return ", ".join(classifiers)


def page() -> str:
    direct = [f"| {name} | {license_of(name)} | {', '.join(why)} |" for name, why in declared().items()]
    others = [f"| {name} | {license_of(name)} |" for name in other_packages()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Packages that fedskew needs\n\n| package | license | needed by |\n|---|---|---|",
            *direct,
            "\n## Packages that these bring\n\n| package | license |\n|---|---|",
            *others,
            "",
        ]
    )


def outdated() -> list[str]:
    """Return the lines that the page lacks or has too many; a package that is not installed has either form."""
    have, want = ([line.replace(" * |", " |") for line in text.splitlines()] for text in (PAGE.read_text(), page()))
    return [f"- {line}" for line in have if line not in want] + [f"+ {line}" for line in want if line not in have]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/reference/licenses.md.")
    parser.add_argument("--check", action="store_true", help="Only compare; exit with 1 if the page is out of date.")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif lines := outdated():
        sys.exit("\n".join(["docs/reference/licenses.md is out of date. Run 'make docs'.", *lines]))


if __name__ == "__main__":
    main()
