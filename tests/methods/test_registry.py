"""Mistakes in the parameters of a method, each refusal by its value."""

from __future__ import annotations

import pytest

from fedskew.core.errors import UserError
from fedskew.methods import registry


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("fedlmd(beta=1e999)", "method 'fedlmd': beta is inf. Make it a finite number"),
        ("fedlmd(tau=1e999)", "method 'fedlmd': tau is inf. Make it a finite number"),
        ("dp(clip=1, sigma=1e999)", "method 'dp': sigma is inf. Make it a finite number"),
        ("fedlmd(beta=-1)", "method 'fedlmd': beta is -1. Make it greater than or equal to 0"),
        ("fedlmd(beta=abc)", "'fedlmd(beta=abc)': beta is abc, which is neither a number nor a word in quotes"),
        ("fedlmd(beta=nan)", "'fedlmd(beta=nan)': beta is nan, which is neither a number nor a word in quotes"),
        ("fedlmd(tau=1, beta=1/0)", "beta=1/0)': beta is 1 / 0, which is neither a number nor a word in quotes"),
        ("fedlmd(beta 1)", "cannot read the parameters of 'fedlmd(beta 1)'. Type them as name=value, for example"),
        ("fedprox(mu={[]: 1})", "mu is {[]: 1}, which is neither a number nor a word in quotes"),
        ("fedprox(mu=1, mu=2)", "'fedprox(mu=1, mu=2)' gives mu twice. Drop one of them"),
        ("fedprox(mu=1)(mu=2)", "cannot read the parameters of 'fedprox(mu=1)(mu=2)'. Type them as name=value"),
        ("fedlmd(**x)", "cannot read the parameters of 'fedlmd(**x)'. Type them as name=value, for example"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(expression: str, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        registry.build(expression)
    assert sentence in str(refusal.value)


def test_every_number_of_every_method_must_be_finite() -> None:
    numbers = [
        (name, parameter)
        for name in registry.known()
        for parameter, default in registry.entry(name).defaults.items()
        if isinstance(default, float)
    ]
    assert len(numbers) > 20
    for name, parameter in numbers:
        with pytest.raises(UserError, match=parameter):
            registry.build(f"{name}({parameter}=1e999)")
