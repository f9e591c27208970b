"""The prompt styles. A published figure can only be compared with a run in the same style."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specbench.common import Prompt
from specbench.evals import Extracted, continued_code, fenced_code, plus_checks, whole_answer

INSTRUCTION = (
    "Complete the following Python function. "
    "Reply with one markdown code block that holds a self-contained solution: its imports and the whole function."
)
PREFILL = "```python\n"
CHAT_STOPS = ("\n```",)
COMPLETION_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif", "\nprint")  # Chen et al. 2021, §3.1
_EVALPLUS_STOPS = (
    "\ndef ",
    "\nclass ",
    "\nimport ",
    "\nfrom ",
    "\nassert ",
)  # EvalPlus's utility.py, in addition to the general stops

# from Jacobi Forcing's HumanEval scripts, which took it from DeepSeek-Coder's evaluation
_JF_INSTRUCTION = (
    "Please continue to complete the function. You are not allowed to modify the given code and do the completion "
    "only. Please return all completed function in a codeblock. Here is the given code to do completion:"
)


@dataclass(frozen=True)
class Style:
    """A prompt style, and how the code is found in the answer.

    Attributes:
        chat: uses the model's chat template.
        ask: (id, statement) -> prompt.
        code: finds the code in the answer's text.
        evalplus: use EvalPlus's statements (HumanEval/115 differs) and its sanitiser.
    """

    chat: bool
    ask: Callable[[str, str], Prompt]
    code: Callable[[str], Extracted]
    evalplus: bool = False


def _chat(id: str, statement: str) -> Prompt:
    return Prompt(id, f"{INSTRUCTION}\n\n```python\n{statement.strip()}\n```\n", True, PREFILL, CHAT_STOPS)


def _completion(id: str, statement: str) -> Prompt:
    # As published, including the final newline, because all published figures were measured with it. With tokenizers
    # whose newline token includes the following indentation (GPT-2's, SmolLM2's), the prompt ends inside a token; with
    # those of Llama 3 and Qwen it does not. Stripping the newline would only turn this disadvantage around.
    return Prompt(id, statement, False, "", COMPLETION_STOPS)


def _evalplus_completion(id: str, statement: str) -> Prompt:
    return plus_checks.completion(id, statement, _EVALPLUS_STOPS)


def _jf(fence: str) -> Callable[[str, str], Prompt]:
    return lambda id, statement: Prompt(id, f"{_JF_INSTRUCTION}\n{fence}\n{statement.strip()}\n```", True)


def _jetspec(id: str, statement: str) -> Prompt:
    asked = "Write a solution to the following problem and make sure that it passes the tests:"
    return Prompt(id, f"{asked}\n```python\n{statement}\n```", True)


def _fenced_or_whole(text: str) -> Extracted:
    return fenced_code(text) or whole_answer(text)


STYLES = {
    "chat": Style(True, _chat, continued_code),
    "completion": Style(False, _completion, whole_answer),
    "evalplus": Style(True, plus_checks.chat, continued_code, evalplus=True),
    "evalplus-completion": Style(False, _evalplus_completion, whole_answer, evalplus=True),
    "jf": Style(True, _jf("```"), _fenced_or_whole),
    "jetspec": Style(True, _jetspec, _fenced_or_whole),
    "jf-python": Style(True, _jf("```python"), _fenced_or_whole),
}
