"""The sentence of an error is one line of bearable length, whatever it quotes."""

from __future__ import annotations

from specbench.common.errors import UsageError


def test_a_sentence_of_many_long_words_keeps_what_is_wrong_and_what_to_do() -> None:
    result = str(UsageError(f"--set {' '.join(['9' * 399] * 9)}: say whose option it is"))
    assert result.startswith("--set 999")
    assert result.endswith("999: say whose option it is")
    assert " … " in result
    assert len(result) == 1403
    assert str(UsageError("x y" * 466)) == "x y" * 466
