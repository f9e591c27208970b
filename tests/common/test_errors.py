"""The sentence of an error is one line of bearable length, whatever it quotes."""

from __future__ import annotations

from specbench.common.errors import UsageError


def test_what_is_quoted_is_cut_and_printable() -> None:
    said = str(UsageError(f"run.json names {'x' * 10_000}\x1b[31m, which is none"))
    assert said == f"run.json names {'x' * 400}… [31m, which is none"
    assert str(UsageError(f"{'a/' * 100} is no folder")) == f"{'a/' * 100} is no folder"
