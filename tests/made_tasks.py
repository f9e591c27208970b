"""Tasks of lm-eval on made data: a multiple choice, texts for a perplexity, and questions to be answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

CHOICE, ROLLING, ANSWER = "made_choice", "made_rolling", "made_answer"

_QUESTIONS = [f"What is {n} plus {n + 3}?" for n in range(8)]
_DOCS: dict[str, list[dict[str, Any]]] = {
    CHOICE: [
        {"question": text, "choices": [f"{2 * n}", f"{2 * n + 3}", "a great many of them"], "gold": 1}
        for n, text in enumerate(_QUESTIONS)
    ],
    # The last ones are longer than the windows and the forwards of the tests.
    ROLLING: [{"text": " ".join(f"{n} geese, {k} ducks;" for k in range(n + 1))} for n in range(7)],
    ANSWER: [{"question": text, "answer": f"{2 * n + 3}"} for n, text in enumerate(_QUESTIONS)],
}
_FILES: dict[str, dict[str, Any]] = {
    CHOICE: {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\nAnswer:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "fewshot_split": "test",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "metadata": {"version": 3.0},
    },
    ROLLING: {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        "metadata": {"version": 1.0},
    },
    ANSWER: {
        "output_type": "generate_until",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "metadata": {"version": 1.0},
    },
}


def write(folder: Path, names: Sequence[str] = tuple(_FILES), changes: Mapping[str, Any] | None = None) -> Path:
    """Task files and their data in a folder.

    Args:
        folder: is made.
        names: of the tasks.
        changes: fields that each gets in place of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in _DOCS[name]))
        fields = {
            "task": name, "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(data)}}, **_FILES[name], **(changes or {}),
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    return folder


@contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """The copies that datasets makes of such files go into a folder, and not into the user's."""
    import datasets

    with mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder):
        yield
