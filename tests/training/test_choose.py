"""Options of a recipe: a publication's by name, a file's, and what is set beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import UsageError
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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- lr", "does not map options to values"),
        ("lr: [", "not YAML: line 1"),
        ("lern: 1", "unknown option of the recipe of jf 'lern'; did you mean"),
        ("lr: fast", "option 'lr' of the recipe of jf"),
        (None, r"cannot be read \(No such file or directory\); give a .yaml file"),
    ],
)
def test_a_file_that_is_no_recipe(content: str | None, says: str, tmp_path: Path) -> None:
    card = registry.method("jf")
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content)
    for name in (str(file), "jf-papr"):
        with pytest.raises(UsageError, check=wording) as raised:
            choose(card, card.recipe().Options, name, [])
        assert "\n" not in str(raised.value)
