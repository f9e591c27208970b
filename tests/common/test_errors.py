"""The sentence of an error is one line of bearable length, whatever it quotes."""

from __future__ import annotations

from specbench.common.errors import UsageError, unknown_name


def test_a_sentence_of_many_long_words_keeps_what_is_wrong_and_what_to_do() -> None:
    result = str(UsageError(f"--set {' '.join(['9' * 399] * 9)}: say whose option it is"))
    assert result.startswith("--set 999")
    assert result.endswith("999: say whose option it is")
    assert " … " in result
    assert len(result) == 1403
    assert str(UsageError("x y" * 466)) == "x y" * 466


def test_a_long_list_of_names_is_cut() -> None:
    result = str(unknown_name("request", "x", [f"HumanEval/{n}" for n in range(164)], "in this run", see="see the log"))
    assert "unknown request 'x' in this run" in result
    assert "HumanEval/0" in result
    assert result.endswith("more; see the log")
    assert len(result) < 200
    assert "known: a, b" in str(unknown_name("task", "zzz", ["b", "a"], see="see the log"))
