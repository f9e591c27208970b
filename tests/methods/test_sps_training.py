"""``train.py`` of sps: draft models learn from any start, and the method drafts with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from support import decoders, models
from support.head_training import ANSWER, QUICK, answers, losses
from support.models import SUPPORTED, attached, build, prompt, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.models import load
from specbench.planning.methods import plan_methods
from specbench.training.objectives.side_by_side import side_by_side
from specbench.training.recipe import Job, Text

if TYPE_CHECKING:
    from specbench.methods.sps.train import Options

WORDS = models.byte_tokenizer()
VOCAB = len(WORDS)


def target(tokenizer: Any = WORDS) -> Any:
    """A tiny model with the words of a tokenizer that can be saved."""
    return decoders.loaded(tiny_llama(VOCAB, num_hidden_layers=3), "target", tokenizer)


def options(**more: Any) -> Options:
    from specbench.methods.sps.train import Options

    return Options(**{**QUICK, "layers": 1, "draft_tokens": 3, **more})


def train(chosen: Options, job: Job) -> Mapping[str, Any]:
    from specbench.methods.sps import train as recipe  # and with it transformers' Trainer, PEFT and datasets

    recipe.check(chosen, job.target)
    return recipe.train(chosen, job)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The tiny target's own greedy answers."""
    return answers(target(), tmp_path_factory.mktemp("answers"), first=32)


def job(texts: Sequence[Text], out: Path, say: Callable[[str], None] = lambda line: None, aside: int = 0) -> Job:
    return Job(target(), texts[aside:], texts[:aside], out, 0, say)


def decoded(folder: Path, texts: Sequence[Text], draft_tokens: int) -> list[Any]:
    """Records of the texts' prompts, decoded by the engine with the draft model that lies in a folder."""
    with attached(target().model, capacity=60, max_rows=1 + draft_tokens) as engine:
        (_, method) = plan_methods(["sps"], [f"sps.draft={folder}", f"sps.k={draft_tokens}"])
        method = method.ready(decoders.target(engine, lambda name: load(name, dtype="float32"), WORDS))
        return decoders.served(engine, method, [text.prompt for text in texts], ANSWER)


def test_a_draft_model_learns_and_sps_takes_as_many_forwards_as_were_counted(texts: list[Text], tmp_path: Path) -> None:
    result: list[str] = []
    texts = texts[:3]
    card = train(options(steps=80), Job(target(), texts, texts, tmp_path, 0, result.append))
    falling = losses(result)
    assert len(falling) == 80
    assert sum(falling[-5:]) < 0.3 * sum(falling[:5])
    assert card["after"]["tpf"] > 1.3 * card["before"]["tpf"]
    assert (card["layers"], card["texts"], card["steps"]) == (1, 3, 80)
    assert any("held out before training: " in line for line in result)

    records = decoded(tmp_path / "draft", texts, 3)
    assert [record.output_ids for record in records] == [list(text.answer) for text in texts], "not AR's text"
    forwards = sum(record.target_forwards for record in records)
    assert card["after"]["tpf"] == pytest.approx(sum(len(text.answer) - 1 for text in texts) / forwards, abs=1e-3)


def test_the_loss_is_over_the_tokens_of_the_answers(texts: list[Text]) -> None:
    from specbench.methods.sps.learning import Lesson

    whole, draft = target().model, tiny_llama(VOCAB, seed=1, num_hidden_layers=1)
    some = [texts[0], Text("short", [3, 4, 5, 6, 7], [8, 9])]  # which is filled up
    kls, surprises = [], []
    with torch.no_grad():
        for text in some:
            ids = torch.tensor([[*text.prompt, *text.answer]])
            rows = slice(len(text.prompt) - 1, -1)
            theirs, mine = (model(ids).logits[0, rows].log_softmax(-1) for model in (whole, draft))
            kls += (theirs.exp() * (theirs - mine)).sum(-1).tolist()
            surprises += (-mine.gather(1, torch.tensor(text.answer)[:, None])[:, 0]).tolist()
        found = Lesson(draft, whole, kl=0.5, ce=2.0)(**side_by_side(some))
    assert len(kls) == ANSWER + 2
    assert float(found["kl"]) == pytest.approx(sum(kls) / len(kls), rel=1e-4)
    assert float(found["ce"]) == pytest.approx(sum(surprises) / len(kls), rel=1e-4)
    assert float(found["loss"]) == pytest.approx(0.5 * float(found["kl"]) + 2.0 * float(found["ce"]), rel=1e-5)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "draft" / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("family", sorted(SUPPORTED))
def test_the_targets_own_layers_are_where_it_starts(family: str) -> None:
    from specbench.methods.sps import start

    model = build(SUPPORTED[family])
    whole = decoders.loaded(model, family)
    layers = int(model.config.get_text_config().num_hidden_layers)
    ids = torch.tensor([prompt(9, 90)])
    with torch.no_grad():
        full = start.from_layers(whole, layers)
        assert torch.allclose(full(ids).logits, model(ids).logits, atol=1e-4), "all layers are the target"
        part = start.from_layers(whole, 1)
        assert part.config.get_text_config().num_hidden_layers == 1
        assert not torch.allclose(part(ids).logits, model(ids).logits, atol=1e-2)
    for name, value in part.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
        assert value.data_ptr() != model.state_dict()[name].data_ptr(), "a copy: the target is not trained"


def test_a_fresh_one_has_the_sizes_that_were_asked_for_and_its_words_learn(texts: list[Text], tmp_path: Path) -> None:
    card = train(options(start="fresh", layers=2, hidden=16, steps=2), job(texts, tmp_path / "a"))
    config = load(str(tmp_path / "a" / "draft")).model.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (16, 2, VOCAB)
    assert config.num_attention_heads // config.num_key_value_heads == 2, "queries of a head as the target's"
    assert card["parameters"] < sum(p.numel() for p in target().model.parameters())
    train(options(start="fresh", layers=2, hidden=16, steps=2), job(texts, tmp_path / "b"))
    assert same(tmp_path / "a", tmp_path / "b"), "the seed decides"
    embedding = "model.embed_tokens.weight"
    own = target().model.state_dict()[embedding].to(torch.bfloat16)
    train(options(steps=2), job(texts, tmp_path / "c"))
    assert torch.equal(weights(tmp_path / "c")[embedding], own), "layers: the target's words stay"
    train(options(steps=2, words=True), job(texts, tmp_path / "d"))
    assert not torch.equal(weights(tmp_path / "d")[embedding], own)


def test_another_model_is_a_start_where_it_has_the_targets_words(texts: list[Text], tmp_path: Path) -> None:
    tiny_llama(VOCAB, seed=1, num_hidden_layers=1).save_pretrained(tmp_path / "small")
    WORDS.save_pretrained(tmp_path / "small")
    before = load_file(tmp_path / "small" / "model.safetensors")
    train(options(start=str(tmp_path / "small"), steps=1, lr=1e-9), job(texts, tmp_path / "t"))
    for name, value in weights(tmp_path / "t").items():
        assert torch.allclose(value.float(), before[name], atol=1e-2)
    assert options(start=str(tmp_path / "small")).model_dump(mode="json")["start"] == "small", "no folder of a machine"

    foreign = models.save(tmp_path / "foreign")
    vocabulary = (foreign / "tokenizer.json").read_text()
    (foreign / "tokenizer.json").write_text(vocabulary.replace('"!"', '"zz"'))
    with pytest.raises(UsageError, check=wording):
        train(options(start=str(foreign)), job(texts, tmp_path / "f"))


@pytest.mark.parametrize(
    "more",
    [
        {"layers": 4},
        {"hidden": 16},
        {"kl": 0.0, "ce": 0.0},
    ],
)
def test_what_cannot_be_is_refused(texts: list[Text], tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, check=wording):
        train(options(**more), job(texts, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_mistakes_in_the_start_and_targets_without_words_are_refused(texts: list[Text], tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        options(start="lasers")
    with pytest.raises(UsageError, check=wording):
        train(options(), Job(decoders.loaded(tiny_llama(VOCAB)), texts, [], tmp_path, 0, lambda line: None))
