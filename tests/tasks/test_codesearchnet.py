from __future__ import annotations

from pathlib import Path

from small_data import speed

from specbench.tasks.codesearchnet.task import Options, Task


def test_documentation_is_asked_in_cllms_words(task_data: Path) -> None:
    made = Task(Options(), task_data)
    plain = made.prompts(chat=False)
    assert made.options.style == "cllm"
    assert plain[1].text == (
        "### Instruction:\nPlease generate code based on the following doc:\n"
        "  Sorts geese by size, the largest first.\n### Response:\n"
    )
    assert {(prompt.chat, prompt.stops) for prompt in plain} == {(False, ("\n### Instruction:",))}
    made = Task(Options(), task_data)
    chat = made.prompts(chat=True)
    assert made.options.style == "chat"
    assert {(prompt.chat, prompt.stops) for prompt in chat} == {(True, ())}
    for at, (asked, framed) in enumerate(zip(chat, plain, strict=True)):
        assert asked.id == framed.id == f"codesearchnet/{at}"
        assert framed.text == f"### Instruction:\n{asked.text}\n### Response:\n"
        assert speed.FUNCTIONS[at]["func_documentation_string"].strip() in asked.text
        assert speed.FUNCTIONS[at]["func_code_string"] not in asked.text
