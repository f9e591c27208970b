"""``specbench quality``: figures of lm-eval's tasks, their files, two models compared, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import oracles
from support.models import byte_tokenizer, save
from support.wording import wording

from specbench.analysis.model_quality import compare_quality, read_quality

ASK = f"{oracles.CHOICE},{oracles.ROLLING}"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with oracles.caches_in(tmp_path_factory.mktemp("copies")):
        yield oracles.write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model, and one whose head says other words."""
    base = save(tmp_path_factory.mktemp("models") / "base")
    from specbench.models import load

    other = load(str(base))
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(-1.0)
    folder = base.parent / "other"
    other.model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return [base, folder]


@pytest.fixture(scope="module")
def asked(cli: Any, tasks: Path, models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("quality")
    return cli.ok("quality", *models, "--tasks", ASK, "--include", tasks, "--out", out), out


def test_each_model_has_a_file_and_the_second_is_held_against_the_first(asked: tuple[Any, Path]) -> None:
    result, out = asked
    files = sorted(out.iterdir())
    assert [file.name.split("-")[0] for file in files] == ["base", "other"]
    base, other = map(read_quality, files)
    assert [task.task for task in base.tasks] == [oracles.CHOICE, oracles.ROLLING]
    choice = base.tasks[0]
    assert (choice.version, choice.documents, choice.of, choice.data, choice.revision) == (
        "3.0", 8, 8, "json", "unverified",
    )  # fmt: skip
    assert base.model.fingerprint != other.model.fingerprint
    assert choice.documents_hash == other.tasks[0].documents_hash
    assert {metric.metric for metric in choice.metrics} == {"acc", "acc_norm"}
    assert all(len(metric.items or ()) == 8 for metric in choice.metrics)
    for words in ("B against A", "made_choice v3.0", "made_choice, made_rolling."):
        assert words in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert "Tokenizing" not in result.err
    assert f"written: {files[1]}" in result.err.replace("\n", "")


def test_files_are_compared_again_without_asking(cli: Any, asked: tuple[Any, Path]) -> None:
    result, out = asked
    again = cli.ok("quality", *sorted(out.iterdir()))
    assert again.out == result.out
    assert "loading" not in again.err
    reported = json.loads(cli.ok("quality", *sorted(out.iterdir()), "--json").out)
    assert [each["model"]["name"] for each in reported["models"]] == ["base", "other"]
    assert {row["metric"] for row in reported["differences"][0]["rows"]} >= {"acc", "acc_norm"}


def test_a_file_is_of_what_was_asked(cli: Any, tasks: Path, models: list[Path], tmp_path: Path) -> None:
    how = ("--tasks", oracles.CHOICE, "--include", tasks, "--out", tmp_path)
    for more in ((), ("--limit", 3), ("--shots", 1), ("--limit", 3), ("--max-length", 40)):
        cli.ok("quality", models[0], *how, *more)
    found = sorted((read_quality(file) for file in tmp_path.iterdir()), key=lambda each: each.tasks[0].shots)
    assert [(each.limit, each.tasks[0].documents, each.tasks[0].shots) for each in found if each.limit] == [(3, 3, 0)]
    assert [each.max_length for each in found if each.max_length] == [40]
    assert len(found) == 4, "the same question again is the same file"


def test_groups_patterns_and_templates(cli: Any, tasks: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{m.content}}>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    chatty = save(tmp_path / "chatty", byte_tokenizer(template=template))
    group = {
        "group": "made_group",
        "task": [oracles.CHOICE],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
    }
    (tasks / "group.yaml").write_text(yaml.safe_dump(group))
    how = ("quality", chatty, "--include", tasks, "--out", tmp_path / "q", "--limit", 4)
    result = cli.ok(*how, "--tasks", "made_group")
    assert "made_group (group)" in result.out
    cli.ok(*how, "--tasks", "made_ch*", "--chat", "--shots", 1)
    plain, chat = sorted((read_quality(file) for file in (tmp_path / "q").iterdir()), key=lambda each: each.chat)
    assert [(each.group, each.metrics[0].value) for each in plain.groups] == [
        ("made_group", plain.tasks[0].metrics[0].value)
    ]
    assert plain.tasks[0].documents_hash == chat.tasks[0].documents_hash
    assert plain.tasks[0].task_hash != chat.tasks[0].task_hash, "the prompts are others"
    _, (note,) = compare_quality(plain, chat)
    assert wording(note)


CARD = {
    "method": "jf", "model": "base", "texts": 3, "answer_tokens": 40, "steps": 2, "options": {"lr": 0.1},
    "before": None, "after": None, "prompts": ["mine"],
}  # fmt: skip


def test_the_figures_go_onto_the_card_of_what_was_trained(
    cli: Any, tasks: Path, models: list[Path], tmp_path: Path
) -> None:
    trained = tmp_path / "checkpoint"
    trained.mkdir()
    for file in models[1].iterdir():
        (trained / file.name).write_bytes(file.read_bytes())
    (trained / "card.json").write_text(json.dumps(CARD))
    how = ("--tasks", oracles.CHOICE, "--include", tasks, "--out", tmp_path / "q")
    cli.ok("quality", models[0], trained, *how, "--card")
    card = json.loads((trained / "card.json").read_text())
    assert {name: card[name] for name in CARD} == CARD
    row = card["quality"]["rows"][0]
    assert (row["task"], row["metric"], row["documents"], row["revision"]) == (oracles.CHOICE, "acc", 8, "unverified")
    assert row["difference"] == pytest.approx(row["value"] - row["before"])
    page = (trained / "README.md").read_text()
    assert "| base |" in page
    assert "json, revision unverified |" in page
    assert "`specbench train jf`" in page
    cli.ok("quality", trained, *how, "--card")  # alone: without a baseline
    assert wording((trained / "README.md").read_text())


def test_tasks_that_run_programs_are_left_to_the_sandbox(cli: Any, tmp_path: Path) -> None:
    with oracles.caches_in(tmp_path / "copies"):
        made = oracles.write_tasks(tmp_path / "t", [oracles.ANSWER], {"unsafe_code": True})
        error = cli.refused(2, "quality", "config:tiny", "--tasks", oracles.ANSWER, "--include", made)
    assert wording(error)
