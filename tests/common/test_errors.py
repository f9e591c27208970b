"""The sentence of an error is one line of bearable length, whatever it quotes."""

from __future__ import annotations

from specbench.common.errors import UsageError


def test_a_sentence_of_many_long_words_keeps_what_is_wrong_and_what_to_do() -> None:
    said = str(UsageError(f"--set {' '.join(['9' * 399] * 9)}: say whose option it is"))
    assert said.startswith("--set 999")
    assert said.endswith("999: say whose option it is")
    assert " … " in said
    assert len(said) == 1403
    assert str(UsageError("x y" * 466)) == "x y" * 466
