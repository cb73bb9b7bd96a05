"""Build the package as for a release, install it outside the repository, and run the README's demo there.

    python scripts/check_wheel.py            # borrow the installed dependencies of this Python: nothing is downloaded
    python scripts/check_wheel.py --clean    # install the dependencies of constraints.txt as well: what a user gets

The wheel is built from the source archive, so that both are complete.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
#: what the installed package must not find: the checkout
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command prints, or end with all of it."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked(*where: str) -> list[str]:
    """Return the files that are in git, or would be after `git add`."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *where).splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def build(folder: Path) -> Path:
    """Build the source archive, and the wheel from it, as from a fresh clone: lists of earlier builds hide gaps."""
    for name in tracked("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = folder / "clone" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "clone")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def check_files(wheel: Path) -> None:
    """A wheel has every file of the package, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (described,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        message = message_from_bytes(archive.read(described))
        Metadata.from_email(archive.read(described), validate=True)
    if wrong := packed ^ {name.removeprefix("src/") for name in tracked("src/fedskew")}:
        sys.exit(f"The wheel and src/fedskew differ in {sorted(wrong)}. Mend package-data in pyproject.toml.")
    if message["Description-Content-Type"] != "text/markdown" or "# fedskew" not in str(message.get_payload()):
        sys.exit("The wheel does not describe itself by the README. Mend readme in pyproject.toml.")


def install(wheel: Path, folder: Path, clean: bool) -> Path:
    """Install a wheel into a new environment; return its folder of programs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    needed = ["-c", ROOT / "constraints.txt"] if clean else ["--no-deps"]
    run(*pip, "install", "--quiet", *needed, wheel)
    if not clean:
        # Packages of a folder that a .pth names come after our own, and its own .pth files, such as that of
        # an editable fedskew, are not read.
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(*pip, "check")
    return folder / "bin"


def try_out(programs: Path, version: str, folder: Path) -> None:
    """Run the demo: the commands of `make run`, shortened, and the first Python of the README."""
    folder.mkdir()
    where = run(programs / "python", "-c", "import fedskew; print(fedskew.__file__)", cwd=folder).strip()
    if not Path(where).is_relative_to(programs.parent):
        sys.exit(f"fedskew was imported from {where}, not from the wheel.")
    fedskew = programs / "fedskew"
    if (printed := run(fedskew, "--version", cwd=folder)).split()[-1] != version:
        sys.exit(f"The wheel has version {version}, but 'fedskew --version' prints {printed.strip()}.")
    recipe = re.search(r"fedskew (compare fedavg fedntd .*?)\n\w", (ROOT / "Makefile").read_text(), re.S)
    assert recipe, "Makefile: target 'run' compares methods"
    demo = re.sub(r"--rounds \d+", "--rounds 2", recipe[1].replace("\\\n", " ").removesuffix("endif")).split()
    run(fedskew, *demo, cwd=folder)
    run(fedskew, "report", "runs/demo", "-o", "report.html", cwd=folder)
    for each in ("card fedvls", "methods", "data list", "reproduce --list"):
        run(fedskew, *each.split(), cwd=folder)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code, "README.md has Python"
    run(programs / "python", "-c", code[1], cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build, install and try the package outside the repository.")
    parser.add_argument("--clean", action="store_true", help="Install all dependencies anew, without borrowing any.")
    clean = parser.parse_args().clean
    with tempfile.TemporaryDirectory(prefix="fedskew-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        check_files(wheel)
        programs = install(wheel, folder / "venv", clean)
        try_out(programs, wheel.name.split("-")[1], folder / "elsewhere")
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name} ({size:.1f} MB): built from the source archive, complete, installed, and the demo runs.")


if __name__ == "__main__":
    main()
