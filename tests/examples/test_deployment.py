"""The files for clusters and containers: what can be checked without SLURM, several machines or Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedskew.federation import processes
from fedskew.record import reader
from tests.federation import made
from tests.federation.transport.processes import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
DOCKER = EXAMPLES / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def with_programs(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which `fedskew` is this version."""
    program = folder / "bin" / "fedskew"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedskew "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"} | more


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_understood(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def test_the_array_has_a_task_for_each_method_and_seed() -> None:
    text = (EXAMPLES / "slurm" / "array.sh").read_text()
    (methods,), (seeds,), (last,) = (
        re.findall(pattern, text, re.M)
        for pattern in (r"^methods=\((.*)\)$", r"^seeds=(\d+)", r"^#SBATCH --array=0-(\d+)$")
    )
    assert len(methods.split()) * int(seeds) == int(last) + 1


@pytest.mark.slow
def test_a_task_of_the_array_runs_and_continues(tmp_path: Path) -> None:
    """Task 4 is method 4 / 3 = 1, fedlmd, with seed 4 mod 3 = 1; the same task again resumes the run."""
    environment = with_programs(tmp_path, SLURM_ARRAY_TASK_ID="4", SLURM_CPUS_PER_TASK="1")
    words = ["--dataset", "digits", "--clients", "3", "--rounds", "1", "--local-epochs", "1"]
    for _ in range(2):
        command = ["bash", str(EXAMPLES / "slurm" / "array.sh"), *words]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    run = reader.read(tmp_path / "runs" / "fedlmd-seed1")
    assert run.header is not None and run.header.method == "fedlmd" and run.header.config["seed"] == 1
    assert len(run.rounds) == 1 and run.end is not None


def test_the_cluster_is_one_that_ray_can_start() -> None:
    path = EXAMPLES / "ray" / "cluster.yaml"
    cluster = yaml.safe_load(path.read_text())
    assert all("ray start" in cluster[f"{kind}_start_ray_commands"][-1] for kind in ("head", "worker"))
    ray = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is an extra: make test-ray")
    ray.validate_config(ray.prepare_config(cluster))


def test_the_image_has_what_it_copies() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+) \S+$", text, re.M):
        assert all((ROOT / name).exists() for name in line.split()), line
    assert re.search(r"^ENTRYPOINT \[\"fedskew\"\]$", text, re.M)
    page = (EXAMPLES / "README.md").read_text()
    for service in COMPOSE["services"].values():
        assert f"docker build -f examples/docker/Dockerfile -t {service['image']} ." in page
        assert service["pull_policy"] == "never"


#: Docker as this machine has it: services are folders, and their commands are processes
STAND_IN = """#!{python}
import json, os, subprocess, sys, time
from pathlib import Path

services, place = json.loads(Path("{services}").read_text()), Path("{folder}")

def local(service, words):
    return ["fedskew", *(word.replace("/srv/", f"{{place / service}}/") for word in words)]

assert sys.argv[1] == "compose" and sys.argv[2] == "--file" and sys.argv[4] == "--project-directory", sys.argv
command, *words = sys.argv[6:]
words = [word for word in words if word not in ("--rm", "--no-deps", "-T")]
if command == "run":
    os.execvp("fedskew", local(words[0], words[1:]))
elif command == "exec":
    assert words[1] == "fedskew"
    os.execvp("fedskew", local(words[0], words[2:]))
elif command == "up":
    for name in sorted(services, key=lambda name: len(services[name].get("depends_on", []))):
        log = (place / f"{{name}}.log").open("w")
        subprocess.Popen(local(name, services[name]["command"]), stdout=log, stderr=log, start_new_session=True)
        test = local(name, services[name]["healthcheck"]["test"][1:])[1:]
        while subprocess.run(test).returncode:
            time.sleep(0.1)
elif command == "down":
    for name in services:
        subprocess.run(local(name, ["federation", "stop", "/srv/federation"]), check=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sites_train_by_the_commands_of_the_containers(tmp_path: Path) -> None:
    """The script and the compose file as they are; only `docker` is replaced, by local processes on loopback."""
    folder, services = tmp_path / "demo", tmp_path / "services.json"
    services.write_text(json.dumps(COMPOSE["services"]))
    environment = with_programs(tmp_path, ADDRESS=f"127.0.0.1:{free_port()}")
    docker = tmp_path / "bin" / "docker"
    docker.write_text(STAND_IN.format(python=sys.executable, services=services, folder=folder))
    docker.chmod(0o755)
    for number, site in enumerate(("north", "south")):
        (folder / site).mkdir(parents=True)
        made.table(folder / site / "data.csv", number)
    words = shlex.split("fedavg --rounds 2 --lr 0.1 --local-epochs 1 --batch-size 8")
    command = [str(DOCKER / "federate.sh"), str(folder), made.CLASSES, *words]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    finally:
        for site in COMPOSE["services"]:
            processes.stop_all(folder / site / "federation")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "coordinator" / "federation" / "runs").iterdir()
    assert [line["replies"] for line in reader.read(run).rounds] == [2, 2]
    assert f"The report: {run / 'report.html'}" in done.stdout.splitlines()


def test_without_data_the_script_says_where_it_belongs(tmp_path: Path) -> None:
    done = subprocess.run([DOCKER / "federate.sh", tmp_path, "a,b", "fedavg"], capture_output=True, text=True)
    assert done.returncode == 2 and f"There is no {tmp_path}/north/data.csv" in done.stderr
