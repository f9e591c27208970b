"""The catalogue of aliases: every entry can be carried out, and every chat template writes the prompt it is for."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.options import option_names as option_names
from specbench.common.prompt import Prompt
from specbench.models import loader, names
from specbench.models.loader import load
from specbench.planning.methods import default_settings, make_methods
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.planning.tasks import plan_tasks

WEIGHTS = {"hub", "wheel", "adapter", "base", "tokenizer", "template"}
FIELDS = {"title", "licence", "shape", "method", "options", "suits", "asks", "pickled", "tried", "pretraining_tokens",
          *WEIGHTS}  # fmt: skip
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ALIASES = names.aliases()

# ------------------------------------------------------------------------------------------------------- the catalogue


def test_an_entry_is_well_formed() -> None:
    for alias, entry in ALIASES.items():
        assert set(entry) <= FIELDS, alias
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", alias)  # no slash, or it would hide a hub id
        assert entry["title"]
        assert ("adapter" in entry) != ("hub" in entry), alias
        for field in ("hub", "tokenizer") if "adapter" in entry else ("hub", "base", "tokenizer"):
            assert HUB_ID.fullmatch(entry.get(field, "owner/name")), (alias, field)
        assert entry.get("base") != entry.get("hub", alias), alias
        assert entry.get("template") in {None, *names.templates()}, alias
        assert "method" in entry or "options" not in entry, alias
        assert set(entry.get("pickled", ())) <= set(names.heads(entry)), alias
        # No hub is within our reach: what comes from there alone has never been loaded.
        assert entry.get("tried", False) == ("wheel" in entry or "adapter" in entry), alias


def test_what_an_entry_asks_is_what_the_tasks_take() -> None:
    asks = [(task, options) for entry in ALIASES.values() for task, options in entry.get("asks", {}).items()]
    assert asks
    for task, options in asks:
        (planned,) = plan_tasks([task], [f"{task}.{option}={value}" for option, value in options.items()])
        assert options.items() <= planned.options.model_dump().items()


def test_an_entry_can_be_planned() -> None:
    for entry in ALIASES.values():
        if "method" in entry:
            method, options = entry["method"], entry.get("options", {})
            known = option_names(registry.method(method).load().Options)
            assert all(known.get(option) == option for option in options if option != "preset")  # long names
            labels = {"ar": "ar", method: method}
            settings = default_settings(labels, {label: {} for label in labels}, method, options)
            assert bool(settings[method]) == bool(options)
            ar, planned = make_methods(labels, settings)
            assert (ar.name, planned.name) == ("ar", method)
            for option in options:
                assert option == "preset" or getattr(planned.options, option) == options[option]


HEADS = {alias: (entry["hub"], names.heads(entry)) for alias, entry in ALIASES.items() if names.heads(entry)}


def planned(model: str, method: str | None, *settings: str, head: str | None = None) -> tuple[dict[str, Any], str]:
    """Row -> its option ``head``, of the rows that have one, and the line that says what the alias sets."""
    made = resolve(Plan(method=method, task="humaneval", model=model, settings=settings, head=head))
    return {spec.label: spec.options["head"] for spec in made.specs() if "head" in spec.options}, " ".join(made.notes)


def test_the_head_of_a_target_is_set_and_reported() -> None:
    assert HEADS["qwen3-8b"][1].keys() == {"jetspec", "eagle3", "dspark"}
    for alias, (_, heads) in HEADS.items():
        for method, head in heads.items():
            found, note = planned(alias, f"ar,{method}")
            assert found == {method: head}
            assert f"--set {method}.head={head}" in note
    assert planned("qwen3-8b", "eagle3,jetspec,eagle3")[0] == {
        "eagle3": "RedHatAI/Qwen3-8B-speculator.eagle3",
        "jetspec": "JetSpec/jetspec-qwen3-8b",
        "eagle3#2": "RedHatAI/Qwen3-8B-speculator.eagle3",
    }
    assert planned("qwen3-8b", None) == ({}, "qwen3-8b sets chat template qwen3-direct"), "no method asks for one"


def test_a_preset_keeps_the_head_and_sets_the_rest() -> None:
    for method, head in HEADS["qwen3-8b"][1].items():
        plan = Plan(method=method, task="humaneval", model="qwen3-8b", settings=(f"{method}.preset=published",))
        (options,) = (spec.options for spec in resolve(plan).specs() if spec.name == method)
        assert (options["head"], options["width"]) == (head, {"jetspec": 7, "eagle3": 10, "dspark": 7}[method])


def test_a_head_of_the_users_own_wins_by_flag_and_by_setting() -> None:
    for alias, (_, heads) in HEADS.items():
        for method in heads:
            for found, note in (planned(alias, method, head="a/b"), planned(alias, method, f"{method}.head=a/b")):
                assert (found, "head=" in note) == ({method: "a/b"}, False)
    found, note = planned("qwen3-8b", "jetspec,eagle3,jetspec", "jetspec#2.head=random", "eagle3.tree=chain")
    assert list(found.values()) == ["JetSpec/jetspec-qwen3-8b", "RedHatAI/Qwen3-8B-speculator.eagle3", "random"]


@pytest.mark.parametrize(("model", "method"), [("qwen3-14b", "jetspec"), ("qwen3-30b-a3b", "eagle3")])
def test_a_method_without_a_published_head_still_asks_for_one(model: str, method: str) -> None:
    with pytest.raises(UsageError, check=wording):
        planned(model, method)


def test_an_alias_is_planned_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise AssertionError("asks the network")

    monkeypatch.setattr(socket.socket, "connect", none)
    monkeypatch.setattr(socket, "getaddrinfo", none)
    for alias, entry in ALIASES.items():
        made = resolve(Plan(method=None, task="humaneval", model=alias))
        assert made.methods[-1].name == entry.get("method", "jacobi")
        for method in names.heads(entry):
            assert planned(alias, f"ar,{method}")[0]


# ----------------------------------------------------------------------------------------------------------- templates

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
TALK = [
    {"role": role, "content": content} for role, content in (("user", "1+1?"), ("assistant", "2."), ("user", "Sure?"))
]
RULE = {"role": "system", "content": "Be brief."}
DIRECT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
THINK = "Answer:\nLet's think step by step.\n"


def render(template: str, turns: list[dict[str, str]], prompt: bool = True) -> str:
    text = names.templates()[template].read_text(encoding="utf-8")
    made: Any = byte_tokenizer(template=text).apply_chat_template(turns, add_generation_prompt=prompt, tokenize=False)
    return str(made)


BRIEF = "<s>### Instruction:\nBe brief.\n1+1?\n### Response:\n"


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        ("vicuna", TALK[:1], f"<s>{SYSTEM} USER: 1+1? ASSISTANT:"),
        ("vicuna", TALK, f"<s>{SYSTEM} USER: 1+1? ASSISTANT: 2.</s>USER: Sure? ASSISTANT:"),
        ("vicuna", [RULE, *TALK[:1]], "<s>Be brief. USER: 1+1? ASSISTANT:"),
        ("cllm-math", TALK[:1], f"<s>Question:\n1+1?\n{THINK}"),
        ("cllm-math", TALK, f"<s>Question:\n1+1?\n{THINK}2.</s>Question:\nSure?\n{THINK}"),
        ("cllm-instruct", TALK[:1], "<s>### Instruction:\n1+1?\n### Response:\n"),
        ("cllm-instruct", [RULE, *TALK[:1]], BRIEF),
        ("cllm-instruct", [RULE, *TALK], f"{BRIEF}2.\n<|EOT|>\n### Instruction:\nSure?\n### Response:\n"),
        ("cllm-instruct", [{**TALK[0], "content": "\n f\n\n"}], "<s>### Instruction:\nf\n### Response:\n"),
        ("qwen3-direct", TALK[:1], f"<|im_start|>user\n1+1?<|im_end|>\n{DIRECT}"),
        (
            "qwen3-direct",
            [RULE, *TALK],
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
            f"<|im_start|>assistant\n2.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n{DIRECT}",
        ),
    ],
)
def test_a_template_writes_the_published_prompt(template: str, turns: list[dict[str, str]], expected: str) -> None:
    assert render(template, turns) == expected


# Not Qwen3's: it takes the thoughts out of the answers before the last one, empty ones too.
@pytest.mark.parametrize("template", sorted(names.templates().keys() - {"qwen3-direct"}))
def test_a_conversation_is_its_beginning_continued(template: str) -> None:
    # What a cache of the first turn relies on, and what a model reads as its own words.
    first = render(template, TALK[:1])
    assert render(template, TALK).startswith(first + (" 2." if template == "vicuna" else "2."))
    assert render(template, TALK[:2], prompt=False).startswith(first)
    assert render(template, TALK[:1], prompt=False) == first[: len(render(template, TALK[:1], prompt=False))] != first
    for turn in TALK:
        assert render(template, TALK).count(turn["content"]) == 1
    if template == "cllm-math":
        with pytest.raises(TemplateError, check=wording):
            render(template, [RULE, *TALK])


# ---------------------------------------------------------------------------------------------------------- the loader


@pytest.fixture
def alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The entry of an alias ``toy``: its hub id is a local folder."""
    entry: dict[str, Any] = {"title": "", "hub": str(save(tmp_path / "toy", byte_tokenizer(template="its own")))}
    monkeypatch.setattr(names, "aliases", lambda: {"toy": entry})
    monkeypatch.setattr(loader, "hub_in_reach", lambda: False)
    return entry


def test_the_template_of_an_alias_takes_the_place_of_the_models_own(alias: dict[str, Any]) -> None:
    loaded = load("toy")
    assert (loaded.tokenizer.chat_template, loaded.spec.template) == ("its own", None)
    alias["template"] = "vicuna"
    loaded = load("toy")
    assert loaded.spec.template == "vicuna"
    assert loaded.has_chat_template
    ids = loaded.encode(Prompt("p", "1+1?", chat=True, prefill=" It is"))
    assert loaded.tokenizer.decode(ids) == f"<s>{SYSTEM} USER: 1+1? ASSISTANT: It is"
    assert (ids[0], ids.count(1)) == (1, 1)  # one begin-of-text token, not its letters


def test_the_tokenizer_of_an_alias_is_another_repositorys(alias: dict[str, Any], tmp_path: Path) -> None:
    byte_tokenizer(bos="<begin>", eos="<end>").save_pretrained(tmp_path / "target")
    assert load("toy").tokenizer.eos_token == "</s>"
    alias["tokenizer"] = str(tmp_path / "target")
    loaded = load("toy")
    assert loaded.tokenizer.eos_token == "<end>"
    assert loaded.spec.source == alias["hub"]
    alias["tokenizer"] = "no-such-owner/no-such-tokenizer"
    with pytest.raises(EnvironmentRefused, check=wording):
        load("toy")


def test_a_revision_is_the_models_not_that_of_the_tokenizers_repository(
    alias: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Tokenizers:
        @staticmethod
        def from_pretrained(location: str, **where: Any) -> Any:
            asked.append((location, where.get("revision")))
            return byte_tokenizer()

    monkeypatch.setattr(loader, "AutoTokenizer", Tokenizers)
    load("toy", revision="v2")
    alias["tokenizer"] = "someone/target"
    load("toy", revision="v2")
    assert asked == [(alias["hub"], "v2"), ("someone/target", None)]
