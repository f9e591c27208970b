"""Heads in each published layout against the definition: every score of every tree, the trees, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import level_rounds
from support.decoders import alone, served, target
from support.level_rounds import Round, difference
from support.models import attached, autoregressive, prompt, tiny_llama
from support.wording import wording
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.engine import Sampling, graphs
from specbench.heads.convert import convert
from specbench.methods.medusa.config import HeadConfig
from specbench.methods.medusa.head import DraftHead
from specbench.planning.methods import make_method

VOCAB, HIDDEN, LAYERS, HEADS = 17, 32, 3, 4
MAP = [11, 2, 5, 16, 0, 7, 3, 9]  # in the order of the file's rows, which is not that of the ids
TOLERANCE, NOTICED = 1e-5, 1e-3
TREE = {"width": 3, "budget": 24}

# ------------------------------------------------------------------ files


@dataclass(frozen=True)
class Kind:
    """A layout with the keys of its ``config.json``, and the misreadings that show in it."""

    layout: str
    shown: Sequence[str]
    blocks: int = 1
    bias: bool = True
    scorer: str = "own"  # or "shared", "several" for one of which only the first is read, "target"
    cut: bool = False  # a token_map
    rows: str = "cut"  # whether its LM head has the rows of the map or all
    prefix: str = ""
    config: dict[str, Any] | None = None


ALWAYS: tuple[str, ...] = (
    "tap before the norm",
    "tap of another layer",
    "token before",
    "head after",
    "heads reversed",
    "no residual",
)
ALWAYS += ("gelu", "activation of the sum", "transposed", "sequential", "normalised again", "raw scores")
KINDS = {
    "original": Kind("original", [*ALWAYS, "no bias", "target's LM head", "one LM head", "stated heads"],
                     config={"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"}),
    "original, two blocks": Kind("original", ["blocks reversed", "first block only", "first block twice"], blocks=2),
    "original, no block": Kind("original", ["tap before the norm", "one LM head"], blocks=0),
    "TGI": Kind("tgi", [*ALWAYS, "no bias"], config={"medusa_num_heads": HEADS, "medusa_num_layers": 1}),
    "v0.1": Kind("original", [*ALWAYS, "no bias"], scorer="target"),
    "vLLM": Kind("vllm", [*ALWAYS, "target's LM head", "one LM head"], bias=False),
    "vLLM, bias": Kind("vllm", ["no bias", "blocks reversed"], blocks=2, prefix="medusa_heads."),
    "vLLM, map": Kind("vllm", ["map ignored", "map as offsets", "map sorted", "softmax over all"], cut=True),
    "vLLM, map and whole LM heads": Kind("vllm", ["map ignored", "first rows"], bias=False, cut=True, rows="all"),
    "vLLM, shared": Kind("vllm", ["target's LM head", "no bias", "map ignored"], scorer="shared", cut=True),
    "vLLM, several": Kind("vllm", ["target's LM head", "last LM head"], scorer="several"),
    "Medusa-2": Kind("original", [*ALWAYS, "no bias", "target's LM head"], prefix="medusa_head.",
                     config={"model_type": "llama", "hidden_size": HIDDEN, "vocab_size": VOCAB}),
    "vLLM, target's": Kind("vllm", ["map ignored", "map sorted"], scorer="target", cut=True),
}  # fmt: skip
WRONG = {wrong for kind in KINDS.values() for wrong in kind.shown}


def write(folder: Path, kind: Kind, seed: int = 0) -> Path:
    """Random heads in a layout."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return 0.4 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    drafted = len(MAP) if kind.cut and kind.rows == "cut" else VOCAB
    found: dict[str, Tensor] = {}
    vllm = kind.layout == "vllm"
    together = kind.prefix if kind.prefix == "medusa_head." else ""
    if together:  # the target's own tensors, which are not the heads'
        found |= {"model.layers.0.input_layernorm.weight": noise(HIDDEN), "lm_head.weight": noise(VOCAB, HIDDEN)}
    for k in range(HEADS):
        for j in range(kind.blocks):
            block = f"blocks.{k}.layers.{j}" if vllm else f"{k}.{j}.linear"
            found[f"{kind.prefix}{block}.weight"] = noise(HIDDEN, HIDDEN)
            if kind.bias:
                found[f"{kind.prefix}{block}.bias"] = noise(HIDDEN)
        if kind.scorer in ("own", "several"):
            name = f"lm_heads.{k}.weight" if vllm else f"{together}{k}.{kind.blocks}.weight"
            found[name] = noise(drafted, HIDDEN)
    if kind.scorer == "shared":
        found["lm_head.weight"] = noise(drafted, HIDDEN)
    if kind.cut:
        found["token_map"] = torch.tensor(MAP)
    config: dict[str, Any] = {"medusa_num_layers": kind.blocks}
    if vllm:
        config = {
            "model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
            "num_heads": HEADS, "num_hidden_layers": kind.blocks, "medusa_fc_bias": kind.bias,
            "truncated_vocab_size": len(MAP) if kind.cut else VOCAB, "original_lm_head": kind.scorer != "own",
        }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(kind.config or config))
    save_file(found, folder / ("medusa_lm_head.safetensors" if kind.layout == "tgi" else "model.safetensors"))
    return folder


# ------------------------------------------------------------------ the definition


@cache
def model() -> Any:
    made = tiny_llama(VOCAB, num_hidden_layers=LAYERS).double()
    norm = made.model.norm.weight  # of other values than 1, which would hide a second norm
    norm.data.copy_(torch.linspace(0.5, 1.5, len(norm)))
    return made


def states(ids: Sequence[int], wrong: str = "") -> Tensor:
    """What the target's LM head reads after each token."""
    found: list[Tensor] = []
    base = model().model
    handle = base.layers[-1].register_forward_hook(
        lambda _, __, out: found.append(out if isinstance(out, Tensor) else out[0])
    )
    try:
        with torch.inference_mode():
            last = base(torch.tensor([[*ids]]), use_cache=False, output_hidden_states=True)
    finally:
        handle.remove()
    if wrong == "tap before the norm":
        return found[0][0]
    return last.hidden_states[1][0] if wrong == "tap of another layer" else last.last_hidden_state[0]


def scores(folder: Path, kind: Kind, text: Sequence[int], wrong: str = "") -> Tensor:
    """Log-probabilities [heads, V] of the tokens after a text, whose last token has not been through the target."""
    held = {
        name.removeprefix(kind.prefix): value for name, value in load_file(next(folder.glob("*.safetensors"))).items()
    }
    before = states(text[:-1] if wrong != "token before" or len(text) < 3 else text[:-2], wrong)[-1]
    if wrong == "normalised again":
        before = functional.rms_norm(before, before.shape[-1:])
    lm_head = model().lm_head.weight.detach()
    found = []
    x = before
    for k in range(HEADS):
        x = x if wrong == "sequential" else before
        names = [f"blocks.{k}.layers.{j}" if kind.layout == "vllm" else f"{k}.{j}.linear" for j in range(kind.blocks)]
        names = names[::-1] if wrong == "blocks reversed" else names
        names = names[:1] if wrong == "first block only" else names
        names = names[:1] * 2 if wrong == "first block twice" else names
        for name in names:
            weight = held[f"{name}.weight"]
            bias = held.get(f"{name}.bias") if wrong != "no bias" else None
            y = functional.linear(x, weight.T if wrong == "transposed" else weight, bias)
            act = functional.gelu if wrong == "gelu" else functional.silu
            y = act(x + y) if wrong == "activation of the sum" else act(y) + (0 if wrong == "no residual" else x)
            x = y
        own = 0 if wrong == "one LM head" or kind.scorer == "several" else k
        own = HEADS - 1 if wrong == "last LM head" else own
        name = f"lm_heads.{own}.weight" if kind.layout == "vllm" else f"{own}.{kind.blocks}.weight"
        rows = held.get(name, held.get("lm_head.weight", lm_head))
        ids = list(MAP) if kind.cut else list(range(VOCAB))
        if wrong == "target's LM head":
            rows = lm_head
        if kind.cut and len(rows) == VOCAB and wrong != "softmax over all":
            rows = rows[: len(ids)] if wrong == "first rows" else rows[ids]
        if wrong == "map ignored":
            ids = list(range(len(ids)))
        elif wrong == "map sorted":
            ids = sorted(ids)
        elif wrong == "map as offsets":
            ids = [(at + each) % VOCAB for at, each in enumerate(ids)]
        logits = rows @ x
        if wrong == "softmax over all":  # the other tokens have a score of 0
            logits = torch.cat([logits, logits.new_zeros(VOCAB - len(logits))])
        logp = logits if wrong == "raw scores" else logits.log_softmax(-1)
        every = torch.full((VOCAB,), -torch.inf, dtype=logp.dtype)
        every[ids] = logp[: len(ids)]
        found.append(every)
    if wrong == "heads reversed":
        found = found[::-1]
    if wrong == "head after":
        found = [*found[1:], found[0]]
    if wrong == "stated heads":
        found = found[:2] + [torch.full((VOCAB,), -torch.inf, dtype=torch.float64)] * (HEADS - 2)
    return torch.stack(found)


# ------------------------------------------------------------------ rounds in an engine


PROMPTS = [prompt(length, VOCAB, length) for length in (1, 12, 5)]


def rounds(folder: Path, tokens: int = 10, **options: Any) -> list[Round]:
    return level_rounds.rounds("medusa", model(), PROMPTS, tokens, head=str(folder), **{**TREE, **options})


def far(each: Round, logp: Tensor) -> float:
    """How far the scores of a tree's rows are from ``logp`` [heads, V], at most."""
    return difference(each, lambda path: logp[len(path)])


def best_paths(logp: Tensor, width: int, budget: int) -> set[tuple[int, ...]]:
    """The most probable of all paths through each position's best tokens."""
    best = [row.topk(width) for row in logp]
    every = []
    for depth in range(1, len(logp) + 1):
        for ranks in product(range(width), repeat=depth):
            total = sum(float(best[at].values[rank]) for at, rank in enumerate(ranks))
            every.append((-total, tuple(int(best[at].indices[rank]) for at, rank in enumerate(ranks))))
    return {path for _, path in sorted(every)[: budget - 1]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_score_is_the_definitions_and_no_misread_heads(kind: str, tmp_path: Path) -> None:
    what = KINDS[kind]
    folder = write(tmp_path, what)
    seen = rounds(folder)
    assert len(seen) >= 9
    assert max(len(path) for each in seen for path in each.paths()) == HEADS
    for each in seen:
        logp = scores(folder, what, each.text)
        assert far(each, logp) < TOLERANCE
        assert set(each.paths()[1:]) == best_paths(logp, TREE["width"], TREE["budget"])
    for wrong in what.shown:
        assert any(far(each, scores(folder, what, each.text, wrong)) > NOTICED for each in seen), wrong


def test_about_twenty_misreadings_are_tried() -> None:
    assert len(WRONG) >= 24


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"tree": "chain", "budget": 9}, ["0", "00", "000", "0000"]),
        ({"tree": "chain", "budget": 3}, ["0", "00"]),
        ({"tree": "chain", "depth": 3}, ["0", "00", "000"]),
        ({"tree": "0 1 00 01 10 000 2", "budget": 6, "width": 10}, ["0", "1", "00", "01", "10"]),
        ({"tree": "0 1 00 01 10 000 2", "width": 1, "depth": 2}, ["0", "00"]),
        (
            {"tree": "mc_sim_7b_63", "width": 10, "budget": 12},
            ["0", "00", "1", "01", "2", "000", "10", "02", "3", "03", "4"],
        ),
        ({"tree": "vicuna_33b_stage1", "width": 10, "budget": 6}, ["0", "1", "00", "2", "01"]),
    ],
)
def test_static_trees_have_the_tokens_of_their_ranks(options: Any, nodes: Sequence[str], tmp_path: Path) -> None:
    kind = KINDS["original"]
    folder = write(tmp_path, kind)
    for each in rounds(folder, 5, **options):
        order = scores(folder, kind, each.text).argsort(dim=-1, descending=True)
        wanted = [tuple(int(order[at, int(rank)]) for at, rank in enumerate(node)) for node in nodes]
        assert each.paths()[1:] == wanted


@pytest.mark.parametrize("accept", ["exact", "typical"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=5)], ids=["greedy", "sampled"])
def test_texts_are_the_targets(
    sampling: Sampling, accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typical acceptance is exact only at temperature 0; above, its texts are the same with and without graphs."""
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    folder = write(tmp_path, KINDS["vLLM, map"])
    how = {"capacity": 60, "max_rows": 64, "sampling": sampling}
    with attached(model(), slots=1, **how) as engine:
        truth = [autoregressive(engine, ids, 20) for ids in PROMPTS]
    texts = []
    for captured in (False, True) if sampling.greedy or accept == "typical" else (False,):
        with attached(model(), slots=3, graphs=captured, **how) as engine:
            method = make_method("medusa", "medusa", {"head": str(folder), **TREE, "accept": accept})
            records = served(engine, method.ready(target(engine)), PROMPTS, 20, together=3)
        assert all(record.draft_forwards for record in records)
        texts.append([record.output_ids for record in records])
    assert texts[0] == texts[-1]
    assert (texts[0] == truth) == (accept == "exact" or sampling.greedy)


# ------------------------------------------------------------------ writing


@pytest.mark.parametrize("kind", KINDS)
def test_saved_heads_draft_the_same(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "published", KINDS[kind])
    DraftHead.load(folder, model().config).save(tmp_path / "saved")
    one, other = (rounds(each, 6) for each in (folder, tmp_path / "saved"))
    assert [(each.text, each.tree, each.tree.row_scores()) for each in one] == [
        (each.text, each.tree, each.tree.row_scores()) for each in other
    ]
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    stated = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (stated["num_heads"], stated["truncated_vocab_size"]) == (HEADS, 8 if KINDS[kind].cut else VOCAB)
    assert ("token_map" in names, "d2t" in names) == (KINDS[kind].cut, False)


def test_a_pickle_is_converted_with_all_names_of_a_shared_block(tmp_path: Path) -> None:
    """The released code applies one block several times and writes it under several names."""
    kind = KINDS["original, two blocks"]
    folder = write(tmp_path, kind)
    held = load_file(folder / "model.safetensors")
    for k in range(HEADS):
        for part in ("weight", "bias"):
            held[f"{k}.1.linear.{part}"] = held[f"{k}.0.linear.{part}"]
    (folder / "model.safetensors").unlink()
    torch.save(held, folder / "medusa_lm_head.pt")
    assert f"python -m specbench.heads.convert {folder}" in refusal(folder)
    assert convert(folder) == folder
    assert load_file(folder / "model.safetensors").keys() == held.keys()
    for each in rounds(folder, 4):
        assert far(each, scores(folder, kind, each.text)) < TOLERANCE


# ------------------------------------------------------------------ refusals


def refusal(folder: Path, vocab: int = VOCAB, hidden: int = HIDDEN, **options: Any) -> str:
    """The line that a head is refused with."""
    other = tiny_llama(vocab, num_hidden_layers=LAYERS, hidden_size=hidden)
    made = make_method("medusa", "medusa", {"head": str(folder), **TREE, **options})
    with pytest.raises(UsageError, check=wording) as refused:
        made.ready(alone(other, capacity=40))
    assert "\n" not in str(refused.value)
    return str(refused.value)


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("original", lambda head: head.pop("1.0.linear.weight"), "blocks.1.0.weight"),
        ("original", lambda head: head.pop("2.0.linear.bias"), "blocks.2.0.bias"),
        ("original", lambda head: head.pop("3.1.weight"), "lm_heads.3.weight"),
        ("original", lambda head: head.update({"0.1.weight": torch.zeros(VOCAB, 5)}), "lm_heads.0.weight"),
        ("original", lambda head: head.update({"model.norm.weight": torch.zeros(HIDDEN)}), "model.norm.weight"),
        ("vLLM", lambda head: head.update({"blocks.0.layers.0.bias": torch.zeros(HIDDEN)}), "blocks.0.0.bias"),
        ("vLLM", lambda head: head.pop("blocks.0.layers.0.weight"), "blocks.0.0.weight"),
        ("vLLM, map", lambda head: head.pop("token_map"), "d2t"),
        ("vLLM, map", lambda head: head.update(token_map=head["token_map"] % 3), "token_map"),
        ("vLLM, map", lambda head: head.update(token_map=head["token_map"] + 9), "token_map"),
        ("vLLM, map", lambda head: head.update(token_map=head["token_map"][:5]), "d2t"),
        ("vLLM, map", lambda head: head.update(token_map=head["token_map"].double()), "d2t"),
        ("vLLM, shared", lambda head: head.pop("lm_head.weight"), ""),
        ("vLLM", lambda head: [head.pop(name) for name in [*head]] and head.update(x=torch.zeros(1)), ""),
    ],
)  # fmt: skip
def test_files_that_are_not_whole_are_refused(kind: str, change: Change, named: str, tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS[kind])
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file(held, folder / "model.safetensors")
    if kind == "vLLM, shared":  # then the target's LM head is used, as our own files say
        assert DraftHead.load(folder, model().config).config.scorer == "target"
        return
    assert named in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "config", "dropped"),
    [
        ("vLLM", {"original_lm_head": False}, "lm_heads."),
        ("vLLM", {"num_hidden_layers": 1}, "blocks."),
        ("original", {"medusa_num_layers": 2}, ""),
    ],
)
def test_parts_that_the_configuration_promises_are_not_left_out(
    kind: str, config: dict[str, Any], dropped: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, KINDS[kind])
    held = load_file(folder / "model.safetensors")
    save_file(
        {name: each for name, each in held.items() if not dropped or dropped not in name}, folder / "model.safetensors"
    )
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    assert "lacks tensors of its" in refusal(folder)


def test_a_tree_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    assert "medusa.tree" in refusal(write(tmp_path, KINDS["original"]), tree="1", width=1)


def test_an_absurd_index_is_refused_before_a_head_is_made(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["original"])
    held = load_file(folder / "model.safetensors")
    save_file({**held, "3000000.0.linear.weight": torch.zeros(HIDDEN, HIDDEN)}, folder / "model.safetensors")
    assert "lacks tensors of its" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("original", {"vocab": 19}), ("original", {"hidden": 40}), ("original", {"depth": 5}),
        ("v0.1", {"hidden": 40}), ("vLLM, map", {"vocab": 19}),
    ],
)  # fmt: skip
def test_heads_of_other_targets_are_refused(kind: str, sizes: dict[str, int], tmp_path: Path) -> None:
    refusal(write(tmp_path / "head", KINDS[kind]), **sizes)


def test_scaled_scores_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, KINDS["vLLM"])
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "logit_scale": 0.5}))
    assert "logit_scale" in refusal(folder)


def test_a_wrong_number_of_heads_is_reported(tmp_path: Path) -> None:
    heard: list[str] = []
    folder = write(tmp_path, KINDS["original"])
    with attached(model(), capacity=60, max_rows=64) as engine:
        listening = replace(target(engine), warn=heard.append)
        make_method("medusa", "medusa", {"head": str(folder)}).ready(listening)
    (line,) = heard
    assert wording(line)
    assert DraftHead.load(folder, model().config).config.heads == HEADS


def test_an_untrained_head_has_the_published_shape() -> None:
    head = DraftHead.random(HeadConfig.for_target(model().config))
    assert sum(parameter.numel() for parameter in head.parameters()) == 5 * (HIDDEN * HIDDEN + HIDDEN + VOCAB * HIDDEN)
