"""Kinds of files and replies that are read, each with a good one as the code itself writes it, and what reads it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
import yaml
from small_data import livecodebench as contests
from small_data import spider as queries
from support import decoders, engines, runs
from support.runs import made_up_trajectories

from specbench.analysis.model_quality import Metric, Quality, TaskQuality, compare_quality, read_quality
from specbench.analysis.read import read_config as run_config
from specbench.backends import completions, streaming
from specbench.backends.protocol import Question
from specbench.backends.workers.worker_requests import Requests
from specbench.cli.commands import new_method
from specbench.common import Options, UsageError, option, registry
from specbench.common.child import Child
from specbench.common.errors import EngineFault
from specbench.common.reading import read_json_object, read_text, validate
from specbench.decoding import Target
from specbench.evals import data
from specbench.evals.grading import scoring
from specbench.evals.judge import endpoint, judge
from specbench.evals.judge import judge_prompts as judge_prompts
from specbench.hardware.stored_profile import read_profile
from specbench.heads import head_files
from specbench.heads.block_config import BlockHeadConfig
from specbench.methods.msn.trees import TREE
from specbench.methods.recycling.trees import TREE as RECYCLED
from specbench.methods.sam import corpus as corpora
from specbench.models import adapters, names
from specbench.models.checkpoint import read_config
from specbench.models.export import copies
from specbench.models.loaded_model import ByteTokenizer
from specbench.planning.methods import assign_labels
from specbench.quality import perplexity
from specbench.report.claims import catalog as claims
from specbench.results.branches import BRANCHES, RatedBranch, RatedRequest, read_branches
from specbench.results.judgments import JUDGMENTS
from specbench.results.likelihoods import LIKELIHOODS, Likelihood, read_likelihoods
from specbench.results.schema import ModelSpec
from specbench.results.verdicts import VERDICTS, read_scores
from specbench.sweeps import driver
from specbench.sweeps.executors import Here
from specbench.sweeps.grid import expand, read_axes
from specbench.tasks.gsm8k.task import Problem as Gsm8kProblem
from specbench.tasks.humaneval import rows as humaneval
from specbench.tasks.livecodebench import packed as packed_tests
from specbench.tasks.livecodebench import rows as livecodebench
from specbench.tasks.math import task as math_task
from specbench.tasks.mbpp import rows as mbpp
from specbench.tasks.mt_bench import task as mt_bench
from specbench.tasks.prompts import task as prompts
from specbench.tasks.spec_bench import task as spec_bench
from specbench.tasks.spider import rows as spider
from specbench.training.choose import choose
from specbench.training.data import answers
from specbench.training.data import given_answers as given
from specbench.training.data import trajectory_folder as trajectory
from specbench.training.data.trajectory_folder import Header
from specbench.training.evaluation.held_out import Figures, Held
from specbench.training.loop import on_policy

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        file: its name.
        form: as :func:`mutants.mutant` takes it.
        make: the content of a good one.
        read: reads one.
        names_it: whether an error has to name the file; of a reply it names who sent it.
    """

    file: str
    form: str
    make: Callable[[], bytes]
    read: Callable[[Path], Any]
    names_it: bool = True


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_lines(*rows: Any) -> bytes:
    return b"".join(as_json(row) + b"\n" for row in rows)


# --------------------------------------------------------------------------------------------------------- made by code


def profile() -> bytes:
    made = runs.made_up_profile(contexts=(512,), slots=())
    return as_json(made.model_copy(update={"points": made.points[:4]}).model_dump(mode="json"))


def sweep_head() -> bytes:
    with TemporaryDirectory() as out:
        worker = runs.ToyWorker(["toy n=2"], held_out=("h",))
        sweep = driver.Asked(runs.grid(["toy n=2"], too_large=["toy n=600"]), Path(out))
        return (driver.drive(sweep, Here(lambda: worker), driver.Silent()) / driver.SWEEP).read_bytes()


def run_file() -> bytes:
    return as_json(runs.worker_config(["toy n=2"], 3).model_dump(mode="json"))


def written(write: Callable[[Path], Any], file: str) -> bytes:
    """What a function leaves in a folder under a name."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / file).read_bytes()


HEADER = Header(model="f" * 64, block_size=4, pad=0, shards=1, settings={"states": "jacobi", "seed": 0})


def shard() -> bytes:
    texts = [made_up_trajectories(f"made/{at}") for at in range(2)]
    return written(lambda folder: trajectory.write_shard(folder / "x", texts, {"blocks": 6, "answers": 2.5}), "x")


def read_shard(path: Path) -> None:
    trajectory.read_statistics(path)
    trajectory.write_header(path.parent, HEADER)
    assert trajectory.shard_path(path.parent, 0) == path
    list(trajectory.read(path.parent))


def head_config() -> bytes:
    return as_json(decoders.TINY)


@cache
def head_weights() -> bytes:
    return written(lambda folder: decoders.head().save(folder), "model.safetensors")


@cache
def head_shapes() -> dict[str, Any]:
    return {name: value.shape for name, value in decoders.head().state_dict().items()}


def read_head_config(path: Path) -> None:
    (path.parent / "model.safetensors").touch()
    BlockHeadConfig.from_json(head_files.find(str(path.parent)).config, 12)


def read_head_weights(path: Path) -> None:
    (path.parent / "config.json").write_bytes(head_config())
    found = head_files.find(str(path.parent))
    head_files.check_names(found.name, head_shapes(), found.tensors("cpu", None))


class Base(torch.nn.Linear):
    """What an adapter's card is compared with."""

    dtype = torch.float32


BASE = Base(2, 3)


def project() -> bytes:
    return (ROOT / "pyproject.toml").read_bytes().partition(b"[tool.")[0]


def checkout(path: Path) -> None:
    for folder in ("methods", "tests/methods"):
        (path.parent / folder).mkdir(parents=True, exist_ok=True)
    assert new_method._checkout(path.parent) in (path.parent, None)


def grid(path: Path) -> None:
    axes = read_axes([], path)
    with suppress(UsageError):  # about the options themselves, wherever they were written
        expand(assign_labels(["jf"]), {"ar": {}, "jf": {}}, axes)


class Learning(Options):
    lr: float = option(0.1, "l", help="", gt=0)
    steps: int = option(1, help="")
    name: str = option("", help="")
    full: bool = option(False, help="")


def recipe(path: Path) -> None:
    try:
        choose(registry.method("jf"), Learning, str(path), [])
    except UsageError as error:
        if "of the recipe of jf" not in str(error):  # an option's name or value
            raise


def published_claims() -> bytes:
    return b"""
[parameters]
"Llama 3 8B" = 8_030_261_248
[gpus]
A100 = ["a100-40gb", "a100-80gb"]
[[table]]
name = "t"
paper = "P"
source = "Table 1"
url = "https://a.invalid/1"
claim = [
  { method = "jf", model = "Llama 3 8B", gpu = "A100", task = "gsm8k", speedup = 2.50, tok_s = 100.0, baseline_tok_s = 40.0 },
  { method = "x", setting = "a", tpf = 3.1, accuracy = 91.4, metric = "pass@1", caveat = "as printed", also = { y = 2.5 }, options = { n = 4 } },
]
"""  # noqa: E501


def reply(path: Path) -> None:
    """Asks an endpoint whose body is the file; some are refusals."""
    body = path.read_bytes()
    status = (200, 200, 200, 400, 401, 302, 500)[len(body) % 7 if body != as_json(COMPLETION) else 0]
    asked = endpoint.Endpoint("m", "http://x.invalid/v1", "k" * 20, max_tokens=1, timeout_s=1, sleep=lambda s: None)
    answer = nullcontext(SimpleNamespace(status=status, beginning=lambda most: body[:most]))
    with patch.object(endpoint, "send", lambda *some: answer), patch.object(endpoint, "_TRIES", 1):
        try:
            asked.ask(judge_prompts.JudgePrompt("single-v1", "", ""))
        except judge.Unanswered as error:
            raise UsageError(f"{path.name}: {error}") from None


def completion(path: Path) -> None:
    """Asks a server whose stream of events is the file."""
    stream = nullcontext(SimpleNamespace(pieces=lambda: iter([(0, path.read_bytes())])))
    with patch.object(streaming.Server, "_open", lambda *some: stream):
        asked = completions.Completions(streaming.Server("http://x.invalid", 5), "m", engines.MODEL)
        try:
            list(asked.ask(Question([1, 2], 5, frozenset())))
        except EngineFault as error:
            raise UsageError(str(error)) from None


def steps(path: Path) -> None:
    """Takes what a worker of another engine wrote, which is the file."""
    with path.open("rb") as written:
        child = Child.__new__(Child)
        vars(child).update(process=SimpleNamespace(stdout=written, stdin=None), _longest=1 << 20, _read_ns=0)
        vars(child).update(_rest=b"", _unsent=b"", send=lambda **line: None, died=lambda: EngineFault("it has ended"))
        requests = Requests(child, 5, 100)
        number = requests.submit(Question([1, 2], 5, frozenset()))
        try:
            while requests.busy:
                requests.poll(5)
            requests.counters(number)
        except EngineFault as error:
            raise UsageError(str(error)) from None


EVENTS = [{"choices": [{"index": 0, "text": "d", "token_ids": [3], "prompt_token_ids": [1, 2], "finish_reason": None}]},
          {"choices": [{"index": 0, "text": "e", "token_ids": [4], "finish_reason": "length"}]}]  # fmt: skip
STEPS = [{"steps": [[1, [3], 0]], "ns": 1}, {"steps": [[1, [4, 5], 5]], "ns": 2},
         {"end": 1, "counters": {"decode_steps": 1, "drafts": 1, "draft_tokens": 5, "accepted_tokens": 1}}]  # fmt: skip
COMPLETION = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "[[7]]"}}], "usage": {}}
CONVERSATIONS = [
    {"prompt": "Once upon a time"},
    {"turns": ["Name a colour.", "And another."], "id": "a", "category": "x/y", "system": "Be brief."},
    {"messages": [{"role": "user", "content": "Hi"}], "id": 7},
]
GIVEN = [
    {"conversations": ["2+2?", "4"], "source": "x"},
    {"instruction": "Add.", "input": "2+2", "output": "4"},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"prompt": "Once upon", "answer": " a time"},
]
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": "pass",
    "contract": "", "atol": 0, "base_input": [[1]], "plus_input": [[2, [3.5, "x"]], []],
}  # fmt: skip
PLUS = {
    "task_id": "Mbpp/2", "prompt": "", "entry_point": "f", "canonical_solution": "", "base_input": [[1]],
    "plus_input": [], "atol": 0, "contract": "", "assertion": "",
}  # fmt: skip
MATH = {
    "problem": "?", "solution": "$\\boxed{2}$", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "a"
}  # fmt: skip
ASKED: dict[str, Any] = {"question_id": 81, "category": "math", "turns": ["a", "b"]}
ANSWER = {"question_id": 81, "choices": [{"index": 0, "turns": ["c", "d"]}]}
TEXT = {"id": "set/a", "prompt": [1, 2], "answer": [3, 4, 5], "stop": "length"}
MADE = {"model": "f" * 64, "dtype": "float32", "max_new_tokens": 8, "temperature": 0.0, "seed": 0}
GRID = {"grid": {"n": ["16", "32"], "K": "1,2", "concurrency": ["1"]}}


def asked_again(path: Path) -> None:
    rows = mt_bench.load(path)
    for row in rows:
        assert row.turns


def conversations(path: Path) -> None:
    task = prompts.Task(prompts.Options(file=str(path)))
    task.prompts(chat=True)


def same_settings(path: Path) -> None:
    from specbench.training.loop import checkpoints  # transformers' part in it imports PEFT

    checkpoints.claim(path.parent, {"lr": 0.1, "seed": 0}, "a jf")


def rows_of(kind: Any) -> Callable[[Path], Any]:
    return lambda path: data.read_rows(path, kind)


def rows_in_parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pylist([{"question": f"{at}?", "answer": f"#### {at}"} for at in range(70)])
    parquet.write_table(table, buffer)
    return bytes(buffer.getvalue().to_pybytes())


def tests_of_a_problem(path: Path) -> None:
    """The problems of a file, and the private tests of one, where it is still there."""
    for problem in livecodebench.load([path]).values():
        livecodebench.cases(problem, private=True)


def unpacked(path: Path) -> str:
    try:
        return packed_tests.unpack(read_text(path, "x"))
    except ValueError as error:
        raise UsageError(str(error)) from None


def spider_with(**files: Any) -> Callable[[Path], Any]:
    """Reads Spider's two files, one of them the mutant."""

    def read(path: Path) -> None:
        with TemporaryDirectory() as folder:
            other = Path(folder, "other.json")
            other.write_bytes(as_json(next(iter(files.values()))))
            spider.load(*((other, path) if "dev" in files else (path, other)))

    return read


def file_of(*parts: str) -> Callable[[], bytes]:
    return lambda: ROOT.joinpath(*parts).read_bytes()


def of_a_run(name: str) -> Callable[[], bytes]:
    return lambda: runs.a_run()[name]


def likelihoods() -> bytes:
    made = [Likelihood(text=f"{at}", requests=[f"ar|p/{at}|0"], tokens=4, log_likelihood=-2.5) for at in range(2)]
    return as_lines(*(line.model_dump(mode="json") for line in made))


def branches() -> bytes:
    made = RatedRequest(request="jetspec|p/0|0", branches=[RatedBranch(tokens=3, promised=-1.5, target=-2.5)])
    return as_lines(made.model_dump(mode="json"))


def quality() -> bytes:
    model = ModelSpec(
        name="m", source="m", revision=None, fingerprint="f" * 64, dtype="float32", device="cpu", parameters=1,
        weight_bytes=4, dummy=False,
    )  # fmt: skip
    metrics = [
        Metric(metric="acc", filter="none", value=0.5, stderr=0.1, higher_is_better=True, items=[1.0, 0.0]),
        Metric(
            metric="word_perplexity", filter="none", value=2.5, stderr=None, higher_is_better=False,
            items=[-3.0, -2.0], weights=[2.0, 4.0],
        ),
    ]  # fmt: skip
    task = TaskQuality(
        task="t", version="1", shots=0, documents=2, of=2, data="json", revision="unverified", documents_hash="d",
        task_hash="h", metrics=metrics,
    )  # fmt: skip
    made = Quality(model=model, lm_eval="0.4", limit=None, chat=False, tasks=[task], groups=[])
    return as_json(made.model_dump(mode="json"))


def two_qualities(path: Path) -> None:
    found = read_quality(path)
    compare_quality(found, found)


def corpus(path: Path) -> None:
    """In tokens, as a run looks texts up in it."""
    corpora.load(str(path), cast(Target, SimpleNamespace(tokenizer=ByteTokenizer())))


def two_requests() -> Callable[[], bytes]:
    return lambda: b"".join(of_a_run(runs.REQUESTS)().splitlines(keepends=True)[1:3])


def card_of(kind: str) -> Callable[[Path], Any]:
    return lambda path: registry._read(kind, "mutated", "mutated_package", path.parent, "mutants")


KINDS: dict[str, Kind] = {
    "method.toml": Kind("method.toml", "text", file_of("methods", "jf", "method.toml"), card_of("method")),
    "task.toml": Kind("task.toml", "text", file_of("tasks", "mt_bench", "task.toml"), card_of("task")),
    "data of a task.toml": Kind("task.toml", "text", file_of("tasks", "mt_bench", "task.toml"), data.manifest),
    "pyproject.toml": Kind("pyproject.toml", "text", project, checkout),
    "claims.toml": Kind("claims", "text", published_claims, lambda p: claims.read(p.read_text("utf-8", "replace"))),
    "profile": Kind("profile.json", "json", profile, lambda path: read_profile(path.parent)),
    "sweep": Kind("sweep.json", "json", sweep_head, lambda path: driver.read_head(path.parent)),
    "grid": Kind("grid.yaml", "text", lambda: yaml.safe_dump(GRID).encode(), grid),
    "recipe": Kind("mine.yaml", "text", lambda: b"lr: 0.5\nsteps: 4\nfull: yes\nname: 'a b'\n", recipe),
    "task of a run": Kind("run.json", "json", run_file, lambda path: scoring._task_of(path.parent)),
    "conversations": Kind("mine.jsonl", "lines", lambda: as_lines(*CONVERSATIONS), conversations),
    "humaneval": Kind(
        "x.jsonl", "lines", lambda: as_lines(HUMANEVAL), lambda path: humaneval.load(path, humaneval.PlusProblem)
    ),
    "compressed": Kind("x.jsonl.gz", "binary", lambda: gzip.compress(as_lines(HUMANEVAL, HUMANEVAL)), data.read_jsonl),
    "rows in Parquet": Kind("x.parquet", "binary", rows_in_parquet, lambda path: data.read_rows(path, Gsm8kProblem)),
    "rows in a list": Kind(
        "x.json", "json", lambda: as_json([{"question": "?", "answer": "#### 2"}]), rows_of(Gsm8kProblem)
    ),
    "mbpp plus": Kind("x.jsonl", "lines", lambda: as_lines(PLUS), mbpp.load_plus),
    "livecodebench": Kind(
        "x.jsonl", "lines", lambda: as_lines(contests.MADE[0].row, contests.MADE[3].row), tests_of_a_problem
    ),
    "packed tests": Kind(
        "x.invalid", "text", lambda: contests.packed([{"input": "1"}]).encode(), unpacked, names_it=False
    ),
    "questions of spider": Kind("x.json", "json", lambda: as_json(queries.DEV), spider_with(tables=queries.TABLES)),
    "tables of spider": Kind("x.json", "json", lambda: as_json(queries.TABLES), spider_with(dev=queries.DEV)),
    "math": Kind("x.jsonl", "lines", lambda: as_lines(MATH), math_task.load),
    "mt-bench": Kind("x.jsonl", "lines", lambda: as_lines(ASKED), asked_again),
    "references": Kind(
        "x.jsonl", "lines", lambda: as_lines(ANSWER), lambda p: mt_bench.load_references(p, [mt_bench.Row(**ASKED)])
    ),
    "spec-bench": Kind("x.jsonl", "lines", lambda: as_lines({**ASKED, "category": "qa"}), spec_bench.load),
    "reply of a judge": Kind("x.invalid", "json", lambda: as_json(COMPLETION), reply),
    "stream of a server": Kind(
        "x.invalid", "text", lambda: b"".join(b"data: " + as_json(event) + b"\n\n" for event in EVENTS), completion,
        names_it=False,
    ),
    "steps of a worker": Kind("x.invalid", "lines", lambda: as_lines(*STEPS), steps, names_it=False),
    "adapter": Kind(
        "adapter_config.json", "json",
        lambda: as_json({"base_model_name_or_path": "config:tiny", "peft_type": "LORA", "r": 4}),
        lambda path: names.resolve(str(path.parent)),
    ),
    "card of an adapter": Kind(
        "card.json", "json", lambda: as_json({"base_fingerprints": adapters.fingerprints(BASE)}),
        lambda path: adapters._check(BASE, path.parent, "x"), names_it=False,
    ),
    "config of a model": Kind(
        "config.json", "json", file_of("specbench", "models", "configs", "tiny.json"), read_config
    ),
    "config of a head": Kind("config.json", "json", head_config, read_head_config, names_it=False),
    "record of a copy": Kind(
        copies.RECORD, "json",
        lambda: as_json({"files": {"weights.gguf": {"bytes": 9, "mtime_ns": 1 << 60, "sha256": "0f" * 32}}}),
        copies.read_record,
    ),
    "weights of a head": Kind(
        "model.safetensors", "binary", head_weights, read_head_weights, names_it=False
    ),
    "answers": Kind("answers.jsonl", "lines", lambda: as_lines(TEXT, TEXT), lambda path: answers.read(path.parent)),
    "how answers were made": Kind(
        "answers.json", "json", lambda: as_json(MADE),
        lambda path: validate(answers._Header, read_json_object(path, "x"), path, "x"),
    ),
    "own answers": Kind(
        "0000000.jsonl", "lines", lambda: as_lines({"id": "x/0", "answer": [4, 5]}, {"id": "x/1", "answer": [6]}),
        lambda path: list(on_policy._read(path)),
    ),
    "text to rate": Kind("x.txt", "text", lambda: "Ä text.\n".encode(), perplexity.read_passage),
    "given answers": Kind(
        "mine.jsonl", "lines", lambda: as_lines(*GIVEN), lambda path: given.read_given(path, chat=True)
    ),
    "settings of a training": Kind(
        "options.json", "json", lambda: as_json({"lr": 0.1, "seed": 0}), same_settings
    ),
    "figures of a training": Kind(
        "before.json", "json", lambda: as_json(Held(8, 64, 32, 8, 5, 0.9).figures()),
        lambda path: validate(Figures, read_json_object(path, "x"), path, "x"),
    ),
    "trajectories": Kind(
        trajectory.HEADER, "json", lambda: as_json(asdict(HEADER)), lambda path: trajectory.read_header(path.parent)
    ),
    "tree of msn": Kind("tree.json", "json", lambda: as_json([[0], [1], [0, 0]]), lambda path: TREE.named(str(path))),
    "tree of recycling": Kind(
        "tree.json", "json", lambda: as_json([[0], [1], [0, 0]]), lambda path: RECYCLED.named(str(path))
    ),
    "corpus of sam": Kind("corpus.jsonl", "lines", lambda: as_lines({"text": "a b"}, {"text": "ö", "id": 3}), corpus),
    "shard": Kind("trajectories-00000.parquet", "binary", shard, read_shard),
    "run": Kind("run.json", "json", of_a_run(runs.RUN), runs.alongside(run_config)),
    "requests": Kind(
        "requests.jsonl", "lines", two_requests(), runs.alongside(runs.all_requests, runs.RUN),
        names_it=False,
    ),
    "summary": Kind(
        "summary.json", "json", of_a_run(runs.SUMMARY), runs.alongside(runs.full_summary, runs.RUN)
    ),
    "bandwidth": Kind(
        runs.BANDWIDTH.name, "json", runs.memory,
        runs.alongside(runs.bandwidth, runs.RUN, runs.REQUESTS),
    ),
    "watch": Kind(
        runs.WATCH.name, "json", runs.watch,
        runs.alongside(runs.watched, runs.RUN, runs.REQUESTS),
    ),
    "verdicts": Kind(VERDICTS, "lines", of_a_run(VERDICTS), lambda path: read_scores(path.parent)),
    "likelihoods": Kind(LIKELIHOODS, "lines", likelihoods, lambda path: read_likelihoods(path.parent)),
    "branches": Kind(BRANCHES, "lines", branches, lambda path: read_branches(path.parent)),
    "quality": Kind("base.json", "json", quality, two_qualities),
    "judgments": Kind(
        JUDGMENTS, "lines", of_a_run(JUDGMENTS), runs.alongside(runs.judged, runs.RUN)
    ),
    "projection": Kind(
        runs.PROJECTION, "json", of_a_run(runs.PROJECTION),
        runs.alongside(runs.projected, runs.RUN),
    ),
    "folder of a run": Kind(
        "files", "lines", lambda: runs.in_one(runs.a_run()), partial(runs.read_all, finished=True)
    ),
    "folder of an unfinished run": Kind(
        "files", "lines", lambda: runs.in_one(runs.a_run()), partial(runs.read_all, finished=False)
    ),
    "folder of a sweep": Kind(
        "files", "lines", lambda: runs.in_one(runs.a_sweep()), runs.read_sweep_all
    ),
}  # fmt: skip
