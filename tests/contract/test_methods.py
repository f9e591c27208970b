"""What a stranger may rely on for every registered method: its card, its options, and the trees it drafts."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from support import decoders, models

from specbench.common import registry
from specbench.common.options import Options
from specbench.decoding.pairs import RETRIEVED, Pair
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import ORIGINS, StepResult, TokenTree, TypicalAcceptance
from specbench.engine.engine import Engine
from specbench.engine.phases import Phases
from specbench.engine.sampler import Sampling
from specbench.report.answers.generation import steps
from specbench.results.request_schema import BONUS, PREFILL, RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

CARDS = registry.methods()
OURS = {name for name, card in CARDS.items() if card.package.startswith("specbench.")}

every_card = pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
every_method = pytest.mark.parametrize("method", decoders.TREES.values(), ids=decoders.TREES)


@every_card
def test_card(card: registry.Card) -> None:
    wanted = {"title": str, "summary": str, "paper": str, "lossless": bool, "trained": bool}
    assert {name: type(card.info.get(name)) for name in wanted} == wanted
    assert card.info["title"]
    assert card.info["summary"]
    assert "\n" not in card.info["title"] + card.info["summary"]


@every_card
def test_readme(card: registry.Card) -> None:
    text = (card.folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {card.name}"), "the first line is '# NAME: what it is'"
    for name, field in card.load().Options.model_fields.items():
        assert f"`{name}`" in text, f"option {name} is not described"
        assert field.description


@every_card
def test_options(card: registry.Card) -> None:
    options = card.load().Options
    assert issubclass(options, Options)
    assert options.model_config.get("extra") == "forbid"
    options()  # every option has a default, and the defaults are allowed
    for name, field in options.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description


def test_drafting_needs_no_torch() -> None:
    # Plans are checked, and methods listed, before anything heavy is imported.
    code = f"import sys, {', '.join(f'{card.package}.decoder' for card in CARDS.values())}"
    code += "; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr or "torch was imported"


@every_card
def test_presets(card: registry.Card) -> None:
    text = (card.folder / "README.md").read_text(encoding="utf-8")
    fields = card.load().Options.model_fields
    for preset, values in card.info.get("presets", {}).items():
        options = decoders.with_options(card.name, {"preset": preset}).options
        assert values, "a preset sets something"
        assert set(values) <= set(fields), "a preset names options in full"
        assert {name: getattr(options, name) for name in values} == values
        assert f"`{preset}`" in text or f"preset={preset}" in text, f"preset {preset} is not described"


@every_card
def test_measures_are_described(engine: Watching, card: registry.Card) -> None:
    described = card.info.get("measures", {})
    assert all(isinstance(text, str) and text and "\n" not in text for text in described.values())
    found: set[str] = set()
    for label, method in decoders.ALL.items():
        if method.name == card.name:
            paired = isinstance(method.decoder, Pair)  # a pair has the other one's too, and its own
            assert method.measures.items() >= described.items() if paired else method.measures == described, label
            for record in watch(engine, method, Sampling(), stops=[3, 50, 77])[0]:
                assert all(math.isfinite(value) for value in record.measures.values()), label
                assert paired == (RETRIEVED in record.measures), label
                found |= record.measures.keys() & set(described if paired else record.measures)
    assert found == set(described)  # each of them is had from some setting, and none is without a description


class Watching(Engine):
    """Checks what a decoder sends before it is run."""

    @dataclass
    class Seen:
        method: Method
        last: dict[int, int]
        trees: list[TokenTree]

    vocab = 97
    seen: Seen

    def watch(self, method: Method) -> None:
        self.seen = self.Seen(method, {}, [])

    def check(self, tree: TokenTree, root: int) -> None:
        self.seen.trees.append(tree)
        assert len(tree) <= self.seen.method.max_rows, "larger than max_rows said"
        assert tree.tokens[0] == root, "the root is the last token of the sequence"
        assert all(type(token) is int and 0 <= token < self.vocab for token in tree.tokens)
        assert tree.accept is None or tree.accept[0]

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        tree: TokenTree | None = None,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        prompt: int | None = None,
    ) -> StepResult:
        assert (top_k, taps) == (self.seen.method.top_k, self.seen.method.taps)
        if tree is not None:
            self.check(tree, ids[-1])
            assert not any((tree.accept or [True] * len(tree))[1:]), "rows sent along with the prompt only draft"
        result = super().prefill(slot, ids, tree, top_k=top_k, taps=taps)
        self.seen.last[slot] = result.emitted[-1]
        return result

    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        probabilities: bool = False,
        acceptance: TypicalAcceptance | None = None,
        phases: Phases | None = None,
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, StepResult]:
        assert (top_k, taps) == (self.seen.method.top_k, self.seen.method.taps)
        assert forced is None, "nothing is simulated here"
        assert acceptance is None, "each method's default is exact"
        assert not probabilities, "the target's are the engine's own business"
        for slot, tree in trees.items():
            self.check(tree, self.seen.last[slot])
        results = super().step(trees, top_k=top_k, taps=taps, phases=phases)
        self.seen.last |= {slot: result.emitted[-1] for slot, result in results.items()}
        return results


@pytest.fixture(scope="module")
def engine() -> Iterator[Watching]:
    """One for all; what a method sends is held against its own limit, not against the engine's."""
    rows = max(method.max_rows for method in decoders.ALL.values())
    made = Watching(models.supported("llama"), slots=3, capacity=96, max_rows=rows)
    yield made
    made.close()


def watch(
    engine: Watching, method: Method, sampling: Sampling, stops: Sequence[int] = (), budget: int = 30
) -> tuple[list[RequestRecord], list[TokenTree]]:
    """Decodes prompts of several lengths; the records, and every tree in order."""
    engine.sampling = sampling
    method = decoders.ready(method, engine)
    engine.watch(method)
    rule = StopRule(frozenset(stops), (), budget, str)
    requests = [Request(f"p{n}", 0, models.prompt(n, 97, seed=n), rule) for n in (1, 2, 7, 33)]

    def context(label: str, request: Request) -> Context:
        return Context(97, 96, random.Random(request.prompt_id))

    return list(Runner(engine, context, 3).segment(method, requests)), engine.seen.trees


@every_method
def test_trees_keep_to_the_protocol_and_a_run_repeats_exactly(engine: Watching, method: Method) -> None:
    assert 1 <= method.max_rows <= 512
    # Drafts come from the context's generator and from nothing else, so acceptance repeats with the seed as well.
    sampling = Sampling(1.0, seed=1) if len(str(method.options)) % 2 else Sampling()
    random.seed(1)
    records, trees = watch(engine, method, sampling, budget=16)
    random.seed(2)
    others, again = watch(engine, method, sampling, budget=16)
    assert again == trees
    assert [record.measures for record in others] == [record.measures for record in records]
    assert len(trees) >= sum(record.target_forwards for record in records) > 0  # all of them were checked
    assert all(record.draft_forwards >= 0 for record in records)
    for record in records:
        check_origins(record)


def check_origins(record: RequestRecord) -> None:
    """Every token of an answer came from somewhere: the prompt's forward, a draft, or the target after them."""
    found = steps(record)  # refuses a trace that contradicts the record's counts
    assert [len(step.tokens) for step in found] == [1, *record.accepted_lengths]
    assert [token.id for step in found for token in step.tokens] == record.output_ids
    assert sum(step.rows or 0 for step in found) == record.tree_rows
    assert found[0].tokens[0].origin == PREFILL
    for step in found[1:]:
        *drafts, last = [token.origin for token in step.tokens]
        assert not {PREFILL, BONUS} & set(drafts)
        assert last == BONUS or (step is found[-1] and record.overshoot_tokens), "only the end of an answer is cut"
        # "draft" is for methods that do not say; those that come with specbench all do.
        assert set(drafts) <= ORIGINS.keys() - {"draft"} or record.method not in OURS
