"""The models of the papers: their sizes, and how each of their tasks is asked, without network and tokenizer."""

from __future__ import annotations

import pytest

from specbench.models import configured_parameters, names
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve

# Parameters as the hub lists them for the published weights.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "vicuna-7b": 6_738_415_616, "vicuna-13b": 13_015_864_320,
    "codellama-7b": 6_738_546_688, "codellama-13b": 13_016_028_160, "codellama-34b": 33_743_970_304,
    "deepseek-coder-1.3b": 1_346_471_936, "deepseek-coder-6.7b": 6_740_512_768,
    "starcoder2-3b": 3_030_371_328, "starcoder2-7b": 7_173_923_840, "starcoder2-15b": 15_957_889_024,
    "qwen2.5-7b": 7_615_616_512, "llama-3-8b": 8_030_261_248,
    "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen3-30b-a3b": 30_532_122_624,
    "fast-dllm-v2-7b": 7_615_616_512,
}  # fmt: skip

CODE, MATHS = ("humaneval", "mbpp"), ("gsm8k", "math500", "math")
CONTINUES = ("llama-3-8b", "deepseek-coder-6.7b", *(f"codellama-{size}b" for size in (7, 13, 34)),
             *(f"starcoder2-{size}b" for size in (3, 7, 15)))  # fmt: skip
# Style of each task of the model's paper; "auto": the checkpoint's own chat template, or that of the alias.
ASKED = {
    **{(alias, task): "jf" for alias in ("jf-coder-7b", "qwen2.5-coder-7b-instruct") for task in CODE},
    **{(alias, task): "jf" for alias in ("jf-math-7b", "qwen2.5-math-7b-instruct") for task in MATHS},
    **{(alias, "gsm8k"): "cllm" for alias in ("cllm-math-7b", "abel-7b")},
    **{(alias, "spider"): "cllm" for alias in ("cllm-spider-7b", "deepseek-7b-spider")},
    **{(alias, "codesearchnet"): "cllm" for alias in ("cllm-codesearchnet-7b", "deepseek-7b-codesearchnet")},
    **{(alias, task): "completion" for alias in CONTINUES for task in CODE},
    **{(alias, task): "auto" for alias in ("msn-llama3-8b", "msn-deepseek-coder-7b") for task in (*CODE, "mt-bench")},
    **{(alias, "mt-bench"): "auto" for alias in ("cllm-sharegpt-7b", "vicuna-7b-sharegpt")},
    **{(f"llama-2-{size}b-chat", "mt-bench"): "auto" for size in (7, 13, 70)},
    **{(f"codellama-{size}b-instruct", task): "auto" for size in (7, 13, 34) for task in ("gsm8k", "mt-bench")},
    **{(f"jetspec-qwen3-{size}", task): "jetspec" for size in ("8b", "30b-a3b")
       for task in ("gsm8k", "math500", "aime25", "humaneval")},
}  # fmt: skip
TEMPLATES = {"cllm-math-7b": "cllm-math", "cllm-spider-7b": "cllm-instruct", "vicuna-7b-v1.3": "vicuna",
             "vicuna-13b-v1.3": "vicuna", "cllm-sharegpt-7b": "vicuna", "qwen3-4b": "qwen3-direct",
             "qwen3-14b": "qwen3-direct", "jetspec-qwen3-30b-a3b": "qwen3-direct", "msn-llama3-8b": None}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_the_published_parameters(name: str) -> None:
    assert configured_parameters(names.configs()[name]) == PUBLISHED[name]


@pytest.mark.parametrize(("alias", "task"), ASKED)
def test_a_model_is_asked_as_in_its_paper(alias: str, task: str) -> None:
    (planned,) = resolve(Plan(method=None, model=alias, task=task)).tasks
    assert planned.options.style == ASKED[alias, task]
    if planned.options.style == "jf" and task == "mbpp":
        assert planned.options.variant == "test"


def test_templates_of_papers_are_set() -> None:
    assert {alias: names.aliases()[alias].get("template") for alias in TEMPLATES} == TEMPLATES


def test_shapes_of_aliases_exist() -> None:
    shapes = {entry["shape"] for entry in names.aliases().values() if "shape" in entry}
    assert shapes <= names.configs().keys()
    assert shapes >= PUBLISHED.keys()
