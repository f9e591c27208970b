"""EAGLE-3's rounds against the whole head at once, its trees against a plain expansion, and its drafts in an engine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders
from support.decoders import alone, eager
from support.models import attached, prompt, supported, tiny_llama
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding.protocol import Method
from specbench.decoding.trees.paths import best_path, totals
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.engine.heads import head_pass
from specbench.engine.heads.head_pass import HeadPass
from specbench.heads.level_rounds import LevelRounds
from specbench.heads.levels import Levels
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.decoder import Options
from specbench.methods.eagle3.head import DraftHead

VOCAB = 50
CAPTURED = recorded_capture(torch.device("cpu"))


def double() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=8).double()


def made(model: Any, seed: int = 0, **more: Any) -> DraftHead:
    """A head in float64 whose weights are large enough that everything in it matters; it drafts 30 of 50 tokens."""
    config = HeadConfig.for_target(model.config, draft_vocab_size=30, **more)
    head = DraftHead.random(config, seed=seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    head.set_draft_ids(torch.arange(30) + 7 * (torch.arange(30) > 11))
    return head


def whole(head: DraftHead, model: Any, features: Tensor, tokens: Sequence[int], drafts: Sequence[int]) -> list[float]:
    """Log-probability of each draft of a path, everything of the head computed from the text's first row on."""

    def plain(layer: int, attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2)

    known, found = head.draft_ids, []
    assert known is not None
    before = head.fuse(features)[None]
    with torch.inference_mode():
        for upto, draft in enumerate(drafts):
            text = torch.tensor([[*tokens, *drafts[:upto]]])
            embedded = model.get_input_embeddings()(text)
            out = head(before, embedded, torch.arange(text.shape[1])[None], plain)
            logp = head.scores(out[:, -1])[0].log_softmax(-1)
            found.append(float(logp[known.tolist().index(draft)]))
            before = torch.cat([before, head.fed_back(out[:, -1:])], dim=1)
    return found


def paths(tree: Any) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for row in range(1, len(tree)):
        found.append([*found[tree.parents[row]], tree.tokens[row]])
    return found


@pytest.mark.parametrize(("width", "depth", "capture"), [(3, 4, eager), (1, 5, CAPTURED), (4, 2, CAPTURED)])
def test_rounds_on_the_cache_are_the_whole_head_each_time(
    width: int, depth: int, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_pass, "CHUNK", 4)  # long prompts come in parts
    model, rng = double(), random.Random(3)
    head = made(model, layers=2)
    generator = torch.Generator().manual_seed(3)
    drafts = LevelRounds(head, alone(model, slots=3, capacity=40, capture=capture), depth=depth, width=width)
    text: dict[int, tuple[Tensor, list[int]]] = {}

    def more(slot: int, count: int) -> None:
        new = torch.randn(count, head.fc.in_features, dtype=torch.float64, generator=generator)
        tokens = [rng.randrange(VOCAB) for _ in range(count)]
        before = text.get(slot, (new[:0], []))
        text[slot] = (torch.cat([before[0], new]), before[1] + tokens)
        drafts.append(slot, tokens, new.clone())

    for slot, length in enumerate((1, 13, depth + 1)):
        assert drafts.open() == slot
        more(slot, length)
    for turn in range(5):
        going = [slot for slot in text if turn in (0, 3) or rng.random() < 0.7]
        for slot in going:
            if turn:
                more(slot, rng.randint(1, depth + 1))
        for slot in rng.sample(going, len(going)):
            tree = drafts.tree(slot, 12)
            assert tree.tokens[0] == text[slot][1][-1]
            assert len(tree) == (1 + depth if width == 1 else 12)
            scores = totals(tree)
            for row, path in enumerate(paths(tree)):
                if row % 3 == 1 or len(path) == depth:
                    assert scores[row] == pytest.approx(sum(whole(head, model, *text[slot], path)), abs=1e-5)
            with pytest.raises(ValueError, check=wording):
                drafts.tree(slot, 12)
        if turn == 2:  # another sequence in the same cells
            drafts.close(1)
            del text[1]
            assert drafts.open() == 1
            more(1, 2)
            more(1, depth)  # twice before it asks


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_is_the_most_probable_paths_that_were_scored(seed: int) -> None:
    """Against a plain expansion over lists of paths."""
    rng = random.Random(seed)
    width, depth, budget = rng.randint(2, 4), rng.randint(1, 4), rng.randint(2, 14)
    result: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def after(path: tuple[int, ...]) -> list[tuple[int, float]]:
        if path not in result:
            logp = sorted((math.log(rng.uniform(0.01, 0.9)) for _ in range(width)), reverse=True)
            result[path] = list(zip(rng.sample(range(20), width), logp, strict=True))
        return result[path]

    level: dict[tuple[int, ...], float] = {(token,): logp for token, logp in after(())}
    scored, tokens, logps, best = dict(level), [t for t, _ in after(())], [p for _, p in after(())], []
    chosen = list(level)
    for number in range(1, depth):
        fresh = [((*path, token), scored[path] + logp, token, logp) for path in chosen for token, logp in after(path)]
        scored |= {path: total for path, total, *_ in fresh}
        tokens += [token for *_, token, _ in fresh]
        logps += [logp for *_, logp in fresh]
        order = sorted(range(len(fresh)), key=lambda one: -fresh[one][1])[:width]
        chosen = [fresh[one][0] for one in order]
        best += order if number + 1 < depth else []
    expected = sorted(scored, key=lambda path: -scored[path])[: budget - 1]
    tree = Levels(99, tokens, logps, best, width).tree(budget)
    assert {tuple(path) for path in paths(tree)[1:]} == set(expected)
    assert len(tree) == 1 + len(expected)
    assert tree.tokens[0] == 99
    for path, total in zip(paths(tree)[1:], totals(tree)[1:], strict=True):
        assert total == pytest.approx(scored[tuple(path)], abs=1e-12)
    tokens_of, promised = best_path(tree)
    assert promised == pytest.approx(scored[tuple(tokens_of)])


def ready(engine: Engine, **options: Any) -> Method:
    return decoders.ready(decoders.with_options("eagle3", options), engine)


@pytest.mark.parametrize("kind", ["random", "random-parallel"])
def test_a_captured_round_drafts_what_an_eager_one_drafts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    model = tiny_llama(97, num_hidden_layers=8).double()
    prompts = [prompt(length, 97, seed) for seed, length in enumerate((1, 23, 7))]
    found = []
    for captured in (False, True):
        with attached(model, slots=2, capacity=40, max_rows=32, graphs=captured) as engine:
            records = decoders.served(engine, ready(engine, head=kind, width=12, budget=30, depth=3), prompts, 10, 2)
        found.append([(r.output_ids, r.accepted_lengths, r.tree_rows, r.measures) for r in records])
    assert found[0] == found[1]
    assert len({str(ids) for ids, *_ in found[0]}) == len(prompts)


def test_one_round_serves_all_sequences_and_its_passes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    work = HeadPass._work

    def counted(self: HeadPass, slots: int) -> None:
        asked.append(slots)
        work(self, slots)

    monkeypatch.setattr(HeadPass, "_work", counted)
    with attached(supported("llama"), slots=3, capacity=60, max_rows=16) as engine:
        method = ready(engine, width=5, budget=16, depth=4)
        asked.clear()
        records = decoders.served(engine, method, [prompt(5, 97, seed) for seed in range(3)], together=3)
        rounds = max(record.target_forwards for record in records)
        assert len(asked) == rounds < sum(record.target_forwards for record in records)
        assert all(record.draft_forwards == 4 * record.target_forwards for record in records)
        for record in records:
            assert record.measures["tree_depth"] <= 4
            assert record.measures["expected"] > 0
        # A parallel head takes two: the text's new rows, and the masks after them.
        (record,) = decoders.served(engine, ready(engine, head="random-parallel", depth=4, budget=16), [prompt(5, 97)])
        assert record.draft_forwards == 2 * record.target_forwards


def test_a_chain_of_few_rows_is_no_deeper_than_they_are() -> None:
    with attached(supported("llama"), capacity=60, max_rows=16) as engine:
        method = ready(engine, tree="chain", depth=8, budget=4)
        assert method.max_rows == 4
        (record,) = decoders.served(engine, method, [prompt(5, 97)])
    assert record.tree_rows == 4 * record.target_forwards
    assert record.draft_forwards == 3 * record.target_forwards
    assert Options(tree="chain", depth=3).budget == 60  # rows that no path fills are not asked for


def test_a_pickle_that_runs_something_is_not_converted(tmp_path: Path) -> None:
    from specbench.heads.convert import convert

    class Runs:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"fc.weight": Runs()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, check=wording):
        convert(tmp_path)
    assert not (tmp_path / "ran").exists()
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, check=wording):
        convert(tmp_path)
    with pytest.raises(UsageError, check=wording):
        convert(tmp_path / "none")


def test_a_head_of_another_kind_is_distinguished() -> None:
    with pytest.raises(UsageError, check=wording):
        HeadConfig.from_json({"architectures": ["DFlashDraftModel"], "block_size": 16, "hidden_size": 8}, 8)
