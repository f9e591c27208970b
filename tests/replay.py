"""lm-eval's own run on answers that are there already: what our verdicts and prompts are held against."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skips the tests of a module without a package of the extra ``eval``, and does not import it to find that out."""
    return pytest.mark.skipif(find_spec(package) is None, reason="needs pip install 'specbench-llm[eval]'")


def _replay(answer: Callable[[int], str]) -> Any:
    """A model whose answers are written beforehand, by document; keeps the requests it gets."""
    from lm_eval.api.model import LM

    class Replay(LM):
        requests: Mapping[int, tuple[str, dict[str, Any]]]

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            self.requests = {request.doc_id: request.args for request in requests}
            return [answer(request.doc_id) for request in requests]

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

    return Replay()


def lm_eval_run(
    config: str, data: dict[str, Path], folder: Path, answer: Callable[[int], str], limit: int | None, **options: Any
) -> tuple[Any, dict[str, dict[int, dict[str, Any]]]]:
    """``simple_evaluate`` on one of lm-eval's tasks, with its data from files.

    Args:
        config: YAML file below its folder of tasks.
        data: split -> file.
        folder: for what it writes.
        answer: document -> text.
        limit: documents; None is all.
        options: of ``simple_evaluate``.

    Returns:
        The model with its requests, and filter -> document -> sample.
    """
    import datasets
    import lm_eval
    import lm_eval.tasks

    datasets.disable_progress_bars()
    files = {split: str(path) for split, path in data.items()}
    (folder / "replayed.yaml").write_text(
        f"include: {Path(lm_eval.tasks.__file__).parent / config}\ntask: replayed\ndataset_path: json\n"
        f"dataset_name: null\ndataset_kwargs: {{data_files: {files}, cache_dir: {folder / 'cache'}}}\n"
    )
    model = _replay(answer)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        manager = lm_eval.tasks.TaskManager(include_path=[str(folder)], include_defaults=False)
        options |= {"bootstrap_iters": 0, "log_samples": True, "limit": limit}
        found = lm_eval.simple_evaluate(model=model, tasks=["replayed"], task_manager=manager, **options)
    samples: dict[str, dict[int, dict[str, Any]]] = {}
    for sample in found["samples"]["replayed"]:
        samples.setdefault(sample["filter"], {})[sample["doc_id"]] = sample
    return model, samples
