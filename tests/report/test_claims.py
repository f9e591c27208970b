"""Published rows: every one says something, agrees with itself or says that it does not, and bad ones are refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from specbench.common import UsageError, registry
from specbench.hardware.gpus import find
from specbench.models.names import configs
from specbench.report.claims.catalog import Claim, half_unit, over_bandwidth, published_claims, read

TABLE = """
[parameters]
"Some-8B" = 8000000000

[gpus]
"A100" = ["a100-40gb", "a100-80gb"]

[[table]]
name = "t"
paper = "P"
source = "Table 1"
url = "https://arxiv.org/abs/1"
gpu = "A100"
model = "Some-8B"
caveat = "of the table"
claim = [
  { method = "jf", task = "gsm8k", speedup = 2.50, tok_s = 100.0, baseline_tok_s = 40.0, caveat = "of the row" },
  { method = "jf", task = "mbpp", tpf = 3, url = "https://a.invalid/row", also = { stationary = 1.60 } },
]
"""


PLAIN = {"id": "t/x", "paper": "P", "source": "S", "url": "https://a.invalid", "method": "jf", "speedup": "2.0"}


def claim(**fields: Any) -> Claim:
    """A claim of a speedup, with whatever else."""
    return Claim.model_validate({**PLAIN, **fields})


def test_a_row_has_its_tables_words_and_figures_keep_their_digits() -> None:
    first, second = read(TABLE).claims
    assert (first.id, second.id) == ("t/jf-gsm8k", "t/jf-mbpp")
    assert (first.paper, first.gpu, first.caveat) == ("P", "A100", "of the table; of the row")
    assert (second.caveat, second.speedup, second.tpf) == ("of the table", None, Decimal(3))
    assert str(first.speedup) == "2.50"
    assert (first.url, second.url) == ("https://arxiv.org/abs/1", "https://a.invalid/row")
    assert (first.batch, first.temperature, first.options) == (1, None, {})
    assert {name: str(figure) for name, figure in second.also.items()} == {"stationary": "1.60"}


@pytest.mark.parametrize(
    ("speedup", "tok_s", "baseline", "agrees"),
    [
        ("4.0", "163.9", "41.3", True),  # 3.97
        ("3.9", "163.9", "41.3", False),
        ("1.1", "45.7", "43.5", True),  # 1.0506
        ("1.1", "45.6", "43.5", True),  # 1.0483, and 1.0506 with 45.65 over 43.45
        ("1.1", "45.60", "43.50", False),
        ("5.73", "954", "166", True),  # 5.727 to 5.767
        ("2.22", "99.32", "44.69", True),
        ("2.28", "99.32", "44.69", False),
        ("7", None, "10.0", True),
        ("7", "10.0", None, True),
    ],
)
def test_agreement_is_as_fine_as_the_digits(
    speedup: str, tok_s: str | None, baseline: str | None, agrees: bool
) -> None:
    assert consistent(claim(speedup=speedup, tok_s=tok_s, baseline_tok_s=baseline, note="for the test")) is agrees


def test_a_claim_has_a_bandwidth_bound_for_each_board() -> None:
    # 8·10⁹ weights of 2 bytes are 16 GB; 1,555 GB/s read them 97.1875 times a second.
    found = over_bandwidth(claim(tok_s="80.0", baseline_tok_s="40.0"), 8_000_000_000, 2.0, find("a100-40gb"))
    assert found.tok_s == pytest.approx(97.1875)
    assert found.share == pytest.approx(40 / 97.1875)
    assert over_bandwidth(claim(), 8_000_000_000, 2.0, find("a100-40gb")).share is None
    catalog = read(TABLE)
    first = catalog.claims[0]
    assert [bound.tok_s for bound in catalog.bandwidth(first)] == pytest.approx([1555e9 / 16e9, 2039e9 / 16e9])
    assert catalog.bandwidth(first.model_copy(update={"gpu": "V100"})) == ()
    assert catalog.bandwidth(first.model_copy(update={"model": "another"})) == ()


def test_the_jacobi_forcing_row_is_there_and_its_baseline_is_bound_by_launches() -> None:
    (row,) = [claim for claim in published_claims().claims if claim.id == "jf-humaneval/jf-mr"]
    figures = (row.speedup, row.tpf, row.tok_s, row.baseline_tok_s, row.accuracy)
    assert [str(figure) for figure in figures] == ["4.0", "4.1", "163.9", "41.3", "83.5"]
    shares = [bound.share for bound in published_claims().bandwidth(row)]
    assert len(shares) == 4, "boards of 40 and 80 GB, on modules and cards"
    assert all(share is not None and share < 0.4 for share in shares)


def consistent(claim: Claim) -> bool:
    """Whether the speedup is the ratio of the two tok/s as far as their printed digits tell; true where one lacks."""
    if claim.speedup is None or claim.tok_s is None or claim.baseline_tok_s is None:
        return True
    ours, theirs = (half_unit(claim.tok_s), half_unit(claim.baseline_tok_s))
    least = (claim.tok_s - ours) / (claim.baseline_tok_s + theirs)
    most = (claim.tok_s + ours) / (claim.baseline_tok_s - theirs)
    return least <= claim.speedup + half_unit(claim.speedup) and most >= claim.speedup - half_unit(claim.speedup)


def test_every_row_agrees_with_itself_or_says_that_it_does_not() -> None:
    wrong = [claim for claim in published_claims().claims if not consistent(claim)]
    assert len(wrong) > 10
    for row in wrong:
        assert row.tok_s is not None
        assert row.baseline_tok_s is not None
        assert any(f"{row.tok_s / row.baseline_tok_s:.{digits}f}" in row.note for digits in (1, 2, 3)), row
    noted = TABLE.replace("speedup = 2.50", 'speedup = 2.60, note = "its tok/s give 2.50"')
    assert not consistent(read(noted).claims[0])


def test_published_rows_say_where_they_come_from_in_our_names() -> None:
    assert len({row.id for row in published_claims().claims}) == len(published_claims().claims) > 400
    for boards in published_claims().gpus.values():
        speeds = [find(board).bandwidth_gb_s for board in boards]
        assert speeds == sorted(speeds), "slowest memory first"
    for row in published_claims().claims:
        assert row.paper
        assert row.source
        assert row.url.startswith("https://")
        assert row.speedup or row.tpf or row.tok_s or row.also or row.accuracy
        assert (row.accuracy is None) == (not row.metric)
        if "arXiv" in row.paper and "arxiv.org" in row.url:
            assert row.url.rpartition("/")[2] in row.paper, "the paper that it names"
    # Only general figures of a method, or from an answer to a review, have no model.
    untold = {row.id.partition("/")[0] for row in published_claims().claims if not row.model}
    assert untold == {"jf-text", "jf-abstract", "jf-submission"}
    methods, tasks = {row.method for row in published_claims().claims}, {row.task for row in published_claims().claims}
    ours = {"ar", "jacobi", "cllm", "jf", "jetspec", "lookahead", "msn", "pld", "recycling", "sps"}
    ours |= {"dspark", "eagle", "eagle3", "medusa", "mtp", "dllm", "fast-dllm", "sdar", "d2f"}
    assert ours == methods & set(registry.methods())
    measured = {"humaneval", "gsm8k", "math500", "mbpp", "mt-bench", "spec-bench", "aime25", "math"}
    measured |= {"livecodebench", "spider", "codesearchnet"}
    assert measured == tasks & set(registry.tasks())
    fastest = {
        row.id: bounds[-1].share for row in published_claims().claims if (bounds := published_claims().bandwidth(row))
    }
    shares = {name: share for name, share in fastest.items() if share is not None}
    assert len(shares) > 50
    assert {name for name, share in shares.items() if share >= 1} == set()


def test_options_and_measures_of_our_methods_are_theirs() -> None:
    ours = registry.methods()
    tried = 0
    for row in published_claims().claims:
        if row.method not in ours:
            assert row.options == {}, row.id
            continue
        found = registry.method(row.method)
        found.load().Options.model_validate({name: _json(value) for name, value in row.options.items()})
        tried += bool(row.options)
        assert row.trained_for in ("", *ours), row.id
    assert tried > 200
    (row,) = [row for row in published_claims().claims if row.id == "cllm-forward/cllm-n-16-llama2-7b-gsm8k"]
    assert set(row.also) == set(registry.method("cllm").info["measures"])
    assert 0 < row.also["stationary"] < row.also["fast_forwarded"]


def _json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("Qwen2.5-Coder-7B", "qwen2.5-7b"), ("Qwen2.5-Math-7B", "qwen2.5-7b"), ("Qwen3-8B", "qwen3-8b"),
        ("LLaMA3-8B", "llama-3-8b"),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_shape(model: str, config: str) -> None:
    shape = json.loads(configs()[config].read_text())
    hidden, heads, kv = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    head = shape.get("head_dim", hidden // heads)
    attention = 2 * hidden * heads * head + 2 * hidden * kv * head
    biases = (heads + 2 * kv) * head if shape["model_type"] == "qwen2" else 0
    norms = 2 * hidden + (2 * head if shape["model_type"] == "qwen3" else 0)
    layer = attention + biases + norms + 3 * hidden * shape["intermediate_size"]
    everything = shape["num_hidden_layers"] * layer + hidden + shape["vocab_size"] * hidden
    assert published_claims().parameters[model] == everything


def test_a_table_without_claims_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="claim"):
        read('[[table]]\nname = "t"\nclaio = []\n')
