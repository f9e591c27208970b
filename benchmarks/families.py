"""Try every causal language model class of transformers, tiny and with random weights, and write down what happens.

A family is **exact** if the engine decodes the tokens of the model's own ``generate`` in float32, one row at a time and
with trees in three slots at once, after texts longer than its windows. Otherwise the engine refuses it with a reason.

    python -m benchmarks.families                 # write specbench/models/families.json
    python -m benchmarks.families --check         # fail if a family that is exact in that file is not exact any more
    python -m benchmarks.families llama gpt_oss   # some of them

``specbench list families`` and a page of the docs show the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specbench.common import SpecbenchError, one_line
from specbench.decoding import TokenTree
from specbench.engine import Engine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "specbench" / "models" / "families.json"

VOCABULARY, WINDOW, PROMPT, TOKENS, SLOTS = 131, 8, 13, 24, 3
LAYERS = 4
LARGEST = 20_000_000  # parameters of a model that this command could not make small

# Sizes by the names that configurations have for them.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff"), 48),
    **dict.fromkeys(("intermediate_size_mlp", "mlp_intermediate_size", "ffn_hidden_size", "d_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    "encoder_layers": 1,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 128),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention_window", "window_size"), WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "experts_per_token"), 2),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "first_k_dense_replace", "moe_layer_start_index"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "qk_head_dim"), 8),
    **dict.fromkeys(("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "linear_conv_kernel_dim"), 4),
    "linear_num_key_heads": 2,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "linear_head_dim"), 8),
    "mamba_d_ssm": 32,
    "mamba_expand": 1,
    "mamba_n_groups": 1,
    "hidden_size_per_layer_input": 8,
    "query_pre_attn_scalar": 8,
    "rotary_dim": 8,
    "index_topk": 64,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "lru_width": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "is_decoder": True,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "use_mamba_kernels": False,
}
# What a class needs besides: where two sizes depend on each other.
_MORE: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "phimoe": {"sliding_window": None},  # its window is only in its own mask, and no published model's is in reach
    "phi3": {"original_max_position_embeddings": 128},
    "gemma3n_text": {"laurel_rank": 4, "altup_num_inputs": 2, "num_kv_shared_layers": 2}
    | {"intermediate_size": [48] * LAYERS, "activation_sparsity_pattern": [0.0] * LAYERS},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]]},
}


def classes() -> dict[str, str]:
    """Names of transformers' causal language model classes by model type."""
    return {kind: name for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if isinstance(name, str)}


def tiny_config(kind: str, made: Any) -> Any:
    """A small configuration of a class, with each of its kinds of layers."""
    config = (made.config_class or type(transformers.AutoConfig.for_model(kind)))()
    return type(config)(**{**_sizes(config), **_MORE.get(kind, {})})


def _sizes(config: Any) -> dict[str, Any]:
    """Arguments of a small configuration of the same class; those of its parts are nested."""
    named = config.to_dict()
    sizes = {name: value for name, value in _SIZES.items() if name in named or name in config.attribute_map}
    if "kv_lora_rank" in named:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    for name in ("layer_types", "layers_block_type"):
        if isinstance(types := named.get(name), (list, tuple)) and types:
            kinds = [*dict.fromkeys(types)]
            sizes[name] = [kinds[at % len(kinds)] for at in range(LAYERS)]
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            sizes[name] = type(part)(**_sizes(part))
    return sizes


def tiny(kind: str, name: str) -> Any:
    """A model of a class in float32, with random weights.

    Raises:
        ValueError: it cannot be made small.
    """
    made = getattr(transformers, name)
    config = tiny_config(kind, made)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in made(config).parameters())
    if size > LARGEST:
        raise ValueError(f"it has {size:,} parameters with the sizes that this command sets")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = made(config).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    return model


def generated(model: Any, ids: Sequence[int]) -> list[int]:
    """The model's own greedy tokens."""
    asked = torch.tensor([list(ids)])
    found = model.generate(
        asked, attention_mask=torch.ones_like(asked), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
    )
    return found[0, len(ids) :].tolist()


def wild_tree(rng: random.Random, root: int, following: Sequence[int]) -> TokenTree:
    """A random tree that holds the right continuation in part."""
    tokens, parents, depths = [root], [-1], [0]
    for row in range(1, rng.randint(2, 10)):
        parent = rng.randrange(row) if rng.random() < 0.5 else row - 1
        depth = depths[parent]
        right = rng.random() < 0.75 and depth < len(following)
        tokens.append(following[depth] if right else rng.randrange(VOCABULARY))
        parents.append(parent)
        depths.append(depth + 1)
    return TokenTree(tokens, parents)


def differs(model: Any) -> str:
    """How the engine's tokens differ from the model's own; empty if they do not."""
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(PROMPT + 4 * slot)] for slot in range(SLOTS)]
    expected = [generated(model, ids) for ids in prompts]
    engine = Engine(model, slots=SLOTS, capacity=96, max_rows=16)
    try:
        for wild in (False, True):
            slots = [engine.alloc() for _ in prompts]
            outputs = [[*engine.prefill(slot, ids).emitted] for slot, ids in zip(slots, prompts, strict=True)]
            while short := [slot for slot in slots if len(outputs[slot]) < TOKENS]:
                trees = {
                    slot: wild_tree(rng, outputs[slot][-1], expected[slot][len(outputs[slot]) :])
                    if wild
                    else TokenTree.chain([outputs[slot][-1]])
                    for slot in short
                }
                for slot, result in engine.step(trees).items():
                    outputs[slot] += result.emitted
            for slot in slots:
                engine.free(slot)
            if [each[:TOKENS] for each in outputs] != expected:
                return "trees" if wild else "one row at a time"
    finally:
        engine.close()
    return ""


def tried(kind: str, name: str) -> dict[str, str]:
    """The result for one class."""
    about = {"model_type": kind, "class": name}
    try:
        model = tiny(kind, name)
        generated(model, [1, 2, 3])
    except Exception as error:
        return {**about, "result": "not tried", "why": f"a tiny model does not run in transformers: {_short(error)}"}
    try:
        wrong = differs(model)
    except SpecbenchError as error:
        return {**about, "result": "refused", "why": _short(error)}
    except Exception as error:
        return {**about, "result": "broken", "why": _short(error)}
    return {**about, "result": "broken" if wrong else "exact", "why": f"other tokens: {wrong}" if wrong else ""}


def _short(error: Exception) -> str:
    named = "" if isinstance(error, SpecbenchError) else f"{type(error).__name__}: "
    return one_line(f"{named}{(str(error).splitlines() or [''])[0]}", 200)


def all_tried(kinds: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Results of several classes."""
    for kind, name in kinds.items():
        yield tried(kind, name)
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="model types; default is all")
    parser.add_argument("--check", action="store_true", help="compare with the committed results and write nothing")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    known = classes()
    found = []
    for one in all_tried({kind: known[kind] for kind in args.kinds or known}):
        found.append(one)
        print(f"{one['model_type']:24} {one['result']:10} {one['why']}", flush=True)
    broken = [one["model_type"] for one in found if one["result"] == "broken"]
    if broken:
        sys.exit(f"broken: {', '.join(broken)}")
    if args.check:
        exact = {one["model_type"] for one in json.loads(RESULTS.read_text())["families"] if one["result"] == "exact"}
        lost = [one["model_type"] for one in found if one["model_type"] in exact and one["result"] != "exact"]
        if lost:
            sys.exit(f"no longer exact: {', '.join(lost)}")
    else:
        kept = {one["model_type"]: one for one in json.loads(RESULTS.read_text())["families"]} if args.kinds else {}
        merged = kept | {one["model_type"]: one for one in found}
        about = {"transformers": transformers.__version__, "families": [merged[kind] for kind in sorted(merged)]}
        RESULTS.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
