"""Grids and settings as a target: what `--grid`, `--set`, `--method` and the files of a search say, and trees."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

from mutants import mutant

from fuzz import files
from fuzz.cases import Kind, Kinds
from specbench.common import http
from specbench.common.options import given
from specbench.methods.msn.trees import TREE
from specbench.runner.methods import labels_of, plan_methods
from specbench.runner.plan import Plan
from specbench.sweeps.grid import expand, read_axes

_NUMBERS = (
    "0", "1", "2", "9", "-1", "1.5", "1e3", "1e999", "-1e999", "nan", "inf", "1e-400", "9" * 5000, "9" * 100_000,
    "1_0", "٣",
    "½", "0x1", "", " ", "true", "None", "x", "16:64:16", "1:9:0", "9:1:1", "1:1e9:1e-9", "0:1e400:1", "1:2:nan", "::",
    "1:99999999999:1", "1e30:1e31:1", "0.1:0.9:0.1", "auto", "paper", "jf", "ar", "pld", "\n", "\0", "\u202e", "\udc80",
)  # fmt: skip
_NAMES = (
    "n", "K", "jf.n", "ar.n", "pld.x", "concurrency", "jf.concurrency", "preset", "jf.preset", "nope", "", ".", "..n",
    "n.n", "fallback",
)  # fmt: skip
_OF_TREES = (
    "0", "1", ",", " ", "[", "]", "(", ")", "-1", "9" * 30, "9" * 5000, "00", "\n", "", "0 0", "{", "}", "[0]", "x",
    "٣", "\t",
)  # fmt: skip


def _axis(draw: random.Random, content: bytes) -> bytes:
    """Another list of `OPTION=VALUES`."""
    if draw.random() < 0.3:
        return mutant(draw, content, "json")[: 1 << 20]
    made = []
    for _ in range(draw.randint(1, 3)):
        values = draw.choice((",", ":", ";")).join(draw.choices(_NUMBERS, k=draw.choice((1, 1, 2, 3, 5))))
        made.append(f"{draw.choice(_NAMES)}{draw.choice(('=', '=', '=', '', '=='))}{values}")
    return json.dumps(made).encode()


def _texts(content: bytes) -> list[str]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return [content.decode("utf-8", "surrogateescape")]
    return [
        each if isinstance(each, str) else str(each)[: 1 << 16]
        for each in (found if isinstance(found, list) else [found])
    ]


def _grid(content: bytes) -> None:
    axes = read_axes(_texts(content))
    expand(labels_of(["jf", "pld"]), {"ar": {}, "jf": {}, "pld": {}}, axes)


def _set(content: bytes) -> None:
    plan_methods(["jf", "pld"], _texts(content))


def _method(content: bytes) -> None:
    plan_methods(_texts(content), [])


def _plan(content: bytes) -> None:
    """Every option of a run, as values of any type."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        known: dict[str, Any] = {name: value for name, value in values.items() if name in Plan.model_fields}
        given(Plan, known)


def _tree(content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    if "/" not in text:  # a file's name
        TREE.nodes_of(TREE.named(text))


def _url(content: bytes) -> None:
    http.check_address(content.decode("utf-8", "surrogateescape"), "--base-url", "--api-key-env", lambda text: text)


def _trees(draw: random.Random, content: bytes) -> bytes:
    if draw.random() < 0.4:
        return mutant(draw, content, "text")[: 1 << 20]
    return "".join(draw.choices(_OF_TREES, k=draw.choice((1, 3, 9, 1000, 30_000)))).encode()


_PLAN = {
    "method": "jf,pld", "task": "prompts", "model": "config:tiny", "limit": 1, "max_new_tokens": 8, "temperature": 0.5,
    "settings": ["n=4"], "concurrency": 1, "repeats": 2, "seed": 3, "device": "cpu", "dtype": "float32", "out": "x",
}  # fmt: skip


def grids() -> Kinds:
    """Axes, settings, names of methods, whole plans, trees and addresses; and the files beside them."""
    found = files.settings()
    found["axes"] = Kind(lambda: b'["n=2,4"]', _grid, vary=_axis)
    found["settings"] = Kind(lambda: b'["jf.n=4"]', _set, vary=_axis)
    found["methods"] = Kind(lambda: b'["jf","ar"]', _method, vary=_axis)
    found["plan"] = Kind(partial(json.dumps(_PLAN).encode), _plan, "json")
    found["tree"] = Kind(lambda: b"[[0], [1], [0, 0]]", _tree, vary=_trees)
    found["address"] = Kind(lambda: b"http://localhost:8000/v1", _url)
    return found
