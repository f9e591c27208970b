"""Passes over masked positions equal a dense forward that has no cache."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.models import attached, supported

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding.fill import Fill, FillResult
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling

BACKENDS: list[dict[str, Any]] = [
    {"backend": "reference", "native": False},
    {"backend": "reference"},
    {"backend": "triton", "native": False},
    {"backend": "triton", "native": False, "graphs": True},
    {"backend": "reference", "native": False, "pad_rows": True},
]


class Dense:
    """Every row that a sequence ever computed, with the rows that it saw; one forward computes them all again."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.saw: list[list[int]] = []
        self.cells: dict[int, int] = {}  # cell -> the row stored there

    def run(self, made: Fill) -> torch.Tensor:
        """Logits of the rows that a pass asks for."""
        first = len(self.tokens)
        for row, (token, position) in enumerate(zip(made.tokens, made.positions, strict=True)):
            self.tokens.append(token)
            self.positions.append(position)
            self.cells[made.start + row] = first + row
        self.saw += [[self.cells[cell] for cell in range(seen)] for seen in made.sees]
        mask = torch.full((len(self.tokens), len(self.tokens)), torch.finfo(torch.float32).min)
        for row, saw in enumerate(self.saw):
            mask[row, saw] = 0.0
        with torch.inference_mode():
            logits = self._model(
                input_ids=torch.tensor([self.tokens]), position_ids=torch.tensor([self.positions]),
                attention_mask=mask[None, None], use_cache=False,
            ).logits[0]  # fmt: skip
        return logits[len(self.tokens) - (made.outputs or len(made)) :]


def passes(seed: int, vocab: int) -> list[Fill]:
    """A prompt in blocks, a block filled in three passes (the last rows alone, then all), and two blocks at once."""
    rng = random.Random(seed)
    size, text = rng.choice([2, 4]), 4 * rng.randrange(1, 5)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(count)]

    end, half = text + size, size // 2
    block = list(range(text, end))
    turned = block[half:] + block[:half]
    return [
        Fill(tokens(text), range(text), 0, [(at // size + 1) * size for at in range(text)], keep=text, outputs=1),
        Fill(tokens(size), block, text, [end] * size),
        Fill(tokens(size), turned, text, [end] * size, outputs=half),
        Fill(tokens(half), turned[half:], end - half, [end] * half, never=3),
        Fill(tokens(size), block, text, [end] * size, keep=end, outputs=1),
        Fill(tokens(2 * size), range(end, end + 2 * size), end, [end + size] * size + [end + 2 * size] * size,
             keep=end + size),
        Fill(tokens(size), range(end + size, end + 2 * size), end + size, range(end + size + 1, end + 2 * size + 1)),
        Fill(tokens(3), range(end + size, end + size + 3), end + size, [end + size, end + size + 3, end + size + 2]),
    ]  # fmt: skip


def check(found: FillResult, logits: torch.Tensor, never: int | None, entropy: bool) -> None:
    if never is not None:
        logits = logits.clone()
        logits[:, never] = -torch.inf
    shares = logits.double().softmax(-1)
    assert list(found.tokens) == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(found.probabilities).double(), shares.amax(-1), rtol=2e-4, atol=2e-5)
    assert bool(found.entropies) is entropy
    if entropy:
        entropies = torch.special.entr(shares).sum(-1)
        torch.testing.assert_close(torch.tensor(found.entropies).double(), entropies, rtol=1e-3, atol=1e-4)


@pytest.fixture(autouse=True)
def _captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)


def dense_twin(model: Any) -> Any:
    """The model with transformers' own attention."""
    twin = type(model)(copy.deepcopy(model.config))
    twin.load_state_dict(model.state_dict())
    twin.set_attn_implementation("eager")
    return twin.eval()


FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "phi3")


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, options) for family in FAMILIES for options in BACKENDS if options["backend"] == "reference"),
        ("qwen2", BACKENDS[2]),
        pytest.param("qwen2", BACKENDS[3], marks=pytest.mark.slow),  # below, sequences share a captured pass
    ],
    ids=str,
)
def test_passes_equal_a_dense_forward(family: str, options: dict[str, Any]) -> None:
    model = supported(family)
    vocab, twin = model.get_input_embeddings().num_embeddings, dense_twin(model)
    with attached(model, slots=2, capacity=64, max_rows=16, **options) as engine:
        for seed in range(2):
            slot, dense = engine.alloc(), Dense(twin)
            for made in passes(seed, vocab):
                entropy = seed == 1
                check(engine.fill({slot: made}, entropy=entropy)[slot], dense.run(made), made.never, entropy)
                assert made.keep is None or engine.length(slot) == made.keep
            engine.free(slot)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_passes_on_a_card_equal_a_dense_forward(backend: str, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # captures are real ones
    model = copy.deepcopy(supported("qwen3")).to("cuda")
    twin = dense_twin(supported("qwen3"))
    with attached(model, slots=2, capacity=64, max_rows=16, backend=backend, graphs=graphs) as engine:
        for seed in range(3):
            slot, dense = engine.alloc(), Dense(twin)
            for made in passes(seed, model.config.vocab_size):
                check(engine.fill({slot: made})[slot], dense.run(made), made.never, entropy=False)
            engine.free(slot)


@pytest.mark.parametrize(
    "options", [BACKENDS[1], pytest.param(BACKENDS[2], marks=pytest.mark.slow), BACKENDS[3]], ids=str
)
def test_sequences_share_a_pass(options: dict[str, Any]) -> None:
    model = supported("llama")
    vocab, twin = model.get_input_embeddings().num_embeddings, dense_twin(model)
    with attached(model, slots=3, capacity=64, max_rows=16, **options) as engine:
        engine.alloc()
        slots = [engine.alloc(), engine.alloc()]
        each, dense = [passes(seed, vocab) for seed in (5, 6)], [Dense(twin), Dense(twin)]
        for made in zip(*each, strict=True):
            found = engine.fill(dict(zip(slots, made, strict=True)))
            for slot, one, other in zip(slots, made, dense, strict=True):
                check(found[slot], other.run(one), made[0].never, entropy=False)


def test_a_long_prompt_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.stepper.PREFILL_CHUNK", 5)
    model = supported("llama")
    rng = random.Random(1)
    tokens = [rng.randrange(60) for _ in range(40)]
    made = Fill(tokens, range(40), 0, [(at // 4 + 1) * 4 for at in range(40)], keep=40, outputs=3)
    with attached(model, capacity=64, max_rows=8) as engine:
        slot = engine.alloc()
        check(engine.fill({slot: made})[slot], Dense(dense_twin(model)).run(made), None, entropy=False)


def test_samples_follow_the_position() -> None:
    model = supported("llama")
    made = Fill(list(range(12)), range(12), 0, [12] * 12)
    with attached(model, slots=2, capacity=64, max_rows=16, sampling=Sampling(temperature=1.0, seed=4)) as engine:
        slots = [engine.alloc(), engine.alloc()]
        first = engine.fill(dict.fromkeys(slots, made))
        again = engine.fill({slots[0]: made})[slots[0]]
        logits = Dense(dense_twin(model)).run(made)
    assert first[slots[0]].tokens == first[slots[1]].tokens == again.tokens != logits.argmax(-1).tolist()
    shares = logits.softmax(-1)[range(12), torch.tensor(again.tokens)]
    torch.testing.assert_close(torch.tensor(again.probabilities), shares, rtol=1e-3, atol=1e-5)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with attached(supported("llama"), capacity=16, max_rows=8) as made:
        made.alloc()
        yield made


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": []},
        {"positions": [0]},
        {"sees": [2, 5]},
        {"sees": [0, 2]},
        {"start": 2, "sees": [1, 4]},
        {"keep": 3},
        {"outputs": 3},
        {"positions": [-1, 0]},
    ],
)
def test_an_impossible_pass_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Fill(**{"tokens": [1, 2], "positions": [0, 1], "start": 0, "sees": [2, 2], **wrong})


def test_engine_refuses_what_passes_cannot_do(engine: Engine) -> None:
    with pytest.raises(UsageError, match="cache"):
        engine.fill({0: Fill([1] * 40, range(40), 20, [60] * 40)})
    with pytest.raises(UsageError, match="token"):
        engine.fill({0: Fill([10**6], [0], 0, [1])})
    engine.sampling = Sampling(min_p=0.1)  # greedy decoding takes the best token, which min-p never removes
    engine.fill({0: Fill([1], [0], 0, [1])})
    engine.sampling = Sampling(presence_penalty=1.0)
    with pytest.raises(UsageError, match="penalties"):
        engine.fill({0: Fill([1], [0], 0, [1])})
    with attached(supported("mistral"), capacity=16) as windowed, pytest.raises(UsageError, match="layers"):
        windowed.fill({windowed.alloc(): Fill([1], [0], 0, [1])})
