"""Tiny random models of many families, their checkpoints, and prompts for them."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from specbench.common.options import Options, parse_flags
from specbench.common.prompt import Prompt
from specbench.common.registry import Card
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import TokenTree
from specbench.engine.engine import Engine
from specbench.methods.jacobi.decoder import Decoder
from specbench.methods.jacobi.decoder import Options as JacobiOptions
from specbench.models.adapters import fingerprint
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load
from specbench.planning.load import plan_load
from specbench.planning.plan import Plan
from specbench.planning.resolving import Resolved
from specbench.planning.tasks import TaskPlan
from specbench.results.request_schema import RequestRecord, request_key
from specbench.runner.prompts import Prepared, prepare
from specbench.runner.record import Request
from specbench.training.data.trajectory_folder import Trajectory
from specbench.training.recipe import Text

# ------------------------------
# Tiny random causal LMs of many families, and an engine that gives the model back at the end.
#
# Weights are wide (initializer_range 0.3) so that greedy output varies and does not settle on one token.


transformers.logging.set_verbosity_error()
logging.getLogger("transformers").setLevel(logging.ERROR)

WINDOW = 8  # of the families that slide; shorter than every test's run

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
# The last two layers store nothing and read what the last layers of their kinds before them have stored.
_SHARING: dict[str, Any] = {
    "sliding_window": WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8, "tie_word_embeddings": False,
}  # fmt: skip
_SLIDING_AND_FULL = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]

#: Names of a configuration and of a model of transformers, which imports a family when it is asked for, and sizes.
_Recipe = tuple[str, str, dict[str, Any]]

# What the engine must run. Sliding windows are shorter than the runs; every family has fewer KV heads than heads.
SUPPORTED: dict[str, _Recipe] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"vocab_size": 97}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"vocab_size": 131}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"vocab_size": 300, "num_hidden_layers": 3}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"vocab_size": 101, "sliding_window": WINDOW}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"vocab_size": 113, "original_max_position_embeddings": 256}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"vocab_size": 200, "sliding_window": WINDOW, "num_hidden_layers": 4, "layer_types": _SLIDING_AND_FULL}
        | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False},
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"vocab_size": 109, "sliding_window": WINDOW, "num_hidden_layers": 4, "query_pre_attn_scalar": 8}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": False},
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"vocab_size": 107, "sliding_window": WINDOW, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        | _MOE,
    ),
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {"vocab_size": 127, "intermediate_size_mlp": 48, "num_hidden_layers": 4, "attention_chunk_size": WINDOW}
        | {"no_rope_layers": [1, 1, 1, 0], "attn_temperature_tuning": False, **_MOE},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"vocab_size": 149, **_MOE}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 103, "n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False},
    ),
}

# Likewise, with layers that read the keys and values of others.
SHARING: dict[str, _Recipe] = {
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {"vocab_size": 97, "vocab_size_per_layer_input": 97, **_SHARING, "laurel_rank": 4, "altup_num_inputs": 2}
        | {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
    ),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {"vocab_size": 97, "vocab_size_per_layer_input": 97, **_SHARING},
    ),
}

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SCAN = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}

# Likewise, with layers that fold the text into a state.
RECURRENT: dict[str, _Recipe] = {
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {"vocab_size": 97, "layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {"vocab_size": 97, "num_hidden_layers": 3, "shared_expert_intermediate_size": 16, **_EXPERTS}
        | {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_conv_kernel_dim": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
    # Its layers continue from a state one token at a time; it has no attention, and names its cache in its own way.
    "mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": 97, "state_size": 8}),
    # Attention and a state in the same layer.
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", {"vocab_size": 97, "mamba_d_ssm": 32, **_SCAN}),
}

# What it must refuse, with the words that name the feature.
REFUSED: dict[str, tuple[_Recipe, str]] = {
    "old-style": (
        ("BloomConfig", "BloomForCausalLM", {"vocab_size": 97, "n_layer": 2, "n_head": 4}),
        "AttentionInterface",
    ),
    "state of its own": (
        (
            "RecurrentGemmaConfig",
            "RecurrentGemmaForCausalLM",
            {"vocab_size": 97, "lru_width": 32, "num_hidden_layers": 3},
        ),
        "differs from the model's own",
    ),
    "window in the mask only": (
        ("PhimoeConfig", "PhimoeForCausalLM", {"vocab_size": 97, "sliding_window": WINDOW, **_MOE}),
        f"sliding window of {WINDOW}",
    ),
    "keyword arguments dropped": (("NemotronConfig", "NemotronForCausalLM", {"vocab_size": 97}), "keyword arguments"),
    "bidirectional": (("BertConfig", "BertLMHeadModel", {"vocab_size": 97}), "differs from the model's own"),
    "dynamic rope": (
        (
            "LlamaConfig",
            "LlamaForCausalLM",
            {"vocab_size": 97, "max_position_embeddings": 32}
            | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ),
        "'dynamic' rope",
    ),
    "longrope": (
        (
            "Phi3Config",
            "Phi3ForCausalLM",
            {"vocab_size": 97, "original_max_position_embeddings": 32}
            | {
                "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}
                | {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
            },
        ),
        "'longrope' rope",
    ),
    "learned positions": (
        (
            "GPT2Config",
            "GPT2LMHeadModel",
            {"vocab_size": 97, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32},
        ),
        "learned embeddings for 32 positions",
    ),
}


def build(recipe: _Recipe, seed: int = 0) -> Any:
    """A float32 model with random weights, the same for the same seed; torch's generator is left as it was."""
    config_name, model_name, options = recipe
    # GPT-2-like configurations spell the same sizes otherwise, and must not be passed twice
    sizes = {"initializer_range": 0.3, "eos_token_id": None} if "n_layer" in options else _SIZES
    config = getattr(transformers, config_name)(**{**sizes, **options})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, model_name)(config).eval()


@cache
def supported(name: str) -> Any:
    """A model that the engine must run, built once; :func:`attached` gives it back unchanged."""
    return build({**SUPPORTED, **SHARING, **RECURRENT}[name])


def tiny_llama(vocab: int, seed: int = 0, **options: Any) -> Any:
    """A Llama with ``vocab`` tokens; ``options`` override its configuration."""
    return build(("LlamaConfig", "LlamaForCausalLM", {"vocab_size": vocab, **options}), seed)


@contextmanager
def attached(model: Any, **options: Any) -> Iterator[Engine]:
    """An engine on ``model`` that is closed at the end."""
    engine = Engine(model, **options)
    try:
        yield engine
    finally:
        engine.close()


@torch.inference_mode()
def layer_outputs(model: Any, text: torch.Tensor) -> list[torch.Tensor]:
    """transformers' own answer, of a copy: what it hooks to the layers to give it stays there."""
    outputs: tuple[torch.Tensor, ...] = copy.deepcopy(model)(text, output_hidden_states=True).hidden_states
    return list(outputs[1:])


def before_norm(model: Any, text: Sequence[int]) -> list[torch.Tensor]:
    """Each layer's outputs [n, H] for a text; those of the last one are not normed."""
    found: list[torch.Tensor] = []
    handles = [each.register_forward_hook(lambda _, __, out: found.append(out[0])) for each in model.model.layers]
    with torch.inference_mode():
        model.model(torch.tensor([text]))
    for handle in handles:
        handle.remove()
    return found


def prompt(length: int, vocab: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, vocab, (length,), generator=generator).tolist()


def autoregressive(engine: Engine, ids: list[int], tokens: int) -> list[int]:
    """``tokens`` ids after a prompt, one per forward, in a slot of its own."""
    return decode(engine, ids, tokens, lambda out: None)


def decode(engine: Engine, ids: list[int], tokens: int, draft: Callable[[list[int]], Any]) -> list[int]:
    """At least ``tokens`` ids after a prompt, cut to that many.

    Args:
        engine: with a free slot.
        ids: the prompt.
        tokens: how many.
        draft: the tree to step, from the output so far; None is the root alone.
    """
    slot = engine.alloc()
    out = list(engine.prefill(slot, ids).emitted)
    while len(out) < tokens:
        tree = draft(out) or TokenTree.chain([out[-1]])
        out += engine.step({slot: tree})[slot].emitted
    engine.free(slot)
    return out[:tokens]


# ------------------------------
# Local folders with a tiny model and a tokenizer of bytes, which load as a checkpoint from a hub does.


def byte_tokenizer(bos: str = "<s>", eos: str = "</s>", template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for ``eos`` (0), one for ``bos`` (1), and one for every byte."""
    symbols = [eos, bos, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos, chat_template=template)


def save(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Writes the model of ``config:tiny`` and a tokenizer, by default :func:`byte_tokenizer`, into a folder."""
    load("config:tiny").model.save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path) -> Any:
    """Writes a random adapter for a saved model into a folder, as PEFT does; returns the model that carries it."""
    from peft import LoraConfig, get_peft_model  # not by those who save models alone

    with torch.random.fork_rng():
        torch.manual_seed(3)
        adapted: Any = get_peft_model(
            load(str(base)).model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        )
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)
    return adapted


# ------------------------------
# Models that are exported: tiny ones whose biases and norms are random too, so that one in a wrong place is seen.


EXPORTED_VOCAB = 97
_EXPORTED_SIZES = {"vocab_size": EXPORTED_VOCAB, "rope_parameters": {"rope_theta": 77.0}, "tie_word_embeddings": False}

#: What GGUF is written of: fewer KV heads than heads in all of them.
FAMILIES: dict[str, _Recipe] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _EXPORTED_SIZES),
    "llama, tied": ("LlamaConfig", "LlamaForCausalLM", {**_EXPORTED_SIZES, "tie_word_embeddings": True}),
    "llama with biases": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_EXPORTED_SIZES, "attention_bias": True, "mlp_bias": True},
    ),
    "llama with wide heads": ("LlamaConfig", "LlamaForCausalLM", {**_EXPORTED_SIZES, "head_dim": 12}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _EXPORTED_SIZES),
    "qwen2, tied": ("Qwen2Config", "Qwen2ForCausalLM", {**_EXPORTED_SIZES, "tie_word_embeddings": True}),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**_EXPORTED_SIZES, "head_dim": 128},
    ),  # transformers reads no other from a file
}


def tiny(recipe: _Recipe, dtype: torch.dtype = torch.float32, name: str = "tiny") -> LoadedModel:
    """A random model as it is loaded, without a tokenizer."""
    model = build(recipe)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn(parameter.shape, generator=generator) / 4
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return loaded(model, dtype, name)


def loaded(model: Any, dtype: torch.dtype = torch.float32, name: str = "tiny") -> LoadedModel:
    """A model of transformers as it is loaded, without a tokenizer."""
    dummy = load("config:tiny", device="cpu")
    outcome = {"name": name, "dtype": str(dtype).removeprefix("torch."), "fingerprint": fingerprint(model)}
    return replace(dummy, model=model, stop_ids=frozenset(), spec=dummy.spec.model_copy(update=outcome))


# ------------------------------
# A model that writes what it is asked into its token ids, and plans and answers for it.


class Model:
    """Ids are the characters of "role: text|" for every turn; it knows no limit unless given a context."""

    stop_ids: frozenset[int] = frozenset()
    has_chat_template = True
    spec = SimpleNamespace(name="toy")

    def __init__(self, context: int | None = None) -> None:
        self.context = context

    def encode(self, prompt: Prompt) -> list[int]:
        if not prompt.chat:
            return [ord(letter) for letter in prompt.text]
        turns = (*prompt.history, ("user", prompt.text))
        return [ord(letter) for role, outcome in turns for letter in f"{role}: {outcome}|"]

    def decode(self, ids: Sequence[int]) -> str:
        return text(ids)


def text(ids: Sequence[int]) -> str:
    """What a prompt says."""
    return "".join(map(chr, ids))


def plan(methods: Sequence[Method], **changes: Any) -> Resolved:
    """A run of these methods, greedy, a prompt once, one at a time."""
    made = parse_flags(Plan, {"model": "toy", "max_new_tokens": 10, **changes})
    return Resolved(made, tuple(methods), (), arrivals=plan_load(made))


def prepared(
    prompts: Sequence[Prompt], model: Model | LoadedModel | None = None, held_out: int | None = None, **changes: Any
) -> Prepared:
    """A task of these prompts, prepared; ``changes`` are the plan's."""

    class Task:
        def __init__(self, options: Options, data_dir: Path | None) -> None:
            self.options = options

        def prompts(self, chat: bool) -> Sequence[Prompt]:
            return prompts

    card = Card("task", "toy-task", "toys", Path(), "tests", {"version": 3, "metric": "", "max_new_tokens": 7})
    task = TaskPlan(card, Options(), SimpleNamespace(Task=Task), None)
    return prepare(plan([], **changes).plan, task, model or Model(), held_out)  # type: ignore[arg-type]


def request_record(label: str, request: Request) -> RequestRecord:
    """An answer that names its method and its turn."""
    return RequestRecord(
        request_id=request_key(label, request.prompt_id, request.repeat, request.turn), method=label,
        prompt_id=request.prompt_id, repeat=request.repeat, turn=request.turn, category=request.category,
        prompt_tokens=len(request.ids), output_ids=[1], text=f"{label} {request.turn}", finish_reason="length",
        output_tokens=1, overshoot_tokens=0, stop_tail_tokens=0, accepted_lengths=[], tree_rows=0,
        target_forwards=0, draft_forwards=0, start_s=0.0, segment=0, ttft_s=1.0, decode_s=0.0, latency_s=1.0,
        prefill_share_s=1.0, decode_share_s=0.0,
    )  # fmt: skip


# ------------------------------
# A made-up language, and a tiny model that has learnt to speak it: what training recipes are tried on in seconds.
#
# Each token has one successor. A prompt is some words and a key, and the answer goes on from the key: who reads the
# token before needs one step of the successor, who reads the key needs as many as there are tokens between.


VOCAB, ANSWER, KEYS = 40, 20, 6
_PROMPT, _WORDS = 2, 10


def texts(count: int, seed: int = 0) -> list[Text]:
    """Prompts with the answers that the language has to them."""
    draw = random.Random(seed)
    successor = _successor()
    found = []
    for number in range(count):
        words = [draw.randrange(_WORDS) for _ in range(_PROMPT)]
        answer, token = [], 3 * draw.randrange(KEYS)
        prompt = [*words, token]
        for _ in range(ANSWER):
            token = successor[token]
            answer.append(token)
        found.append(Text(f"language/{number}", prompt, answer))
    return found


def _successor() -> list[int]:
    order = list(range(VOCAB))
    random.Random(7).shuffle(order)
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [after[token] for token in range(VOCAB)]


def speaker(steps: int = 150) -> Any:
    """A tiny model that says what the language says, learnt token by token as every language model is."""
    model = tiny_llama(VOCAB, hidden_size=64, intermediate_size=128, head_dim=16, initializer_range=0.05)
    model.requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for step in range(steps):
            ids = torch.tensor([[*text.prompt, *text.answer] for text in texts(16, seed=1000 + step)])
            scores = model(ids).logits[:, _PROMPT:-1]
            loss = cross_entropy(scores.flatten(0, 1), ids[:, _PROMPT + 1 :].flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return model.requires_grad_(False)


# ------------------------------
# Texts that a model has written, and the Jacobi decoder on guesses that are given to it.


def answered(model: LoadedModel, lengths: Sequence[tuple[int, int]], **options: Any) -> list[Text]:
    """A model's answers to random prompts; ``lengths`` of (prompt, answer), ``options`` of the engine."""
    texts = []
    with attached(model.model, capacity=max(map(sum, lengths)), max_rows=8, **options) as engine:
        for number, (asked, tokens) in enumerate(lengths):
            ids = prompt(asked, model.vocab_size, seed=number)
            texts.append(Text(f"set/{number}", ids, autoregressive(engine, ids, tokens)))
    return texts


class _Given(random.Random):
    """Hands out guesses that are known, and nothing after them."""

    def __init__(self, guesses: Sequence[Sequence[int]]) -> None:
        self._left = list(guesses)

    def choices(self, population: Any, *_: Any, k: int = 1, **__: Any) -> list[Any]:
        mine = list(self._left.pop(0)) if self._left else []
        return (mine + [0] * k)[:k]


def replayed(engine: Engine, trajectory: Trajectory) -> list[list[list[int]]]:
    """The states that ``jacobi`` goes through, block by block, when blocks begin as those of a trajectory do.

    Of the last block, what is after the answer is left out.
    """
    n, end = trajectory.block_size, len(trajectory.answer)
    context = Context(1 << 30, 0, _Given([states[0][1:] for states in trajectory.blocks]))
    decoder = Decoder(JacobiOptions(block_size=n, prefill_draft=False), context)
    decoder.begin(trajectory.prompt)
    slot = engine.alloc()
    result = engine.prefill(slot, trajectory.prompt)
    decoder.observe(result)
    out = list(result.emitted)
    blocks: list[list[list[int]]] = [[] for _ in trajectory.blocks]
    while len(out) <= end:
        tree: TokenTree = decoder.draft()
        block = (len(out) - 1) // n
        state = [*out[block * n : -1], *tree.tokens][: min(n, end - block * n)]
        if state not in blocks[block][-1:]:  # the forward that confirms a fixed point is no state
            blocks[block].append(state)
        result = engine.step({slot: tree})[slot]
        decoder.observe(result)
        out += result.emitted
    engine.free(slot)
    return blocks


def written(trajectory: Trajectory) -> list[list[list[int]]]:
    """The states of a trajectory without what fills its last block."""
    n, end = trajectory.block_size, len(trajectory.answer)
    return [[list(state[: end - block * n]) for state in states] for block, states in enumerate(trajectory.blocks)]


# ------------------------------
# FlexAttention inside of transformers models, on a CPU, in seconds.


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers calls it as it is: compiled for a CPU it takes minutes."""
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as theirs

    def plain(*args: Any, training: bool = False, **options: Any) -> Any:
        return flex_attention(*args, **options)

    monkeypatch.setattr(theirs, "compile_friendly_flex_attention", plain)
