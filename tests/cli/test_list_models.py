"""``list models``: what each alias loads, what of it is here, and a run that takes what the list says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support import runs
from support.models import byte_tokenizer
from support.wording import wording
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.heads.block_config import BlockHeadConfig as JetspecConfig
from specbench.heads.block_head import BlockHead as JetspecHead
from specbench.methods.eagle3.config import HeadConfig as Eagle3Config
from specbench.methods.eagle3.head import DraftHead as Eagle3Head
from specbench.models import configured_shape, loader, names

COMMIT = "0123456789abcdef" * 2 + "01234567"
HEADS = {"jetspec": "someone/toy-jetspec", "eagle3": "someone/toy-eagle3"}


def listed(cli: Any) -> dict[str, dict[str, Any]]:
    """The list as JSON, by name."""
    return {row["model"]: row for row in json.loads(cli.ok("list", "models", "--json").out)}


def blocks(cli: Any, columns: int) -> dict[str, str]:
    """The table as text: model -> its lines with its heads', as one; the legend is under ``""``."""
    table, legend = cli.ok("list", "models", columns=columns).out.split("\n\n")
    found: dict[str, str] = {"": " ".join(legend.split())}
    name = ""
    for line in table.splitlines()[2:]:
        name = line.split()[0] if line[0] != " " else name
        found[name] = f"{found.get(name, '')} {line}"
    return {name: " ".join(text.split()) for name, text in found.items()}


def test_the_json_has_all_of_it(cli: Any) -> None:
    rows = listed(cli)
    shown = rows["cllm-math-7b"]
    assert (shown["method"], shown["options"]) == ("cllm", {"preset": "gsm8k"})
    assert (shown["base"], shown["tokenizer"], shown["template"]) == ("GAIR/Abel-7B-001",) * 2 + ("cllm-math",)
    assert shown["hub id"] == "cllm/consistency-llm-7b-math"
    assert rows["config:tiny"] == {
        "model": "config:tiny", "here": True, "method": None, "hub id": None, "wheel": None, "base": None,
        "bf16 GB": 0.0, "licence": None, "untried": False, "heads": [], "options": {}, "suits": {}, "tokenizer": None,
        "template": None, "what it is": "dummy weights of this shape",
    }  # fmt: skip
    shown = rows["eagle3-llama-3.1-8b"]
    assert (shown["licence"], shown["untried"], shown["here"]) == ("Llama 3.1 Community License", True, False)
    assert shown["heads"] == [
        {
            "method": "eagle3", "head": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "here": False, "untried": True,
            "to be converted": True,
        }
    ]  # fmt: skip
    for name, entry in names.aliases().items():
        assert rows[name]["method"] == entry.get("method")
        assert {head["method"]: head["head"] for head in rows[name]["heads"] if head["head"]} == names.heads(entry)
        assert rows[name]["untried"] == (name.partition("-")[0] != "smollm2"), "the only ones that a run of ours is of"


def test_sizes_are_those_of_the_configurations_that_are_here_and_no_others(cli: Any) -> None:
    rows = listed(cli)
    weights = {name: names.aliases().get(entry.get("base", ""), entry) for name, entry in names.aliases().items()}
    shaped = {
        name for name, entry in names.aliases().items() if "shape" in (entry if "hub" in entry else weights[name])
    }
    assert {name for name, row in rows.items() if row["bf16 GB"] and not name.startswith("config:")} == shaped
    for name in shaped:
        assert rows[name]["bf16 GB"] == rows[f"config:{weights[name]['shape']}"]["bf16 GB"]
    assert rows["qwen3-8b"]["bf16 GB"] == 16.381
    assert rows["smollm2-135m-jf"]["bf16 GB"] == 0.269
    for name in names.configs():
        shape = configured_shape(names.resolve(f"config:{name}"), "bfloat16")
        assert shape is not None
        assert rows[f"config:{name}"]["bf16 GB"] == round(shape.parameters * shape.weight_bytes / 1e9, 3)


def into_cache(cache: Path, hub: str, files: Path) -> None:
    """Moves a folder into a hub cache, as the hub's client lays it out: blobs, and a commit that links to them."""
    repository = cache / f"models--{hub.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    for at, file in enumerate(sorted(files.iterdir())):
        blob = repository / "blobs" / f"{at:064}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (repository / "refs" / "main").write_text(COMMIT)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, an alias ``toy`` with a head for each of two methods, and no network."""
    entry: dict[str, Any] = {
        "title": "a toy", "hub": "someone/toy", "suits": {method: {"head": head} for method, head in HEADS.items()},
    }  # fmt: skip
    entries = {**names.aliases(), "toy": entry}
    monkeypatch.setattr(names, "aliases", lambda: entries)
    monkeypatch.setattr(loader, "hub_in_reach", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def target(folder: Path) -> Any:
    """Writes a target of eight layers into a folder, and returns its configuration."""
    values = json.loads(names.configs()["tiny"].read_text(encoding="utf-8"))
    config = AutoConfig.for_model(**{**values, "num_hidden_layers": 8})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return config


def test_what_the_hubs_cache_has_is_listed_as_here(cli: Any, cache: Path, tmp_path: Path) -> None:
    row = listed(cli)["toy"]
    assert (row["here"], row["bf16 GB"], {head["here"] for head in row["heads"]}) == (False, None, {False})
    target(tmp_path / "toy")
    into_cache(cache, "someone/toy", tmp_path / "toy")
    row = listed(cli)["toy"]
    # 64 x (128 + 2 x 64 + 2 x 32 of attention, 3 x 128 of the block) a layer, embedding and norms, two bytes each
    layer = 64 * (64 + 2 * 32 + 64 + 3 * 128) + 2 * 64
    assert (row["here"], row["bf16 GB"]) == (True, round(2 * (8 * layer + 320 * 64 + 64) / 1e9, 3))
    assert {head["here"] for head in row["heads"]} == {False}
    assert wording(blocks(cli, 80)["toy"])


@pytest.mark.parametrize("method", ["jetspec", "eagle3"])
def test_a_run_takes_the_head_that_is_listed_from_the_hubs_cache(
    cli: Any, cache: Path, tmp_path: Path, method: str
) -> None:
    config = target(tmp_path / "toy")
    head: Any = (
        JetspecHead.random(JetspecConfig.for_target(config, mask_token_id=319))
        if method == "jetspec"
        else Eagle3Head.random(Eagle3Config.for_target(config))
    )
    head.save(tmp_path / "head")
    into_cache(cache, "someone/toy", tmp_path / "toy")
    into_cache(cache, HEADS[method], tmp_path / "head")
    assert [head["here"] for head in listed(cli)["toy"]["heads"]] == [one == method for one in HEADS]
    given = ("--model", "toy", "--method", f"ar,{method}", "--limit", 1, "--max-new-tokens", 6, "--no-score")
    result = cli.ok("run", *given, "--verbose", "--out", tmp_path / "out")
    assert result.err.splitlines()[0] == f"toy sets --set {method}.head={HEADS[method]}"
    (folder,) = (tmp_path / "out").iterdir()
    weights = runs.config_on_disk(folder)["methods"][1]["weights"]
    assert (weights["head"], weights["head_revision"]) == (HEADS[method], COMMIT)
    other = next(one for one in HEADS if one != method)
    refused = cli.refused(3, "run", *given[:3], f"ar,{other}", *given[4:], "--out", tmp_path / "other")
    assert f"{HEADS[other]}" in refused
