"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems of grade-school arithmetic, answered by one number."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import Prompt, option
from specbench.evals import (
    AskingStyle,
    DataFile,
    Verdict,
    ascii_numbers,
    chained,
    lm_eval_tasks,
    manifest,
    mathematics,
    read_rows,
    resolve_file,
)
from specbench.tasks.gsm8k.numbers import final_number, numeric

NAME = "gsm8k"
STRICT, FLEXIBLE = "strict-match", "flexible-extract"

CHAT = (
    "{{question}}\n\nReason step by step. End with one line of the form '#### N', "
    "where N is the final answer as a plain number."
)
CLLM = "Question:\n{{question}}\nAnswer:\nLet's think step by step.\n"  # the prompt CLLM was trained and measured with
JF = "Problem: {{question}}\nMark your solution with \\boxed\nAnswer:"  # eval_dev branch of JacobiForcing
JETSPEC = f"{{{{question}}}}\n{mathematics.JETSPEC}"

# lm-eval's two filters; the strict one looks for a box, which this prompt asks for
_BOX_FILTERS = [
    {
        "name": STRICT,
        "filter": [
            {"function": "regex", "regex_pattern": r"\\boxed\{\s*\\?\$?(-?[0-9.,]+)\s*\}", "group_select": -1},
            {"function": "take_first"},
        ],
    },
    {
        "name": FLEXIBLE,
        "filter": [
            {"function": "regex", "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)", "group_select": -1},
            {"function": "take_first"},
        ],
    },
]

STYLES = {
    "chat": AskingStyle("gsm8k/gsm8k.yaml", True, 0, 32, changes={"doc_to_text": CHAT}),
    "completion": AskingStyle("gsm8k/gsm8k.yaml", False, 5, 32),
    "cot": AskingStyle("gsm8k/gsm8k-cot.yaml", False, 8, 8),
    "cllm": AskingStyle(
        "gsm8k/gsm8k.yaml", False, changes={"doc_to_text": CLLM, "generation_kwargs": {"until": ["Question"]}}
    ),
    "jf": AskingStyle("gsm8k/gsm8k.yaml", True, changes={"doc_to_text": JF, "filter_list": _BOX_FILTERS}),
    "jetspec": AskingStyle("gsm8k/gsm8k.yaml", True, changes={"doc_to_text": JETSPEC, "filter_list": _BOX_FILTERS}),
}


class Options(lm_eval_tasks.Options):
    """Options of the task."""

    style: Literal["auto", "chat", "completion", "cot", "cllm", "jf", "jetspec"] = option(
        "auto",
        help="chat: zero-shot through the chat template; completion: lm-eval's gsm8k; cot: its gsm8k_cot; cllm, jf, "
        "jetspec: the prompts of those papers; auto: chat when the model has a template, else completion",
    )
    shots: int | None = option(
        None, ge=0, help="few-shot examples, from the training data (cot: its own 8); default: 5, cot 8, chat 0"
    )


class Problem(BaseModel):
    """A row of either file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    question: str
    answer: str = Field(pattern=r"#### -?[0-9][0-9,.]*\s*$")


class Task:
    """The 1,319 test problems. Verdict: lm-eval's flexible-extract."""

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        """``data_dir``: folder that holds gsm8k_test.jsonl and, for few-shot prompts, gsm8k_train.jsonl."""
        self.options = options
        self.versions  # noqa: B018  raises if a package is not installed
        lm_eval_tasks.check(NAME, STYLES, options)
        self._test, self._train = manifest(Path(__file__).with_name("task.toml"))
        self._data_dir = data_dir
        self._problems = {self._test.name: self._read(self._test)}
        self._lock = threading.Lock()
        self._judges: dict[str, lm_eval_tasks.LmTask] = {}

    def prompts(self, chat: bool) -> list[Prompt]:
        """All problems in data order."""
        self.options = lm_eval_tasks.settle(STYLES, self.options, chat)
        assert self.options.shots is not None
        style, shots = self.options.style, self.options.shots
        prompts = self._lm_task(style, shots).prompts(NAME, STYLES[style], shots, "question")
        return chained(prompts, self.options.chain)

    def training_prompts(self, chat: bool) -> list[Prompt]:
        """The 7,473 problems of the training split, in the prompts of the test split.

        They have no few-shot examples, which would come from the same split; style ``cot`` keeps its own examples.
        """
        self.options = lm_eval_tasks.settle(STYLES, self.options, chat)
        style, shots = self.options.style, (self.options.shots or 0) if self.options.style == "cot" else 0
        return self._lm_task(style, shots, self._train).prompts(NAME, STYLES[style], shots, "question")

    def score(self, prompt_id: str, text: str) -> Verdict:
        """Whether the number that lm-eval's flexible filter finds is the reference.

        ``also``: "strict", by lm-eval's strict filter, and "numeric", whether a person would read the right number.
        """
        return self._verdict(self._test, prompt_id, text)

    def score_training(self, prompt_id: str, text: str) -> Verdict:
        """Like :meth:`score`, for a prompt of :meth:`training_prompts`, which must have been called before."""
        return self._verdict(self._train, prompt_id, text)

    def _verdict(self, split: DataFile, prompt_id: str, text: str) -> Verdict:
        with self._lock:
            if split.name not in self._problems:
                self._problems[split.name] = self._read(split)
        problems = self._problems[split.name]
        number = lm_eval_tasks.doc_id(prompt_id, NAME, len(problems))
        style = lm_eval_tasks.settled(NAME, self.options)
        gold = problems[number].answer.split("####")[-1].strip()
        if not text.strip():
            return Verdict(False, "empty", "the model wrote nothing", {"strict": False, "numeric": False})
        with self._lock:
            if split.name not in self._judges:
                self._judges[split.name] = self._lm_task(style, 0, split)
        # lm-eval's filters understand only ASCII: they would read "−18" as 18.
        found = self._judges[split.name].judge(number, ascii_numbers(text))
        right = {name: bool(metrics["exact_match"]) for name, (_, metrics) in found.items()}
        answer = found[FLEXIBLE][0]
        also = {"strict": right[STRICT], "numeric": numeric(text, gold)}
        reason = "pass" if right[FLEXIBLE] else "fail"
        extracted = f"flexible: last number; numeric: {final_number(text)[1]}"
        return Verdict(right[FLEXIBLE], reason, f"found '{answer[:60]}', reference '{gold}'", also, extracted)

    @property
    def versions(self) -> dict[str, str]:
        """Version of lm-eval, whose filters decide."""
        return lm_eval_tasks.versions(NAME, "lm-eval")

    @property
    def isolation(self) -> list[str]:
        """Nothing: no model-written code is run."""
        return []

    def _read(self, split: DataFile) -> list[Problem]:
        return [row for _, row in read_rows(resolve_file(split, self._data_dir), Problem)]

    def _lm_task(self, style: str, shots: int, asked: DataFile | None = None) -> lm_eval_tasks.LmTask:
        splits = {"test": resolve_file(asked or self._test, self._data_dir)}
        changes: dict[str, Any] = {}
        if shots and style != "cot":
            splits["train"] = resolve_file(self._train, self._data_dir)
            read_rows(splits["train"], Problem)
        elif style != "cot":  # then the file is not needed
            changes = {"training_split": None, "fewshot_split": None, "num_fewshot": 0}
        return lm_eval_tasks.LmTask(STYLES[style], splits, changes)
