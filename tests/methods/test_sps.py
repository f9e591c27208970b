"""Speculative decoding: what a draft model writes, how many passes it takes, and that its cache follows the text."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import decoders, models
from support.wording import wording

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.cli.app import main
from specbench.common.errors import PluginFault, UsageError
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import TokenTree
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.evals.data import DATA_DIR
from specbench.methods.sps import drafter
from specbench.methods.sps.decoder import Options
from specbench.methods.sps.drafter import Drafter
from specbench.planning.methods import plan_methods
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

VOCAB, SLOTS, CAPACITY = 97, 3, 70
SAMPLINGS = [Sampling(), Sampling(0.7, seed=1), Sampling(1.0, top_k=30, top_p=0.9, seed=2)]
IDS = ["greedy", "T=0.7", "T=1 filtered"]


@pytest.fixture(autouse=True)
def _humaneval_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """HumanEval+'s data take a second to read."""
    monkeypatch.delenv(DATA_DIR, raising=False)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with models.attached(models.tiny_llama(VOCAB).double(), slots=SLOTS, capacity=CAPACITY, max_rows=16) as made:
        yield made


def made(
    engine: Engine, k: int, draft: Any = None, noise: float = 0.0, options: Sequence[str] = ()
) -> tuple[Method, Drafter]:
    """The method on a target, with this draft model or a copy of the target that is off by ``noise``."""
    (_, method) = plan_methods(["sps"], ["sps.draft=config:tiny", f"sps.k={k}", *options])
    model = draft if draft is not None else decoders.copied(engine, noise)
    method = method.ready(decoders.target(engine, lambda name: decoders.loaded(model, name)))
    return method, method.shared


def decode(
    engine: Engine, method: Method, requests: Sequence[Request], sampling: Sampling, concurrency: int = 1
) -> list[RequestRecord]:
    engine.sampling = sampling
    return decoders.served(engine, method, requests, together=concurrency)


NONE: frozenset[int] = frozenset()


def requests(*rules: tuple[int, int, frozenset[int]]) -> list[Request]:
    """One of each (prompt length, budget, stop ids)."""
    return [
        Request(f"p{n}", 0, models.prompt(length, VOCAB, seed=n), StopRule(stops, (), budget, str))
        for n, (length, budget, stops) in enumerate(rules)
    ]


def drafted(record: RequestRecord) -> tuple[Any, ...]:
    """What a record says of tokens and drafts, without the times."""
    return record.output_ids, record.accepted_lengths, record.draft_forwards


def ar(engine: Engine, ids: Sequence[int], tokens: int, sampling: Sampling) -> list[int]:
    engine.sampling = sampling
    return models.autoregressive(engine, list(ids), tokens)


def free_slots(engine: Engine) -> int:
    return sum(length is None for length in engine._slots.lengths)


def passes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """Rows by slot of each step that an engine is asked for, from now on."""
    seen: list[dict[int, int]] = []
    real = engine.step

    def step(trees: Mapping[int, TokenTree], **more: Any) -> Any:
        seen.append({slot: len(tree) for slot, tree in trees.items()})
        return real(trees, **more)

    monkeypatch.setattr(engine, "step", step)
    return seen


# ------------------------------------------------------------------ drafts that end at an improbable token


@pytest.mark.parametrize(("sampling", "least"), [(SAMPLINGS[0], 0.2), (SAMPLINGS[2], 0.05)], ids=[IDS[0], IDS[2]])
def test_drafts_end_before_the_first_token_that_is_less_probable(
    engine: Engine, sampling: Sampling, least: float
) -> None:
    method, shared = made(engine, 5, noise=0.1, options=[f"sps.confidence={least}"])
    engine.sampling = sampling
    ids = models.prompt(8, VOCAB, seed=3)
    decoder, slot = method.new(Context(VOCAB, 0, random.Random(0))), engine.alloc()
    decoder.begin(ids)
    result = engine.prefill(slot, ids)
    text, lengths, forwards = [*ids], set(), 0
    for _ in range(25):
        decoder.observe(result)
        text += result.emitted
        tree = decoder.draft()
        said = models.autoregressive(shared.engine, text, 5)
        likely = [probabilities(shared.engine, [*text, *said[:at]])[said[at]] for at in range(5)]
        kept = next((at for at, each in enumerate(likely) if each < least), 5)
        assert list(tree.tokens[1:]) == said[:kept]
        assert decoder.draft_forwards - forwards == min(5, kept + 1)
        forwards = decoder.draft_forwards
        lengths.add(kept)
        result = engine.step({slot: tree})[slot]
    decoder.end()
    engine.free(slot)
    assert len(lengths) > 2


def probabilities(engine: Engine, text: list[int]) -> Any:
    """Of the token after a text, at the run's temperature or at 1."""
    slot = engine.alloc()
    engine.prefill(slot, text[:-1])
    found = engine.step({slot: TokenTree.chain(text[-1:])}, probabilities=True)[slot].probabilities
    engine.free(slot)
    assert found is not None
    return found[0]


# ------------------------------------------------------------------ draft and target are one model


@pytest.mark.parametrize(("k", "sampling"), [(1, SAMPLINGS[0]), (2, SAMPLINGS[1]), (5, SAMPLINGS[2])], ids=IDS)
def test_a_draft_model_that_is_the_target_is_always_right(engine: Engine, k: int, sampling: Sampling) -> None:
    # 1 token of the prefill, 7 full steps, and one that the budget cuts after a token (k = 1: after none).
    method, _ = made(engine, k)
    (record,) = decode(engine, method, requests((9, 1 + 7 * (k + 1) + 1, NONE)), sampling)
    assert record.accepted_lengths == [k + 1] * 7 + [1]
    assert (record.overshoot_tokens, record.draft_forwards, record.tree_rows) == (k, 8 * k, 8 * (k + 1))
    assert record.output_ids == ar(engine, models.prompt(9, VOCAB, seed=0), record.output_tokens, sampling)


# ------------------------------------------------------------------ any other draft model


DRAFTS = {
    "unrelated": lambda engine: models.tiny_llama(VOCAB, seed=7, num_hidden_layers=1).double(),
    "of another family": lambda engine: models.build(
        (*models.SUPPORTED["gemma3"][:2], {**models.SUPPORTED["gemma3"][2], "vocab_size": VOCAB})
    ).double(),
    "near": lambda engine: decoders.copied(engine, 0.1),
}


@pytest.mark.parametrize(
    ("draft", "sampling"), [*zip(DRAFTS, SAMPLINGS, strict=True), ("near", SAMPLINGS[0])], ids=lambda value: str(value)
)
def test_the_output_is_ars_whatever_the_draft(engine: Engine, draft: str, sampling: Sampling) -> None:
    method, shared = made(engine, 4, DRAFTS[draft](engine))
    first = ar(engine, models.prompt(6, VOCAB, seed=1), 20, sampling)
    asked = requests(
        (30, 25, NONE), (6, 20, frozenset(first[7:8])), (1, 1, NONE), (12, 7, NONE), (6, 20, frozenset(range(VOCAB))),
        (3, 2, NONE), (20, 30, frozenset([3, 50, 77])),
    )  # fmt: skip
    for concurrency in (1, SLOTS):
        for request, record in zip(asked, decode(engine, method, asked, sampling, concurrency), strict=True):
            expected = ar(engine, request.ids, request.rule.budget, sampling)
            ends = [at for at, token in enumerate(expected) if token in request.rule.stop_ids]
            assert record.output_ids == (expected[: ends[0] + 1] if ends else expected), request.prompt_id
            assert record.draft_forwards == 4 * record.target_forwards
        assert free_slots(shared.engine) == free_slots(engine) == SLOTS


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[2]], ids=[IDS[0], IDS[2]])
def test_the_drafts_are_what_the_draft_model_says_by_itself(engine: Engine, sampling: Sampling) -> None:
    """Or its cache would hold another text than the sequence's: after full, partial and no acceptance."""
    method, shared = made(engine, 3, noise=0.1)
    engine.sampling = sampling
    ids = models.prompt(8, VOCAB, seed=3)
    decoder, slot = method.new(Context(VOCAB, 0, random.Random(0))), engine.alloc()
    decoder.begin(ids)
    result = engine.prefill(slot, ids)
    text, kept = [*ids], set()
    for _ in range(15):
        decoder.observe(result)
        text += result.emitted
        tree = decoder.draft()
        assert tree == TokenTree.chain([text[-1], *tree.tokens[1:]], origins="draft-model")
        assert list(tree.tokens[1:]) == models.autoregressive(shared.engine, text, 3)
        result = engine.step({slot: tree})[slot]
        kept.add(len(result.path))
    decoder.end()
    engine.free(slot)
    assert {1, 4} <= kept  # otherwise the test saw one kind of step only
    assert kept & {2, 3}


def test_company_shares_passes_and_changes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests((5, 16, NONE), (9, 16, NONE), (2, 16, NONE))
    method, shared = made(engine, 3, noise=0.1)
    alone = decode(engine, method, asked, Sampling())
    seen = passes(shared.engine, monkeypatch)
    together = decode(engine, method, asked, Sampling(), 3)
    assert list(map(drafted, alone)) == list(map(drafted, together))
    steps = max(record.target_forwards for record in together)  # of the target: all begin together
    assert len(seen) == 3 * steps
    assert sum(map(len, seen)) == sum(record.draft_forwards for record in together)


# ------------------------------------------------------------------ limits


def test_up_to_the_last_cell_of_the_cache() -> None:
    for k, noise in ((1, 0.1), (4, 0.1), (8, 0.0), (8, 0.1)):
        with models.attached(models.tiny_llama(VOCAB), capacity=20, max_rows=9) as small:
            method, shared = made(small, k, noise=noise)
            for length in (1, 12, 19, 20):
                (asked,) = requests((length, 21 - length, NONE))
                (record,) = decode(small, method, [asked], Sampling())
                assert record.output_ids == ar(small, asked.ids, 21 - length, Sampling())
                assert record.draft_forwards <= k * record.target_forwards
            assert free_slots(shared.engine) == 1


def test_a_failed_forward_leaves_no_slot_occupied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    method, shared = made(engine, 3)
    for broken, name, fails in product((engine, shared.engine), ("step", "prefill"), (1, 2, 5)):
        calls, real = count(1), getattr(broken, name)

        def failing(*given: Any, real: Any = real, calls: Any = calls, fails: int = fails, **more: Any) -> Any:
            if next(calls) == fails:
                raise RuntimeError("the device fell off the bus")
            return real(*given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(broken, name, failing)
            # What its own engine raises is the method's.
            with pytest.raises(RuntimeError if broken is engine else PluginFault, check=wording):
                decode(engine, method, requests(*[(5, 21, NONE)] * 5), Sampling(), SLOTS)
        assert free_slots(engine) == free_slots(shared.engine) == SLOTS
        (record,) = decode(engine, method, requests((5, 9, NONE)), Sampling())
        assert record.accepted_lengths == [4, 4]  # as if nothing had been
    runner = Runner(engine, lambda _, request: Context(VOCAB, 0, random.Random(0)), SLOTS)
    records = runner.segment(method, requests(*[(5, budget, NONE) for budget in (2, 20, 20, 20)]))
    next(records)
    records.close()  # a run that is given up
    assert free_slots(engine) == free_slots(shared.engine) == SLOTS


def test_in_graphs_all_captures_come_before_the_first_prompt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    target = dataclasses.replace(
        decoders.target(engine),
        engine=lambda model, rows: Engine(model, slots=SLOTS, capacity=CAPACITY, max_rows=rows, graphs=True),
    )
    (_, method) = plan_methods(["sps"], ["sps.draft=config:tiny", "sps.k=3"])
    method = method.ready(target)
    asked = requests((5, 16, NONE), (9, 16, NONE), (2, 16, NONE), (8, 5, NONE))
    eager = decode(engine, made(engine, 3, noise=0.05)[0], asked, Sampling(), SLOTS)

    def captures() -> tuple[int, int]:
        report = method.shared.engine.report()
        return report["graphs"], report["late_captures"]

    for _ in range(2):
        records = decode(engine, method, asked, Sampling(), SLOTS)
        assert list(map(drafted, records)) == list(map(drafted, eager))
        assert captures() == (4, 0)  # one or two rows of up to three slots: 1, 2, 4 and 8
    # Another way of sampling has graphs of its own. (On a CPU they have the noise of their first step baked in.)
    decode(engine, method, asked, SAMPLINGS[1], SLOTS)
    assert captures() == (8, 0)


# ------------------------------------------------------------------ which draft models


class Words:
    """A tokenizer with a vocabulary."""

    def __init__(self, words: Sequence[str], added: Sequence[str] = ()) -> None:
        self.words, self.added = [*words, *added], added

    def get_vocab(self) -> dict[str, int]:
        return {word: at for at, word in enumerate(self.words)}

    def get_added_vocab(self) -> dict[str, int]:
        return {word: self.words.index(word) for word in self.added}


def same_words(mine: Any, its: Any, rows: int = VOCAB) -> bool:
    draft: Any = SimpleNamespace(tokenizer=its, vocab_size=rows)
    return drafter.same_words(mine, draft, VOCAB)


def test_another_vocabulary_is_noticed_and_without_words_refused(engine: Engine) -> None:
    words = Words("abc")
    none = object()  # dummy weights have rows only
    for mine, its in ((words, Words("acb")), (words, Words("ab")), (words, none), (none, words), (none, none)):
        assert not same_words(mine, its, 96)
    with pytest.raises(UsageError, check=wording):
        made(engine, 3, models.tiny_llama(VOCAB + 1))
    # Padding and added words make no other vocabulary.
    assert same_words(none, none)
    for its, rows in product((Words("abc"), Words("abc", ["<|im_end|>"])), (96, 97, 98)):
        assert same_words(Words("abc", ["<pad>"]), its, rows)


@pytest.mark.parametrize("rows", [VOCAB - 20, VOCAB + 20])
def test_rows_that_only_one_of_the_models_has(engine: Engine, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target with more rows may say what the draft model cannot read; one with fewer cannot read every draft."""
    monkeypatch.setattr("specbench.methods.sps.decoder.same_words", lambda *_: True)
    method, _ = made(engine, 4, models.tiny_llama(rows, seed=3).double())
    unknown = [VOCAB - 1, *models.prompt(9, VOCAB)]
    asked = [Request("p", 0, unknown, StopRule(NONE, (), 40, str))]
    for sampling in SAMPLINGS[:2]:
        (record,) = decode(engine, method, asked, sampling)
        assert record.output_ids == ar(engine, unknown, 40, sampling)
        if rows > VOCAB:
            assert record.tree_rows < 5 * record.target_forwards  # chains were cut before such a draft
        else:
            assert max(record.output_ids) >= rows


def test_records_tell_the_draft_model_and_no_folder(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text("{}")
    options = Options(draft=f"config:{tmp_path}/small.json", draft_tokens=2)
    recorded = {"draft": "config:small", "draft_tokens": 2, "verify": "noise", "confidence": 0.0, "stop": False}
    assert options.model_dump(mode="json") == recorded
    method, _ = made(engine, 2)
    assert method.weights == {"draft": "config:tiny", "dtype": "float64", "fingerprint": "of config:tiny"}


# ------------------------------------------------------------------ on the command line


def call(*argv: object) -> tuple[int, str, str]:
    """Exit code, data and notes of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in argv])
    return code, out.getvalue(), err.getvalue()


RUN = ("run", "--model", "config:tiny", "--method", "sps", "--limit", 2)


def test_a_run_with_the_target_as_its_own_draft_model(tmp_path: Path) -> None:
    # Dummy weights come from a fixed seed, so that both copies are one model: 1 + 4 × 6 tokens.
    more = ("--temperature", 1, "--concurrency", 2, "--set", "sps.draft=config:tiny", "--max-new-tokens", 25)
    code, out, err = call(*RUN, *more, "--no-score", "--out", tmp_path, "--json")
    assert code == 0, err
    (run,) = json.loads(out)
    ours = {row["method"]: row for row in run["rows"]}
    assert ours["sps"]["tokens_per_forward"] == 6
    assert (ours["sps"]["target_forwards"], ours["sps"]["draft_forwards"]) == (8, 40)
    assert (ours["ar"]["tokens_per_forward"], ours["ar"]["draft_forwards"]) == (1, 0)
    assert ours["sps"]["lossless"]["verdict"] == "exact"
    methods = json.loads((Path(run["folder"]) / "run.json").read_text())["methods"]
    (weights,) = [spec["weights"] for spec in methods if spec["weights"]]
    assert weights.keys() == {"draft", "dtype", "fingerprint"}
    code, out, _ = call("show", run["folder"], "--verbose")
    assert "sps: 5.00 " in " ".join(out.split())


@pytest.mark.parametrize(("setting", "named"), [("sps.k=3", "sps.draft"), ("sps.draft=./nowhere", "./nowhere")])
def test_no_model_is_loaded_for_a_missing_draft_model(
    tmp_path: Path, setting: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.models.loader.load", None)
    code, out, err = call(*RUN, "--set", setting, "--out", tmp_path)
    assert (code, out, named in err) == (2, "", True)
