"""Options of a recipe: a publication's by name, a file's, and those that ``--set`` changes."""

from __future__ import annotations

from pathlib import Path

from specbench.common import registry
from specbench.training.choose import choose, published

RECIPES = [(method, name) for method in ("jf", "cllm", "msn") for name in published(registry.method(method))]


def test_a_publications_options_are_options() -> None:
    for method, name in RECIPES:
        card = registry.method(method)
        assert choose(card, card.recipe().Options, name, []).full
        assert name.startswith(method)
    assert {f"{method}-paper" for method in ("jf", "cllm", "msn")} <= {name for _, name in RECIPES}


def test_what_is_set_wins_by_whatever_name(tmp_path: Path) -> None:
    card = registry.method("jf")
    options = card.recipe().Options
    found = choose(card, options, "jf-paper", ["lr=0.5", "w=3", "activation-checkpointing=false"])
    assert (found.lr, found.noise_window, found.activation_checkpointing, found.full) == (0.5, 3, False, True)
    mine = tmp_path / "mine.yaml"
    mine.write_text("w: 7\nlora_rank: 2\n")
    found = choose(card, options, str(mine), ["r=5"])
    assert (found.noise_window, found.lora_rank) == (7, 5)
