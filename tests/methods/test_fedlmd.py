from __future__ import annotations

from fedskew.methods import registry
from fedskew.parts.terms.distillation import LMD
from tests.contract import harness


def ended(expression: str, rounds: int) -> str:
    return str(harness.finish(harness.config(expression, rounds=rounds)).end["weights_sha256"])


def test_the_switch_is_two_stages() -> None:
    free, taught = registry.build("fedlmd(beta=2, teacher_from=7)").stages
    assert free.terms == (LMD(2, 1, teacher=False),) and free.rounds == 7
    assert taught.terms == (LMD(2, 1, teacher=True),) and taught.rounds is None


def test_the_teacher_free_rounds_may_have_parameters_of_their_own() -> None:
    free, taught = registry.build("fedlmd(beta=2, tau=3, teacher_from=7, free_beta=0, free_tau=5)").stages
    assert free.terms == (LMD(0, 5, teacher=False),) and taught.terms == (LMD(2, 3, teacher=True),)


def test_before_the_switch_it_is_teacher_free_and_afterwards_not() -> None:
    assert ended("fedlmd(teacher_from=2)", rounds=2) == ended("fedlmd-tf", rounds=2)
    others = {ended("fedlmd", rounds=3), ended("fedlmd-tf", rounds=3), ended("fedlmd(teacher_from=2)", rounds=3)}
    assert len(others) == 3


def test_what_the_server_remembers_survives_the_switch() -> None:
    # with weight 0 both stages are the same method; momentum of the server must not start anew between them
    cut = harness.finish(harness.config("fedlmd(beta=0, teacher_from=2)+avgm"))
    assert cut.end["weights_sha256"] == harness.finish(harness.config("fedavgm")).end["weights_sha256"]


def test_a_combination_changes_every_stage() -> None:
    for stage in registry.build("fedlmd(teacher_from=7)+prox").stages:
        assert [term.name for term in stage.terms] == ["LMD", "Proximal"]


def test_teacher_and_teacher_free_forms_and_both_rules_train_differently() -> None:
    ends = [ended(each, rounds=2) for each in ("fedntd", "fedlmd", "fedlmd-tf", "fedlmd(majority='mean_present')")]
    assert len(set(ends)) == 4
