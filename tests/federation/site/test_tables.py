"""Sites whose tables have categories and gaps agree on common features, and train the simulation's bits with them."""

from __future__ import annotations

import csv
import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import fedskew
from fedskew import config as configuration
from fedskew.data.custom.features import agreed
from fedskew.data.sources import load
from fedskew.federation import folders, processes
from fedskew.federation.coordinator import training
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.preparation import own_kind, own_source
from fedskew.federation.rules import Rules, parse_rules
from fedskew.federation.site.approval import approval_statuses, open_site
from fedskew.federation.site.client_app import client_app
from fedskew.federation.site.statements import FOLDER, read
from tests.commands import complaint, succeed
from tests.federation.running import together
from tests.federation.transport.loopback import Loopback, node
from tests.federation.transport.processes import free_port

SITES = ("north", "south")
SPLIT = "label,age,stage,split"


def table(path: Path, site: int) -> Path:
    """The south has no patient in stage III, and no number in every fifth row."""
    drawn = np.random.default_rng(site)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";" if site else ",")
        writer.writerow(SPLIT.split(","))
        for at in range(30):
            age = "" if site and at % 5 == 0 else f"{drawn.normal(60 + 5 * (at % 2), 9):.1f}"
            stage = ("I", "II", "III")[at % (3 - site)]
            writer.writerow([("benign", "malignant")[at % 2], age, stage, "test" if at % 6 == 5 else "train"])
    return path


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """A coordinator and two sites that agreed on features before they joined."""
    files = []
    for at, name in enumerate(SITES):
        data = table(tmp_path / "data" / f"client-{name}" / "my.csv", at)
        files.append(tmp_path / f"{name}.json")
        succeed("data", "statistics", data, "--classes", "benign,malignant", "-o", files[-1])
    succeed("data", "agree", *files, "--scale", "-o", tmp_path / "encoder.json")
    asked = ("--name", "lungs", "--address", "127.0.0.1:9092", "--sites", ",".join(SITES))
    more = ("--classes", "benign,malignant", "--encoder", tmp_path / "encoder.json")
    succeed("federation", "init", tmp_path / "coordinator", *asked, *more)
    for name in SITES:
        invitation = tmp_path / "coordinator" / "invitations" / f"{name}.zip"
        succeed(
            "federation", "join", invitation, tmp_path / name, "--data", tmp_path / "data" / f"client-{name}/my.csv"
        )
    return tmp_path


def test_a_federation_trains_what_one_machine_does(federation: Path) -> None:
    words = ("--model", "mlp", "--rounds", "2", "--clients", "2")
    for name in SITES:
        shown = " ".join(succeed("federation", "approve", federation / name, "fedavg", *words, "--yes").split())
        assert "agreed from the sums of all sites ('data statistics'): mean and deviation of age" in shown
        assert "words of stage (I, II, III)" in shown
    config = training.configure(
        folders.open_coordinator(federation / "coordinator"), method="fedavg", model="mlp", rounds=2
    )
    values = {"config": configuration.dumps(config), "own-data": True, "score": "sites"}
    nodes = {}
    for number, name in enumerate(SITES):
        site = folders.open_site(federation / name)
        here = {"data": site.data, "memory": str(federation / name / "memory"), "federation": str(federation / name)}
        nodes[number] = node(client_app(), values, site=number, **here | site.data_options)
    together = federate(Loopback(nodes), config, federation / "out", parse_rules(values))
    options = config.data.options
    alone = fedskew.run(
        data=federation / "data",
        model="mlp",
        rounds=2,
        engine="inline",
        progress=False,
        settings=[f"data.options.{key}={options[key]}" for key in ("classes",)],
        config=configuration.from_dict({"data": {"options": {"encoder": options["encoder"]}}}),
    )
    assert together.end.weights_sha256 == alone.end.weights_sha256
    # the model is of use at a site, with the common features
    new = federation / "data" / "client-south" / "my.csv"
    assert fedskew.predict(federation / "out", new).classes == ("benign", "malignant")


def test_a_site_refuses_other_features_than_it_approved(federation: Path) -> None:
    succeed("federation", "approve", federation / "north", "fedavg", "--model", "mlp", "--clients", "2", "--yes")
    config = training.configure(folders.open_coordinator(federation / "coordinator"), method="fedavg", model="mlp")
    asked = str(config.data.options["encoder"]).replace('"scale": true', '"scale": false')
    values = config.model_dump()
    values["data"]["options"]["encoder"] = asked
    site = open_site(federation / "north")
    (status,) = approval_statuses(site)
    statement, _ = read(site.folder / FOLDER / f"{status.name}.json")
    rules = parse_rules({"own-data": True, "score": "sites"})
    assert statement.differences(config, rules, date.today()) == []
    (said,) = statement.differences(configuration.from_dict(values), rules, date.today())
    assert said.startswith("data.options.encoder is ")


def test_a_damaged_file_is_refused(federation: Path) -> None:
    (federation / "encoder.json").write_text('{"columns": 3}')
    asked = ("--name", "x", "--address", "127.0.0.1:9092", "--sites", "a", "--encoder", federation / "encoder.json")
    assert "is no encoder" in complaint("federation", "init", federation / "other", *asked)


def test_how_a_site_writes_numbers_is_its_own_affair(federation: Path, tmp_path: Path) -> None:
    """The same table with thousands and codes for missing values gives the same features, if the site says so."""
    path = tmp_path / "data" / "client-south" / "my.csv"
    rows = [line.split(";") for line in path.read_text().splitlines()]
    aged = [[label, f"1,{age.replace('.', '')[:3]}" if age else "-99", *rest] for label, age, *rest in rows[1:]]
    odd = tmp_path / "odd.csv"
    odd.write_text("\n".join(";".join(each) for each in [rows[0], *aged]))
    invitation = federation / "coordinator" / "invitations" / "south.zip"
    asked = ("federation", "join", invitation, federation / "again", "--data", odd)
    assert "may have a decimal comma or thousands" in complaint(*asked)
    succeed(*asked, "--decimal", "comma", "--missing", "-99")
    site = open_site(federation / "again")
    assert site.notation == {"decimal": "comma", "missing": "-99"}
    succeed("federation", "approve", site.folder, "fedavg", "--model", "mlp", "--clients", "2", "--yes")
    node = {"data": site.data, **site.data_options, **site.notation}
    encoder = site.data_options["encoder"]
    source = own_source(configuration.from_dict({"data": {"options": site.data_options}}), Rules(own_data=True), node)
    plain = load("own", odd, classes="benign,malignant", encoder=encoder, decimal="comma", missing="-99", vacant=True)
    assert np.array_equal(source.train.x, plain.train.x)
    assert own_kind(node).shape == (len(agreed(encoder).features),)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_sites_by_processes(tmp_path: Path) -> None:
    """From sums to predictions by the commands alone; each site has a word of its own and another way to write."""
    data = {name: tmp_path / name / "patients.csv" for name in SITES}
    for at, (path, words) in enumerate(
        zip(data.values(), (("I", "II", "north only"), ("I", "II", "south only")), strict=True)
    ):
        path.parent.mkdir()
        drawn, mark = np.random.default_rng(at), ",;"[at]
        lines = [mark.join(("label", "age", "stage"))]
        for row in range(60):
            ill = row % 2
            age = f"{drawn.normal(50 + 20 * ill, 5):.1f}"
            lines.append(mark.join((("benign", "malignant")[ill], age.replace(".", ".,"[at]), words[row // 2 % 3])))
        lines[3] = mark.join(("malignant", ("NA", "-99")[at], "?"))
        path.write_text("\n".join(lines))
    files = []
    for at, (name, path) in enumerate(data.items()):
        files.append(tmp_path / f"{name}.json")
        shown = succeed(
            *("data", "statistics", path, "--classes", "benign,malignant", "-o", files[-1]),
            *(("--set", "missing=-99") if at else ()),
        )
        assert f"I, II, {name} only" in shown
        # what the site reads is what leaves: nothing but sums and words
        columns = json.loads(files[-1].read_text())["columns"]
        assert set(columns) == {"age", "stage"} and columns["age"]["missing"] == 1 and columns["age"]["cells"] == 48
    succeed("data", "agree", *files, "--scale", "-o", tmp_path / "encoder.json")
    coordinator, members = tmp_path / "coordinator", [tmp_path / f"{name}-site" for name in SITES]
    asked = ("--name", "lungs", "--address", f"127.0.0.1:{free_port()}", "--sites", ",".join(SITES))
    more = ("--classes", "benign,malignant", "--encoder", tmp_path / "encoder.json")
    succeed("federation", "init", coordinator, *asked, *more)
    words = ("--model", "mlp", "--rounds", "3", "--local-epochs", "3", "--lr", "0.1")
    for at, (name, member) in enumerate(zip(SITES, members, strict=True)):
        invitation = coordinator / "invitations" / f"{name}.zip"
        said = ("--missing", "-99") if at else ()
        succeed("federation", "join", invitation, member, "--data", data[name], *said)
        approved = " ".join(
            succeed("federation", "approve", member, "fedavg", *words, "--clients", "2", "--yes").split()
        )
        assert "mean and deviation of age" in approved
        assert "words of stage (I, II, north only, south only)" in approved
        succeed("federation", "admit", coordinator, name, member / "key.pub")
    try:
        for group in ([coordinator], members):
            together("start", group)
        said = json.loads(succeed("federation", "run", coordinator, "fedavg", *words, "--json"))
    finally:
        for folder in [*members, coordinator]:
            processes.stop_all(folder)
    assert said["last"] > 0.8
    run = coordinator / "runs" / "fedavg-seed0"
    new = tmp_path / "new.csv"
    new.write_text("stage,age\nnorth only,45\nsouth only,75\nIII,75\n")
    found = fedskew.predict(run, new)
    assert found.labels == ["benign", "malignant", "malignant"]
    assert [note.partition("column 'stage': ")[2].partition(", such")[0] for note in found.notes] == [
        "1 of 3 cells have a word that is in no training row"
    ]
