"""What the numbers of a run do not say by themselves: that a part of its method, or all training, did not happen."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew import names
from fedskew.report.tables import Ran

#: clients that are named one by one
NAMED = 5


def of(run: Ran) -> list[str]:
    """Sentences without a full stop; none of a run whose method did all that it does."""
    return [*stages_left_out(run), *_nobody_noisy(run), *_no_steps(run), *_not_finite(run)]


def together(runs: Sequence[Ran]) -> list[str]:
    """Of several seeds, each sentence once, with how many it holds for if not for all."""
    found = [told for run in runs for told in of(run)]
    return [
        told if (n := found.count(told)) == len(runs) else f"{told} (with {n} of {len(runs)} seeds)"
        for told in dict.fromkeys(found)
    ]


def stages_left_out(run: Ran) -> list[str]:
    """Of a finished run; records from before stages were written down tell nothing."""
    stages = run.header.get("stages", []) if run.end is not None else []
    reached = 1 + max((line.get("stage", 0) for line in run.rounds), default=len(stages))
    if reached >= len(stages):
        return []
    opening = f", which begins with {stages[reached]}" if stages[reached] else ""
    return [f"stages {reached} of {len(stages)}: there were too few --rounds for the next{opening}"]


def _nobody_noisy(run: Ran) -> list[str]:
    verdicts = [line["verdict"] for line in run.doors if "judgement" in (line.get("verdict") or {})]
    if not verdicts or verdicts[-1]["noisy"]:
        return []
    return [f"detection says '{verdicts[-1]['judgement']['verdict']}', so nobody was treated as noisy"]


def _no_steps(run: Ran) -> list[str]:
    trained = not run.rounds or any(line.get("steps", 1) for line in run.rounds)
    return [] if trained else ["no client made a step in any round, so the weights are the initial ones"]


def _not_finite(run: Ran) -> list[str]:
    lines = [line.get("lost", {}) for line in (*run.rounds, *run.doors)]
    lost = [str(client) for line in lines for client, why in line.items() if "not finite" in why]
    if not lost:
        return []
    split, sites = run.header.get("config", {}).get("partition", {}), run.header.get("data", {}).get("sites") or ()
    named = names.of_clients(split.get("name", ""), split.get("clients", 0), sites)
    called = {str(number): name for number, name in enumerate(named)}
    clients = [called.get(client, client) for client in dict.fromkeys(lost)]
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    who = f"{'clients' if len(clients) > 1 else 'client'} {', '.join(clients[:NAMED])}{more}"
    if len(lost) == 1:
        return [f"1 update of {who} was left out because it was not finite"]
    return [f"{len(lost)} updates of {who} were left out because they were not finite"]
