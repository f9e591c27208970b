"""Rows of other engines in a run: in one table with ours, and where one fails, marked and alone in that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.engines import AtAnyPrecision, failing
from support.wording import wording

from specbench.analysis.read import read_run, read_whole
from specbench.backends import catalog
from specbench.results.summary_schema import MethodSummary

PROMPTS = 4
TINY = ("run", "--model", "config:tiny", "--max-new-tokens", 12, "--limit", PROMPTS, "--no-score")


def rows_of(folder: Path) -> dict[str, MethodSummary]:
    return {row.method: row for row in read_run(folder).summary.rows}


@pytest.fixture(scope="module")
def finished(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("engines")
    result = cli.ok(*TINY, "--method", "pld,hf:ar,hf:pld", "--set", "hf:pld.num-tokens=4", "--out", out)
    (folder,) = out.iterdir()
    return result, folder


def test_they_are_rows_of_one_run_with_the_same_prompts_ids_and_definitions(finished: tuple[Any, Path]) -> None:
    _, folder = finished
    rows = rows_of(folder)
    assert [*rows] == ["ar", "pld", "hf:ar", "hf:pld"]
    read = read_whole(folder)
    answers = {(r.method, r.prompt_id): r.output_ids for r in read.records}
    for (_, prompt), ids in answers.items():
        assert ids == answers["ar", prompt], "the same weights, greedy, in float32"
    assert all(r.decode_s > 0.1 * r.latency_s for r in read.records), "eleven of twelve tokens come after the first"
    for row in rows.values():
        assert row.lossless is not None
        assert row.lossless.verdict == "exact"
    assert rows["hf:ar"].tokens_per_forward == 1
    assert rows["hf:pld"].rows_per_step is not None
    assert rows["hf:pld"].rows_per_step > 1, "it drafts, whether a random model takes it or not"


def test_speculation_is_held_against_the_same_engines_plain_decoding(finished: tuple[Any, Path]) -> None:
    rows = rows_of(finished[1])
    other = rows["hf:pld"].other
    assert other is not None
    assert other.over_own_ar is not None
    assert other.over_own_ar.of == "hf:ar"
    assert other.over_own_ar.lossless is not None
    assert other.over_own_ar.lossless.exact == PROMPTS
    plain, over_ar = rows["hf:ar"].speedup, rows["hf:pld"].speedup
    assert plain is not None
    assert over_ar is not None
    assert other.over_own_ar.speedup is not None
    assert other.over_own_ar.speedup.value == pytest.approx(over_ar.value / plain.value)
    assert rows["hf:ar"].other is not None
    assert rows["hf:ar"].other.over_own_ar is None


def test_what_an_engine_is_stands_in_the_run(finished: tuple[Any, Path]) -> None:
    _, folder = finished
    found = json.loads((folder / "engines.json").read_text())
    assert found["failed"] == {}
    pld = found["rows"]["hf:pld"]
    assert (pld["engine"], pld["how"], pld["counts"], pld["dtype"]) == ("hf", "in process", "forwards", "float32")
    assert pld["command"] == ["max_matching_ngram_size=2", "prompt_lookup_num_tokens=4"]
    run = json.loads((folder / "run.json").read_text())
    assert pld["weights"]["fingerprint"] == run["model"]["fingerprint"]
    assert [spec.get("engine") for spec in run["methods"]] == [None, None, "hf", "hf"]
    assert run["methods"][-1]["options"]["num_tokens"] == 4


def test_a_run_that_is_done_starts_no_engine(cli: Any, finished: tuple[Any, Path], monkeypatch: Any) -> None:
    _, folder = finished
    monkeypatch.setattr(catalog, "engine", lambda name: failing("start", how=pytest.fail))
    result = cli.ok(*TINY, "--method", "pld,hf:ar,hf:pld", "--set", "hf:pld.num-tokens=4", "--out", folder.parent)
    assert wording(result.err)


@pytest.mark.parametrize("where", ["installed", "start", "asked", "third"])
def test_an_engine_that_fails_is_named_and_marked_and_the_others_go_on(
    cli: Any, tmp_path: Path, monkeypatch: Any, where: str
) -> None:
    monkeypatch.setattr(catalog, "engine", lambda name: failing(where))
    result = cli(*TINY, "--method", "pld,hf:ar", "--out", tmp_path)
    assert result.code == 7
    assert result.error.startswith("error: hf:ar: it ")
    assert result.error.count("hf:ar") == 1
    (folder,) = tmp_path.iterdir()
    rows = rows_of(folder)
    assert [rows[label].requests for label in ("ar", "pld")] == [PROMPTS, PROMPTS]
    assert rows["hf:ar"].requests == (2 if where == "third" else 0)
    assert rows["hf:ar"].failed.startswith("it ")
    assert [row.failed for row in rows.values()].count("") == 2
    assert read_whole(folder).complete
    shown = cli.ok("show", folder)
    assert wording.sentences(shown.out)
    assert "failed" in shown.out


def test_a_run_with_a_failed_row_is_measured_anew(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """What failed would else be measured at another time than the others."""
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "engine", lambda name: failing("start"))
        assert cli(*TINY, "--method", "ar,hf:ar", "--out", tmp_path).code == 7
    cli.ok(*TINY, "--method", "ar,hf:ar", "--out", tmp_path)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    assert rows_of(folders[-1])["hf:ar"].requests == PROMPTS


@pytest.mark.parametrize(
    "argv",
    [
        ("--method", "hf:pdl"),
        ("--method", "vlm:ar"),
        ("--method", "hf:ar", "--concurrency", 2),
        ("--method", "hf:pld", "--set", "hf:pld.n=3"),
        ("--method", "hf:pld", "--set", "hf:pld.num_tokens=0"),
        ("--method", "hf:ar", "--backend-url", "hf=http://h"),
        ("--method", "hf:ar", "--backend-url", "hf"),
        ("--method", "jacobi", "--backend-url", "vllm=http://h"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(cli: Any, tmp_path: Path, argv: Any) -> None:
    found = cli(*TINY, *argv, "--out", tmp_path)
    assert found.code == 2
    assert wording(found.error)
    assert not [*tmp_path.iterdir()]


def test_check_lossless_grades_them_and_tests_what_they_sample(cli: Any) -> None:
    asked = ("--model", "config:tiny", "--method", "hf:ar,hf:pld", "--limit", 2, "--max-new-tokens", 8)
    result = cli.ok("check-lossless", *asked, "--temperatures", "0,0.02", "--seeds", "0:5", "--json")
    found = json.loads(result.out)
    assert found["ok"]
    assert [(row["method"], row["exact"]) for row in found["rows"] if row["method"] != "ar"] == [
        ("hf:ar", 2),
        ("hf:pld", 2),
    ]
    pairs = [(each["method"], each["against"]) for each in found["distributions"]]
    assert sorted(pairs) == [("hf:ar", "ar"), ("hf:pld", "ar"), ("hf:pld", "hf:ar")]
    assert all(each["answers"] == 2 * 2 * 6 for each in found["distributions"])


def test_a_row_of_another_precision_is_held_against_its_own_kind_alone(
    cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(catalog, "engine", lambda name: AtAnyPrecision)
    half = [arg for mode in ("ar", "pld") for arg in ("--set", f"hf:{mode}.dtype=bfloat16")]
    result = cli.ok(*TINY, "--method", "ar,hf:ar,hf:pld", *half, "--out", tmp_path)
    (folder,) = tmp_path.iterdir()
    rows = rows_of(folder)
    assert rows["hf:ar"].lossless is None
    assert rows["hf:pld"].lossless is None, "other weights have other answers by right"
    other = rows["hf:pld"].other
    assert other is not None
    assert other.over_own_ar is not None
    assert other.over_own_ar.lossless is not None
    assert other.over_own_ar.lossless.exact == PROMPTS
    assert read_run(folder).summary.fastest is None
    assert "is our ar fair?" not in result.out
    assert "bfloat16" in result.out


def test_a_row_that_failed_stays_so_when_the_interrupted_run_goes_on(
    cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Its answers would be of another time than those with them."""
    asked = (*TINY, "--method", "ar,hf:ar", "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "engine", lambda name: failing("third"))
        assert cli(*asked).code == 7
    (folder,) = tmp_path.iterdir()
    for name in ("DONE", "summary.json"):
        (folder / name).unlink()
    lines = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(lines[:-1]))
    result = cli(*asked)
    assert result.code == 7
    assert wording.sentences(result.err)
    assert [*tmp_path.iterdir()] == [folder]
    rows = rows_of(folder)
    assert rows["ar"].requests == PROMPTS
    assert rows["hf:ar"].requests == sum(json.loads(line)["method"] == "hf:ar" for line in lines[:-1])
    assert rows["hf:ar"].failed == "it broke (third)"
