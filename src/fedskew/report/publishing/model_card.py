"""The card of a model, from the record of its run: what it is, how good it is, and what not to expect of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedskew import __version__
from fedskew.core.client_names import printable
from fedskew.record.schema import EndLine
from fedskew.report import breakdowns, seed_statistics, standings, verdict
from fedskew.report.blocks import Block, Code, FactList, Paragraph, markdown
from fedskew.report.html import panels
from fedskew.report.load import LoadedRun
from fedskew.report.tables import percent

_USE = """\
from safetensors.torch import load_file

weights = load_file("model.safetensors")  # by the names of the network's state_dict
"""


def page(each: LoadedRun, citation: str) -> str:
    """Return the card of a run's model as Markdown, with the YAML front matter that hubs of models read."""
    header, (task,) = each.run.header, standings.tasks([each])
    data, model = header["data"], header["model"]
    tags = ["federated-learning", "fedskew", *_words(header["method"])]
    front = {"library_name": "fedskew", "tags": tags, "datasets": [data["name"]], "metrics": ["accuracy"]}
    summary = (
        f"{model['name']} with {model['parameters']:,} parameters, trained by {header['method']} over "
        f"{each.config['partition']['clients']:,} clients. fedskew {__version__} wrote this page from the run's record."
    )
    sections: dict[str, Sequence[Block]] = {
        "Training": [FactList(panels.setting(task))],
        "Scores": [
            Paragraph(_tested(each)),
            breakdowns.class_table(task),
        ],
        "Label noise": [Paragraph(_noise(each))],
        "Privacy": [Paragraph(_privacy(each))],
        "Use": [Code(_USE, "python"), Paragraph(_inputs(each)), FactList(_classes(each))],
        "Limits": [Paragraph(text) for text in _limits(each, task)],
        "Run it again": [FactList(_again(each), code=True)],
        "Cite": [Code(citation, "bibtex")],
    }
    head = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items())
    body = "".join(f"\n## {title}\n\n{markdown(blocks)}" for title, blocks in sections.items())
    return printable(f"---\n{head}---\n\n# {header['method']} on {data['name']}\n\n{summary}\n{body}", lines=True)


def _words(method: str) -> list[str]:
    return [name.partition("(")[0] for name in method.split("+")]


def _tested(each: LoadedRun) -> str:
    where = "samples held back from training" if each.held_back else "the test samples"
    plain, balanced = (percent(seed_statistics.score(each.run, of)) for of in ("last", "last balanced"))
    return (
        f"The model after the last round has an accuracy of {plain} % on {where}, and a balanced accuracy, the mean "
        f"recall of classes, of {balanced} %. Other seeds than {each.seed} give others. Recall of each class in %:"
    )


def _noise(each: LoadedRun) -> str:
    """Return the noise that was simulated, and the last verdict; which clients it means is not for everybody."""
    noise, clients = each.run.header.get("noise"), each.config["partition"]["clients"]
    made = ""
    if noise:
        made = f"Labels were flipped on purpose: {noise['kind']}, at {len(noise['noisy']):,} of {clients:,} clients. "
    found = [line["verdict"] for line in each.run.setups if line.is_detection]
    if not found:
        return f"{made}The method did not look for clients with wrong labels, so the labels are taken as they are."
    judged, p = found[-1]["judgment"]["verdict"], found[-1]["judgment"].get("p_value")
    chance = "" if p is None or p != p else f" (p = {p:.3f})"
    treated = f"{len(found[-1]['noisy']):,} of {clients:,} clients were taken to have wrong labels"
    return f"{made}The detection of clients with wrong labels says '{judged}'{chance}; {treated}."


def _privacy(each: LoadedRun) -> str:
    claim = (each.run.end or EndLine()).privacy
    if claim is None:
        return "No claim: nothing was added to the clients' updates, so the model may reveal what it was trained on."
    return f"Differential privacy: {claim['statement']}."


def _inputs(each: LoadedRun) -> str:
    data, network = each.run.header["data"], each.run.header["model"]
    built = f"The network is '{network['name']}' with the arguments {json.dumps(network['args'])}."
    if not data.shape:
        return built
    shape = f"A sample has shape {list(data.shape)}"
    if not data.std:
        return f"{built} {shape}."
    return f"{built} {shape}. Scale images to 0..1, subtract mean {list(data.mean)}, and divide by {list(data.std)}."


def _classes(each: LoadedRun) -> dict[str, str]:
    return {"classes, in the order of the outputs": ", ".join(each.run.header["data"]["labels"])}


def _again(each: LoadedRun) -> dict[str, str]:
    return {name: value for name, value in panels.again(each).items() if name != "folder"}


def _limits(each: LoadedRun, task: standings.TaskStandings) -> list[str]:
    cautions = [*verdict.cautions(task), *task.notes]
    if stopped := (each.run.end or EndLine()).stopped:
        cautions.append(f"The run was stopped early: {stopped}.")
    return [*cautions, "The model was tested on the data above only. Test it on yours before you use it."]
