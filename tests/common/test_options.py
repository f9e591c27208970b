"""Every way to write an option, and that no way of getting one wrong goes unnoticed."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import model_validator
from support.asserting import refusal
from support.wording import wording

from specbench.common import options as opt
from specbench.common.errors import UsageError


class Options(opt.Options):
    block_size: int = opt.option(16, "n", "block", help="tokens per block", ge=1, le=512)
    share: float = opt.option(0.5, help="a share", gt=0, le=1)
    window: Literal["block", "sliding"] = opt.option("block", "w", help="policy")
    on: bool = opt.option(False, help="a switch")


def parse(**raw: Any) -> Options:
    return opt.parse_options(Options, raw, "jacobi")


@pytest.mark.parametrize("name", ["block_size", "block-size", "n", "block"])
@pytest.mark.parametrize("value", [8, "8"])
def test_every_spelling_sets_the_option(name: str, value: Any) -> None:
    parsed = opt.parse_options(Options, {name: value}, "jacobi")
    assert parsed.block_size == 8
    assert parsed.model_dump()["block_size"] == 8  # recorded under its own name


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        pytest.param({"block_sise": 8}, ["of jacobi", "block_sise", "did you mean block_size"], id="misspelt"),
        pytest.param({"zzz": 8}, ["unknown", "known: block, block_size, n, on, share, w, window"], id="far off"),
        pytest.param({"block_size": 8, "n": 8}, ["'block_size'", "twice"], id="two spellings at once"),
        pytest.param({"n": 0}, ["option 'block_size' of jacobi", "from 1 to 512", "0"], id="too small"),
        pytest.param({"block_size": 513}, ["'block_size'", "from 1 to 512", "513"], id="too large"),
        pytest.param({"n": "eight"}, ["'block_size'", "integer", "'eight'"], id="not a number"),
        pytest.param({"n": 1.5}, ["'block_size'", "integer", "1.5"], id="not an integer"),
        pytest.param({"w": "blok"}, ["'window'", "'block' or 'sliding'", "'blok'"], id="not one of the choices"),
        pytest.param({"share": "nan"}, ["'share'", "'nan'"], id="nan"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(raw: dict[str, Any], parts: list[str]) -> None:
    text = refusal(UsageError, opt.parse_options, Options, raw, "jacobi")
    assert all(part in text for part in parts), text


def test_options_that_do_not_go_together_are_said_in_the_words_of_who_says_so() -> None:
    class Pair(opt.Options):
        one: bool = opt.option(False, help="one")
        two: bool = opt.option(False, help="two")

        @model_validator(mode="after")
        def _one_of_them(self) -> Pair:
            if self.one and self.two:
                raise ValueError("one goes without two")
            return self

    assert wording(refusal(UsageError, opt.parse_options, Pair, {"one": "true", "two": "true"}, "x"))


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e400"])
def test_a_number_that_no_record_can_hold_is_none(value: str) -> None:
    class Rate(opt.Options):
        lr: float = opt.option(0.1, help="a rate", gt=0)
        bound: float | None = opt.option(None, help="a bound")

    for name in ("lr", "bound"):
        with pytest.raises(UsageError, check=wording):
            opt.parse_options(Rate, {name: value}, "x")


class InFloat32(opt.Options):
    open: float = opt.option(0.5, help="between 0 and 1", gt=0, lt=1)
    free: float = opt.option(0.0, help="any number")
    maybe: float | None = opt.option(None, help="above 0", gt=0)


@pytest.mark.parametrize("raw", [{"open": 1e-50}, {"open": 1 - 1e-9}, {"free": -1e39}, {"maybe": 1e-60}])
def test_a_range_holds_in_float32_too(raw: dict[str, float]) -> None:
    (name,) = raw
    with pytest.raises(UsageError, match=name):
        opt.parse_options(InFloat32, raw, "it")
