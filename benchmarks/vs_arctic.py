"""Compare our suffix decoding with the published class, ``SuffixDecodingCache`` of Arctic Inference, draft by draft.

Recorded answers are played token by token into both, and both draft after every token. Drafts count as equal as
follows:

* path: the same tokens, and the score to 1e-5.
* tree: the score to 1e-5. If the tokens differ ("order"), their probabilities are looked up in our counts: the class
  takes equally probable tokens in the order of C++'s ``std::priority_queue``, which is unspecified.
* "rounding": the class computes in single precision, in which equal scores can differ and a probability equal to
  ``min_prob`` can fall below it. Drafting from our counts in single precision then has to give the class's draft.

Anything else is wrong and gives exit code 1. Times are processor microseconds per step with vLLM's defaults:
``observe`` and ``draft`` for ours, ``add_active_response`` and ``speculate`` for theirs. They depend on the machine.

    pip install arctic-inference==0.3.0
    python benchmarks/vs_arctic.py [--answers 100]
    python benchmarks/vs_arctic.py --sample > tests/small_data/arctic_drafts.json  # reference drafts of a test

Building that package needs torch and more; the class itself does not. In the unpacked source archive, with CMake, a
C++20 compiler and ``pip install nanobind==2.9.2``:

    cmake -S csrc/suffix_decoding -B build -DPython_EXECUTABLE="$(command -v python)" && cmake --build build
    cp build/_C.* arctic_inference/suffix_decoding/
    PYTHONPATH=that/folder python benchmarks/vs_arctic.py
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.read import read_run
from specbench.common import SpecbenchError, UsageError, registry
from specbench.decoding import Context, StepResult, TokenTree
from specbench.models import load
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.results import BASELINE
from specbench.runner import prepare

RESULTS = Path(__file__).resolve().parent.parent / "results"
RUNS = ("20261123T003450Z", "20261123T005429Z", "20261123T011937Z")  # gsm8k, humaneval, mbpp: 40 answers each
UNLIMITED = 1_000_000  # answers to keep: more than are played
VOCABULARY = 1 << 20  # every token id is below this
# (answers to keep, requests that decode at a time): with more requests than places, some answers are dropped.
STATES = {"cold": (0, 1), "keeps all": (UNLIMITED, 1), "keeps 10": (10, 1), "keeps 10, 16 at a time": (10, 16)}
SAMPLED = ((0, 1), (UNLIMITED, 1), (2, 1), (2, 3), (5, 3))


@dataclass(frozen=True)
class Text:
    """A prompt and its recorded answer, as token ids."""

    name: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Setting:
    """Options of both; ``together`` requests decode at a time. At most ``depth`` tokens are drafted, the default."""

    cached_requests: int
    together: int
    depth: int
    factor: float
    offset: float
    min_prob: float
    tree: bool

    @property
    def of_vllm(self) -> bool:
        """Whether the options except the cache are vLLM's defaults; a tree counts as well."""
        return (self.depth, self.factor, self.offset, self.min_prob) == (24, 1.0, 0.0, 0.1)

    @property
    def options(self) -> dict[str, Any]:
        """The options of our method."""
        own = ("cached_requests", "depth", "factor", "offset", "min_prob", "tree")
        return {**{name: getattr(self, name) for name in own}, "draft_length": self.depth}


@dataclass(frozen=True)
class Pair:
    """Both drafts after ``at`` tokens of an answer, and the seconds that each took."""

    text: int
    at: int
    context: list[int]
    ours: TokenTree
    decoder: Any
    theirs: Any
    seconds: tuple[float, float]


@dataclass
class MethodCounts:
    """Counts of a row of the table, and the seconds of its timed steps."""

    found: Counter[str] = field(default_factory=Counter)
    seconds: list[tuple[float, float]] = field(default_factory=list)


def recorded(answers: int) -> list[Text]:
    """Read AR's answers from committed runs, with the prompts' token ids.

    Raises:
        UsageError: a run is missing, or the task's prompts have changed since.
    """
    texts: list[Text] = []
    loaded = lru_cache(partial(load, dtype="float32", device="cpu"))
    for stamp in RUNS:
        if len(texts) >= answers:
            break
        folder = next(RESULTS.glob(f"{stamp}-*"), RESULTS / stamp)
        read = read_run(folder)
        recorded_plan, name = read.run["plan"], read.config.model.name
        options = ("limit", "prompt_seed", "first", "task_settings")
        chosen = {key: recorded_plan[key] for key in options if key in recorded_plan}
        budget = read.config.max_new_tokens
        plan = Plan(
            model=name, task=recorded_plan["task"], max_new_tokens=budget, method=BASELINE, base="none", **chosen
        )
        resolved = resolve(plan)
        prepared = prepare(resolved.plan, resolved.tasks[0], loaded(name))
        if prepared.spec.prompts_sha256 != read.config.task.prompts_sha256:
            raise UsageError(f"the prompts of {recorded_plan['task']} have changed since {folder.name}; run it again")
        for record in read.records:
            if record.method == BASELINE:
                prompt = list(prepared.request(record.prompt_id).ids)
                texts.append(Text(record.prompt_id, prompt, list(record.output_ids)))
    return texts[:answers]


def settings(
    cached_requests: int, together: int, tree: bool, depths: Sequence[int] = (24, 64), least: Sequence[float] = (0.1, 0)
) -> list[Setting]:
    """Return all settings that a row of the table covers."""
    return [
        Setting(cached_requests, together, *chosen, tree)
        for chosen in product(depths, (1.0, 2.0, 4.0), (0.0, 1.0), least)
    ]


def play(setting: Setting, texts: Sequence[Text], published: Any) -> Iterator[Pair]:
    """Decode the texts with both; tokens come one at a time, as if no draft was ever accepted."""
    method = registry.method("suffix").load()
    options = method.Options(**setting.options)
    state = method.Decoder.state(options)
    cache = published(setting.depth, -1 if setting.cached_requests == UNLIMITED else setting.cached_requests)
    how = (setting.depth, setting.factor, setting.offset, setting.min_prob, setting.tree)
    for first in range(0, len(texts), setting.together):
        live = range(first, min(first + setting.together, len(texts)))
        decoders, ids = {}, {}
        for text in live:
            prompt = texts[text].prompt
            decoders[text] = method.Decoder(options, Context(VOCABULARY, 0, random.Random(0), None, state))
            decoders[text].begin(prompt)
            cache.start_request(text, np.array(prompt, dtype=np.int32))
            ids[text] = np.array(prompt + texts[text].answer, dtype=np.int32)
        for at in range(1, 1 + max(len(texts[text].answer) for text in live)):
            for text in live:
                if at > len(texts[text].answer):
                    continue
                token, end = texts[text].answer[at - 1], len(texts[text].prompt) + at
                context = ids[text][max(0, end - setting.depth) : end]
                start = time.thread_time()
                decoders[text].observe(StepResult([token], [0], [token]))
                ours = decoders[text].draft()
                half = time.thread_time()
                cache.add_active_response(text, [token])
                theirs = cache.speculate(text, context, *how)
                seconds = (half - start, time.thread_time() - half)
                yield Pair(text, at, context.tolist(), ours, decoders[text], theirs, seconds)
        for text in live:
            decoders[text].end()
            cache.stop_request(text)


# ------------------------------------------------------------------ whether two drafts are equal


def judged(pair: Pair, setting: Setting) -> str:
    """Return "same", "order", "rounding" or "wrong", as defined at the head of this file."""
    theirs, level = pair.theirs, near(pair.decoder.score, pair.theirs.score)
    ours = (list(pair.ours.tokens[1:]), [parent - 1 for parent in pair.ours.parents[1:]])
    if level and paths(*ours) == paths(theirs.token_ids, theirs.parents):
        return "same"
    trees = trees_of(pair.decoder)
    if level and setting.tree and any(promised(tree, pair.context, theirs) for tree in trees):
        return "order"
    drafts = [in_single_precision(tree, pair.context, setting) for tree in trees]
    score, tokens = max(drafts, key=lambda draft: draft[0])  # the first of equal scores, which is the local tree
    alike = near(float(score), theirs.score) and (setting.tree or tokens == theirs.token_ids)
    return "rounding" if alike else "wrong"


def near(one: float, other: float) -> bool:
    """Whether two scores are equal to 1e-5, relative above 1, because they are sums in single precision."""
    return abs(one - other) <= 1e-5 * max(1.0, one)


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the path of tokens to each node, itself included, sorted."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return sorted(found)


def trees_of(decoder: Any) -> list[Any]:
    """Our suffix trees: the text's own, then the tree of earlier answers if there is one."""
    return [decoder._local, *([decoder._answers.tree] if decoder._answers else [])]


def promised(tree: Any, context: Sequence[int], theirs: Any) -> bool:
    """Whether our counts give their tokens the probabilities that they report."""
    match = list(context[-theirs.match_len :])
    of = occurs(tree, match)
    ways: list[list[int]] = []
    for token, parent in zip(theirs.token_ids, theirs.parents, strict=True):
        ways.append([*(ways[parent] if parent >= 0 else match), token])
    return of > 0 and all(
        abs(occurs(tree, way) / of - likely) < 1e-5 for way, likely in zip(ways, theirs.probs, strict=True)
    )


def occurs(tree: Any, tokens: Sequence[int]) -> int:
    """Count how often a string occurs."""
    place = tree.find(tokens)
    return place[0].count if place else 0


def in_single_precision(tree: Any, context: Sequence[int], setting: Setting) -> tuple[Any, list[int]]:
    """Draft from our counts with the class's precision and order; return score and tokens."""
    best: tuple[Any, list[int]] = (np.float32(0), [])
    for match in range(1, len(context)):
        place = tree.find(context[-match:])
        if place is None:
            break
        most = min(setting.depth, int(match * setting.factor + setting.offset))
        score: Any = np.float32(0)
        tokens: list[int] = []
        turn = count()  # of equally probable tokens, take the one found first
        queue = [(-likely, next(turn), *at) for likely, *at in following(tree, place, np.float32(1), setting)]
        while queue and len(tokens) < most:
            negative, _, token, place = heapq.heappop(queue)
            tokens.append(token)
            score -= negative
            for likely, *at in following(tree, place, -negative, setting):
                heapq.heappush(queue, (-likely, next(turn), *at))
        if score >= best[0]:
            best = (score, tokens)
    return best


def following(tree: Any, place: tuple[Any, int], likely: Any, setting: Setting) -> list[tuple[Any, int, Any]]:
    """Return (probability, token, place) of the tokens that follow a string; for a path only the first one."""
    node, skip = place
    if node.ranked is None:  # the string occurred once
        return [(likely, token, (node, skip + 1)) for token in tree.following(node, skip, 1)]
    found = []
    for child in node.ranked if setting.tree else node.ranked[:1]:
        part, whole = np.float32(child.count), np.float32(node.count)
        # The class has no node where a string continues in only one way: nothing is multiplied there.
        once = likely if part == whole else likely * part / whole if setting.tree else likely * (part / whole)
        if once < np.float32(setting.min_prob):
            break
        found.append((once, child.token, (child, 0)))
    return found


# ------------------------------------------------------------------ what is printed


def compare(texts: Sequence[Text], published: Any) -> int:
    """Print the table, one draft decided by rounding and the first wrong drafts; return the number of wrong drafts."""
    names = ("drafts", "empty", "same", "order", "rounding", "wrong", "µs: ours", "99%", "theirs", "99%")
    print(" " * 29 + "".join(f"{name:>9}" for name in names))
    examples: dict[str, list[str]] = {"rounding": [], "wrong": []}
    wrong = order = trees = 0
    for (name, state), tree in product(STATES.items(), (False, True)):
        tally = MethodCounts()
        for setting in settings(*state, tree):
            for pair in play(setting, texts, published):
                found = judged(pair, setting)
                tally.found.update(["drafts", found, *(["empty"] if not pair.theirs.token_ids else [])])
                if setting.of_vllm:
                    tally.seconds.append(pair.seconds)
                if found in examples and len(examples[found]) < 3:
                    examples[found].append(describe(pair, setting, texts))
        wrong += tally.found["wrong"]
        order += tally.found["order"]
        trees += tally.found["drafts"] if tree else 0
        print(row(f"{name}, {'tree' if tree else 'path'}", tally), flush=True)
    print(f"{order / trees:.1%} of the trees have other tokens of the same probability")
    for found, shown in examples.items():
        for example in shown[: 1 if found == "rounding" else None]:
            print(f"{found}: {example}")
    return wrong


def row(name: str, tally: MethodCounts) -> str:
    """Format a line of the table."""
    found = [tally.found[name] for name in ("drafts", "empty", "same", "order", "rounding", "wrong")]
    times = 1e6 * np.quantile(tally.seconds, (0.5, 0.99), axis=0).T.ravel()
    return f"{name:29}" + "".join(f"{number:9.0f}" for number in (*found, *times))


def describe(pair: Pair, setting: Setting, texts: Sequence[Text]) -> str:
    """Describe a pair of drafts."""
    theirs = pair.theirs
    return (
        f"{texts[pair.text].name} after {pair.at} tokens with {setting}\n"
        f"  ours   {pair.decoder.score:.8f} {list(pair.ours.tokens[1:])} {[p - 1 for p in pair.ours.parents[1:]]}\n"
        f"  theirs {theirs.score:.8f} {theirs.token_ids} {theirs.parents}, match {theirs.match_len}"
    )


# ------------------------------------------------------------------ drafts for a test


def sample(published: Any, release: str) -> Mapping[str, Any]:
    """Sample some of the class's drafts on few answers, without those that its queue or precision decided.

    Token ids are renumbered in order of appearance: a suffix tree only needs to know which ids are equal, and the texts
    are not ours to publish. Further texts are artificial, with four tokens, so that counts tie and long strings repeat.
    """
    luck, taken = random.Random(0), []
    answers = [text for text in recorded(80) if len(text.answer) > 60][::12][:6]
    made_up = [Text("made up", luck.choices(range(4), k=2), luck.choices(range(4), k=40)) for _ in range(18)]
    texts = [*numbered(answers), *made_up]
    for state, tree in product(SAMPLED, (False, True)):
        for depths, least in (((24, 64), (0.1, 0)), ((3, 4), (0.25,))):
            setting = luck.choice(settings(*state, tree, depths, least))
            equal = [
                [pair.text, pair.at, round(pair.theirs.score, 6), pair.theirs.token_ids, pair.theirs.parents]
                for pair in play(setting, texts, published)
                if min(pair.theirs.probs, default=1.0) < 1.0 and judged(pair, setting) == "same"
            ]
            real = [draft for draft in equal if draft[0] < len(answers)]
            drafts = luck.sample(real, 7) + luck.sample([draft for draft in equal if draft not in real], 20)
            taken.append({"options": setting.options, "together": setting.together, "drafts": sorted(drafts)})
    return {
        "about": "text, tokens of its answer so far, score, tokens, parents: by benchmarks/vs_arctic.py --sample",
        "class": f"SuffixDecodingCache of arctic-inference {release}",
        "texts": [{"prompt": text.prompt, "answer": text.answer} for text in texts],
        "settings": taken,
    }


def numbered(texts: Sequence[Text]) -> list[Text]:
    """Renumber ids as 0, 1, 2 … in the order of their first appearance."""
    numbers: dict[int, int] = {}

    def again(ids: Sequence[int]) -> list[int]:
        return [numbers.setdefault(token, len(numbers)) for token in ids]

    return [Text(text.name, again(text.prompt), again(text.answer)) for text in texts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--sample", action="store_true", help="print reference drafts for a test as JSON instead")
    args = parser.parse_args()
    try:
        published = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
    except ImportError as error:
        # Not a failure: `make bench` runs every benchmark, and the package is optional.
        print(f"nothing compared: {error}; see the head of {Path(__file__).name}", file=sys.stderr)
        return 0
    try:
        release = version("arctic-inference")
    except PackageNotFoundError:
        release = "of unknown version"
    try:
        if args.sample:
            print(json.dumps(sample(published, release), separators=(",", ":")).replace('{"options', '\n{"options'))
            return 0
        texts = recorded(args.answers)
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    tokens = sum(len(text.answer) for text in texts)
    print(f"arctic-inference {release}: {len(texts)} answers of {tokens} tokens, 24 settings per row")
    return 1 if compare(texts, published) else 0


if __name__ == "__main__":
    sys.exit(main())
