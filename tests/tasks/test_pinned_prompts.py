"""What a model is asked in every way there is, as digests: on data of our own, and on the published files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.asserting import asked, data_folder

from specbench.common import registry
from specbench.evals.data import manifest

# Task, options, chat, digest of the prompts of our own data, how many prompts the published files give, their digest.
# What lm-eval words is not here: it is held against lm-eval's own contexts.
PINNED: list[tuple[str, dict[str, Any], bool, str, int, str]] = [
    ("humaneval", {"style": "completion"}, False, "e163c4ee722f968b", 164, "1fb5bb8b01349def"),
    ("humaneval", {"style": "chat"}, True, "4caabe65622a6461", 164, "cd47c2f536eccc10"),
    ("humaneval", {"style": "evalplus"}, True, "673ecb0ecfbab5a9", 164, "1a6674bda923b70e"),
    ("humaneval", {"style": "evalplus-completion"}, False, "05d1c8c0d9ecb84c", 164, "b55fe22bc6b76d99"),
    ("humaneval", {"style": "jf"}, True, "a62d0b1805ec253b", 164, "0d241a62ef608ad4"),
    ("humaneval", {"style": "jf-python"}, True, "744cbce1a24f3daa", 164, "d72f015de25efdad"),
    ("mbpp", {"variant": "plus"}, True, "0a1b1dfba68a866f", 378, "f21a8dbb74684d0b"),
    ("mbpp", {"variant": "plus"}, False, "e7f94a8108c6b367", 378, "39f5569d6856bf3c"),
    ("mbpp", {"variant": "test"}, True, "3fba787c2fb0af91", 500, "6db3b3031cea7831"),
    ("mbpp", {"variant": "test"}, False, "0111ede56648e60f", 500, "834122447cd23132"),
    ("mbpp", {"variant": "sanitized"}, True, "4e9ae5d184797b0e", 257, "7befec09b121f0d8"),
    ("mbpp", {"variant": "sanitized"}, False, "5da3e6b69c65b545", 257, "964f73cf21613426"),
    ("mbpp", {"variant": "test", "style": "jf"}, True, "a6852915b365702b", 500, "5ea35458c19b569d"),
    ("gsm8k", {"style": "chat"}, True, "f410b4c98f5d6545", 1319, "a59deeb28c5d5266"),
    ("gsm8k", {"style": "cllm"}, False, "54b44ae26f319f7b", 1319, "727859529963d888"),
    ("gsm8k", {"style": "jf"}, True, "dd6f421feb711d38", 1319, "002d86729efab53d"),
    ("math500", {"style": "chat"}, True, "c43d31b0ead8824f", 500, "630c8a3cfca750f5"),
    ("math500", {"style": "jf"}, True, "841c7ee6b7b191f5", 500, "a52bdd8e6dfaea05"),
    ("mt-bench", {}, True, "ac60eb9a4e8dfb02", 80, "7a424edd21cdca0a"),
    ("mt-bench", {"history": "ar", "temperatures": "official"}, False, "e4aa449cc8c61553", 80, "03790408f68dc5fa"),
    ("spec-bench", {}, True, "4472ce424eb22428", 480, "bdef58c5df69ca7d"),
    ("spec-bench", {"history": "ar"}, False, "f82befd49e6c1470", 480, "3f55ae40d5e77700"),
]
# Those of tasks whose files may be any: there are no published ones to be pinned by.
OPEN: list[tuple[str, dict[str, Any], bool, str]] = [
    ("aime25", {}, True, "36cbfd3accedfd80"),
    ("math", {}, True, "21ad6b8e632cd85c"),
    ("math", {"subject": "geometry", "level": 3}, True, "5acbacb999954523"),
    ("math", {"style": "jf"}, True, "cc1ba4cc45a5d055"),
    ("codesearchnet", {}, True, "aeb4adc8d9b34e7d"),
    ("codesearchnet", {}, False, "f5aff59c47b1d2ec"),
    ("speed-bench", {}, True, "b1565da8b3a53671"),
    ("speed-bench", {"history": "ar"}, False, "a43327147f405dca"),
    ("speed-bench", {"split": "throughput_1k"}, True, "424a2584eab544a0"),
]


def digest(name: str, options: dict[str, Any], chat: bool, folder: Path | None) -> tuple[int, str]:
    """How many prompts a task has in ``folder``, and a digest of all that they say."""
    module = registry.task(name).load()
    prompts = module.Task(module.Options(**options), folder).prompts(chat)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    return len(prompts), hashlib.sha256(json.dumps([asked(prompt) for prompt in prompts]).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("name", "options", "chat", "own"), OPEN)
def test_prompts_of_any_file_change_only_with_the_version(
    task_data: Path, name: str, options: dict[str, Any], chat: bool, own: str
) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    if name in ("aime25", "math"):
        pytest.importorskip("lm_eval", reason="needs pip install 'specbench-llm[eval]'")
        pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")
    assert digest(name, options, chat, task_data)[1] == own


@pytest.mark.parametrize(("name", "options", "chat", "own", "count", "published"), PINNED)
@pytest.mark.parametrize("data", ["own", "published"])
def test_prompts_change_only_with_the_version(
    task_data: Path, data: str, name: str, options: dict[str, Any], chat: bool, own: str, count: int, published: str
) -> None:
    """When this fails, raise ``version`` in task.toml and then renew both digests."""
    if name in ("gsm8k", "math500"):
        pytest.importorskip("lm_eval", reason="needs pip install 'specbench-llm[eval]'")
    if data == "own":
        assert digest(name, options, chat, task_data)[1] == own
    else:
        packaged = name == "humaneval" and "evalplus" not in options["style"]
        files = [file.name for file in manifest(registry.task(name).folder / "task.toml")]
        assert digest(name, options, chat, None if packaged else data_folder(*files)) == (count, published)
