"""Use lm-eval's task objects without its runner: its prompts and few-shot examples, its filters and metrics.

lm-eval's ``simple_evaluate`` generates the answers itself, task by task. Our runner interleaves methods prompt by
prompt, so only the parts before and after the generation are used. A document's id is its index in the split.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from specbench.common import EnvironmentRefused, Prompt, UsageError, parse_count
from specbench.evals import sessions
from specbench.evals.data import read_jsonl

FEWSHOT_SEED = 1234
"""The seed of lm-eval's own runs, so that a document gets the same few-shot examples here."""


@dataclass(frozen=True)
class AskingStyle:
    """A prompt style of a task.

    Attributes:
        config: lm-eval's YAML file below its folder of tasks ("gsm8k/gsm8k.yaml").
        chat: use the model's chat template; otherwise one text, as lm-eval does for a base model.
        most: the largest number of examples.
        changes: replacements for fields of the YAML file.
    """

    config: str
    chat: bool
    shots: int = 0
    most: int = 0
    system: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


class Options(sessions.Options):
    """The option fields that this module needs."""

    style: str
    shots: int | None


#: A split of a data set: a JSON lines file, or rows.
Split = Path | Sequence[Mapping[str, Any]]


class LmTask:
    """One of lm-eval's tasks on our data. Its verdicts may be computed in several threads at once."""

    def __init__(
        self, style: AskingStyle, splits: Mapping[str, Split], changes: Mapping[str, Any] | None = None
    ) -> None:
        """
        Args:
            splits: split name -> JSON lines file or rows, in the form that the YAML file expects.
        """
        self._task = _load(style.config, splits, {**style.changes, **(changes or {})})
        self.docs: list[dict[str, Any]] = list(self._task.eval_docs)
        from lm_eval.filters import build_filter_ensemble

        filters = self._task.config.filter_list or [{"name": "none", "filter": [{"function": "take_first"}]}]
        self._filters = [build_filter_ensemble(f["name"], [_component(part) for part in f["filter"]]) for f in filters]

    def prompts(self, name: str, style: AskingStyle, shots: int, key: str) -> list[Prompt]:
        """The prompts of all documents, in their order, with ids "NAME/17".

        Args:
            key: the field that identifies a document ("question").
        """
        if shots:
            disjoint(self._task.fewshot_docs(), self.docs, key)
        self._task.set_fewshot_seed(FEWSHOT_SEED)
        stops = tuple(self._task.config.generation_kwargs["until"])
        prompts = []
        with _compiled_once():
            for number, doc in enumerate(self.docs):
                built = self._task.fewshot_context(
                    doc,
                    num_fewshot=shots,
                    system_instruction=style.system or None,
                    apply_chat_template=style.chat,
                    fewshot_as_multiturn=True,
                    # In place of a model's chat template: ours is applied later, so turns pass unchanged.
                    chat_template=(lambda turns, add_generation_prompt: turns) if style.chat else None,
                )
                if (
                    style.chat
                ):  # without stop strings: a chat model ends its turn by itself, and may write "Problem:" before that
                    *history, (_, text) = [(turn["role"], turn["content"]) for turn in built]
                    prompts.append(Prompt(f"{name}/{number}", text, True, history=tuple(history)))
                else:
                    prompts.append(Prompt(f"{name}/{number}", built, False, stops=stops))
        return prompts

    def judge(self, doc_id: int, text: str) -> dict[str, tuple[str, Mapping[str, float]]]:
        """Filter name -> (filtered answer, metric -> value), as lm-eval's evaluator computes them."""
        from lm_eval.api.instance import Instance

        doc = self.docs[doc_id]
        instance = Instance("generate_until", doc, ("", {}), 0)
        instance.resps = [text]
        verdicts = {}
        for ensemble in self._filters:
            ensemble.apply([instance])
            answer = instance.filtered_resps[ensemble.name]
            verdicts[ensemble.name] = (str(answer), self._task.process_results(doc, [answer]))
        return verdicts


OptionsT = TypeVar("OptionsT", bound=Options)


def check(name: str, styles: Mapping[str, AskingStyle], options: Options) -> None:
    """Check the options before any data are read."""
    style = styles["chat" if options.style == "auto" else options.style]
    if (options.shots or 0) <= style.most:
        return
    if not style.most:
        raise UsageError(f"style={options.style} of {name} is a prompt as published, without examples; leave shots out")
    raise UsageError(f"style={options.style} of {name} takes at most {style.most} shots, not {options.shots}")


def settle(styles: Mapping[str, AskingStyle], options: OptionsT, chat: bool) -> OptionsT:
    """The options with ``auto`` values resolved."""
    name = options.style
    if name == "auto":
        name = "chat" if chat else "completion"
    if styles[name].chat and not chat:
        raise UsageError(f"style={name} needs a model with a chat template; this one has none, so use style=completion")
    shots = styles[name].shots if options.shots is None else options.shots
    return options.model_copy(update={"style": name, "shots": shots})


def settled(name: str, options: Options) -> str:
    """The style to grade by."""
    if options.style == "auto":
        raise UsageError(f"{name} answers are scored by the style they were asked in; set style=chat or completion")
    return options.style


def doc_id(prompt_id: str, task: str, count: int) -> int:
    """The index of the document with prompt id "TASK/17"."""
    name, _, number = prompt_id.partition("/")
    document = parse_count(number)
    if name != task or document is None or document >= count:
        raise UsageError(f"{task} has no problem '{prompt_id}'; the run was made with other data")
    return document


def disjoint(examples: Iterable[Mapping[str, Any]], docs: Iterable[Mapping[str, Any]], key: str) -> None:
    """Check that no few-shot example is also a question, ignoring spaces and capitals."""
    asked = {_plain(doc[key]) for doc in docs}
    for example in examples:
        if _plain(example[key]) in asked:
            raise UsageError(
                f"a few-shot example is also a question of the test: '{example[key][:60]}…'; use the published files"
            )


def versions(task: str, *packages: str) -> dict[str, str]:
    """Installed versions of the packages that decide a verdict."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise refusal(task, package) from None
    return found


def refusal(task: str, package: str) -> EnvironmentRefused:
    """The error for a task with missing libraries."""
    return EnvironmentRefused(f"{task} needs {package}, which is not installed: pip install 'specbench-llm[eval]'")


def read_splits(splits: Mapping[str, str], **_: Any) -> Any:
    """The ``custom_dataset`` of the generated YAML file.

    ``dataset_path: json`` would work too, but copies the data into the user's cache.
    """
    import datasets

    return datasets.DatasetDict({split: datasets.Dataset.from_list(read_jsonl(Path(p))) for split, p in splits.items()})


def _load(config: str, splits: Mapping[str, Split], changes: Mapping[str, Any]) -> Any:
    name = Path(config).parent.name
    try:
        import datasets
        import lm_eval.tasks
        from lm_eval.tasks import TaskManager

        datasets.disable_progress_bars()
        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # lm-eval prints advice for users of its own runner
        with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
            files = {
                split: str(_file(rows, Path(folder, f"{split}.jsonl")).resolve()) for split, rows in splits.items()
            }
            fields = {
                "include": str(Path(lm_eval.tasks.__file__).parent / config),
                "task": f"specbench_{name}",
                "dataset_kwargs": {"splits": files},
                **changes,
            }
            lines = [f"{field}: {json.dumps(value)}" for field, value in fields.items()]  # JSON is YAML
            Path(folder, "task.yaml").write_text(
                "\n".join([*lines, "custom_dataset: !function specbench.evals.lm_eval_tasks.read_splits"]) + "\n",
                encoding="utf-8",
            )
            # Without lm-eval's own index: searching its fourteen thousand tasks takes seconds.
            manager = TaskManager(include_path=[folder], include_defaults=False)
            return manager.load(fields["task"])["tasks"][fields["task"]]
    except ModuleNotFoundError as error:
        raise refusal(name, str(error.name)) from error
    except AssertionError as error:  # raised by its MATH tasks for another version of antlr4
        raise refusal(name, "antlr4-python3-runtime 4.11") from error


def _file(rows: Split, path: Path) -> Path:
    """The file of a split; rows are written to one first."""
    if isinstance(rows, Path):
        return rows
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """Cache templates: lm-eval compiles one for each field of each document, which takes most of its time."""
    from lm_eval.utils import env

    env.from_string = functools.cache(env.from_string)
    try:
        yield
    finally:
        del env.from_string  # the class's own method is visible again


def _component(part: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return part["function"], {name: value for name, value in part.items() if name != "function"}


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
