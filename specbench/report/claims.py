"""Published speedups as printed (``claims.toml``), and what a GPU's bandwidth allows their baselines. No torch.

Figures are decimals and keep the digits of the publication: 1.50 says more than 1.5, and a speedup is compared with its
own tok/s to within half a unit of the last digit of each.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, model_validator

from specbench.common import UsageError, toml
from specbench.common.reading import damaged, fitted
from specbench.hardware import gpus
from specbench.results.schema import Record

#: Bytes of a weight in bf16 and fp16, which is what the publications ran in.
BYTES_PER_WEIGHT = 2.0

_URL = re.compile(r"https://[^\s/]+\.[^\s/.]+(/\S*)?")

_TODO = "mend it or install specbench-llm again"

#: Between the caveats of a row: its table's first, then its own.
BETWEEN = "; "


class Claim(Record):
    """One published row. Whatever the publication does not give is None or empty."""

    id: str = Field(description="unique: its table, then what tells it apart there")
    paper: str
    source: str = Field(min_length=1, description="where in the publication: table, section, post or repository")
    url: str = Field(description="https address of the publication, or of the page that has the row")
    method: str = Field(description="the name it has here, or else the publication's")
    setting: str = ""
    model: str = ""
    gpu: str = Field(default="", description="as the publication names it")
    task: str = Field(default="", description="the name it has here, or else the publication's; a part after a colon")
    options: dict[str, bool | int | Decimal | str] = Field(
        default_factory=dict, description="of our method of that name, as far as the publication tells them"
    )
    trained_for: str = Field(default="", description="method whose training the weights had; empty: none is known of")
    batch: PositiveInt = Field(default=1, description="sequences that are decoded together")
    temperature: Decimal | None = Field(default=None, ge=0, description="None: not told")
    speedup: Decimal | None = Field(default=None, gt=0, description="over the publication's own baseline")
    tpf: Decimal | None = Field(default=None, gt=0, description="tokens a forward, accepted length, as counted there")
    tok_s: Decimal | None = Field(default=None, gt=0)
    baseline_tok_s: Decimal | None = Field(default=None, gt=0)
    accuracy: Decimal | None = Field(default=None, ge=0)
    metric: str = Field(default="", description="what accuracy is")
    also: dict[str, Decimal] = Field(
        default_factory=dict, description="further figures by name; a method's own by those of its [measures]"
    )
    tpf_is: str = Field(default="", description="how TPF is counted there, where it is known and not as here")
    caveat: str = ""
    note: str = Field(default="", description="where the publication disagrees with itself")

    @model_validator(mode="after")
    def _says_something_and_agrees_with_itself(self) -> Claim:
        if self.speedup is None and self.tpf is None and self.tok_s is None and not self.also:
            raise ValueError(f"{self.id} claims no speedup, no TPF, no tok/s and nothing else")
        if not _URL.fullmatch(self.url):
            raise ValueError(f"{self.id}: {self.url!r} is no https address")
        if (self.accuracy is None) != (not self.metric):
            raise ValueError(f"{self.id}: accuracy and metric go together")
        if not self.note and not consistent(self):
            raise ValueError(
                f"{self.id}: speedup {self.speedup} is not {self.tok_s} / {self.baseline_tok_s}; say so in a note"
            )
        return self


class Catalog(Record):
    """All of ``claims.toml``.

    Attributes:
        claims: in the file's order.
        parameters: weights that a token reads, in elements, of each model whose size is known.
        gpus: boards that a publication may mean by a GPU's name, as :data:`specbench.hardware.gpus.GPUS` names them,
            slowest memory first.
    """

    claims: tuple[Claim, ...]
    parameters: dict[str, PositiveInt]
    gpus: dict[str, tuple[str, ...]]

    @model_validator(mode="after")
    def _names_are_unique_and_known(self) -> Catalog:
        twice = [id_ for id_, times in Counter(claim.id for claim in self.claims).items() if times > 1]
        if twice:
            raise ValueError(f"claims given twice: {', '.join(twice)}")
        for name, boards in self.gpus.items():
            try:
                speeds = [gpus.find(board).bandwidth_gb_s for board in boards]
            except UsageError as error:
                raise ValueError(str(error)) from None
            if not speeds or speeds != sorted(speeds):
                raise ValueError(f"{name}: boards are to be given, slowest memory first")
        return self

    def bandwidth(self, claim: Claim) -> tuple[Bandwidth, ...]:
        """What :func:`over_bandwidth` says of a claim on each board it may mean, the slowest first.

        Empty where model size or GPU is not known. At times the publication's own figures tell which board it was not.
        """
        parameters = self.parameters.get(claim.model)
        if parameters is None:
            return ()
        boards = [gpus.find(board) for board in self.gpus.get(claim.gpu, ())]
        return tuple(over_bandwidth(claim, parameters, BYTES_PER_WEIGHT, board) for board in boards)


class Bandwidth(Record):
    """The fastest that one-token steps can be on a GPU, and how near a publication's baseline came to it."""

    tok_s: float = Field(gt=0, description="tokens per second if weights arrive at the datasheet's bandwidth")
    share: float | None = Field(description="the baseline's tok/s over that; None where no baseline is given")


def over_bandwidth(claim: Claim, parameters: int, bytes_per_weight: float, gpu: gpus.Gpu) -> Bandwidth:
    """AR tok/s that the GPU's bandwidth allows: weights read once a token, KV cache and activations left out.

    A baseline far below it waits for kernels to be launched and not for memory. A method that puts more rows into such
    a step gets them nearly free, and would gain less over a faster baseline.

    Args:
        claim: whose baseline is held against it.
        parameters: weights that a token reads, in elements.
        bytes_per_weight: 2 for bf16 and fp16.
        gpu: its datasheet figures.
    """
    bound = gpu.bandwidth_gb_s * 1e9 / (parameters * bytes_per_weight)
    share = None if claim.baseline_tok_s is None else float(claim.baseline_tok_s) / bound
    return Bandwidth(tok_s=bound, share=share)


def consistent(claim: Claim) -> bool:
    """Whether the speedup is the ratio of the two tok/s as far as their printed digits tell; true where one lacks."""
    if claim.speedup is None or claim.tok_s is None or claim.baseline_tok_s is None:
        return True
    ours, theirs = (half_unit(claim.tok_s), half_unit(claim.baseline_tok_s))
    least = (claim.tok_s - ours) / (claim.baseline_tok_s + theirs)
    most = (claim.tok_s + ours) / (claim.baseline_tok_s - theirs)
    return least <= claim.speedup + half_unit(claim.speedup) and most >= claim.speedup - half_unit(claim.speedup)


def read(text: str) -> Catalog:
    """A catalog of claims from TOML, laid out as ``claims.toml``.

    Raises:
        UsageError: no TOML; an unknown or missing field; a row twice; a speedup that contradicts its own tok/s and has
            no note.
    """
    # Floats as written: a float would forget the last zero of 1.50.
    data = toml.parse(text, "claims", _TODO, parse_float=Decimal)
    tables = data.pop("table", [])
    if not isinstance(tables, list):
        raise damaged("claims", "field 'table': not a list of [[table]]", _TODO)
    rows = [_flat(table, row) for table in tables for row in _claims_of(table)]
    return fitted(Catalog, {"parameters": {}, "gpus": {}, **data, "claims": rows}, "claims", _TODO)


@cache
def claims() -> Catalog:
    """The catalog that comes with specbench."""
    return read(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))


def _claims_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table, checked as far as their ids are made of them."""
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise damaged("claims", "a table lacks 'name'", _TODO)
    rows = table.get("claim")
    if not isinstance(rows, list):
        raise damaged("claims", f"table {table['name']} lacks 'claim'", _TODO)
    for row in rows:
        if not isinstance(row, dict) or "method" not in row:
            raise damaged("claims", f"a row of table {table['name']} lacks 'method'", _TODO)
        for field in ("method", "setting", "model", "task", "caveat"):
            if not all(isinstance(each.get(field, ""), str) for each in (table, row)):
                raise damaged("claims", f"table {table['name']}: field '{field}' is no text", _TODO)
    return rows


def _flat(table: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    shared = {field: value for field, value in table.items() if field not in ("name", "claim")}
    apart = [row["method"], *(row.get(field, "") for field in ("setting", "model", "task"))]
    flat = {**shared, **row, "id": f"{table['name']}/{_slug(*apart)}"}
    if flat.get("accuracy") is None:
        flat.pop("metric", None)
    if said := [words["caveat"] for words in (shared, row) if "caveat" in words]:
        flat["caveat"] = BETWEEN.join(said)
    return flat


def _slug(*parts: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")


def half_unit(figure: Decimal) -> Decimal:
    """Half a unit of the last digit that is printed."""
    exponent = figure.as_tuple().exponent
    assert isinstance(exponent, int)  # finite: it was validated
    return Decimal(1).scaleb(exponent) / 2
