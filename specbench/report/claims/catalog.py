"""Published speedups as printed (``claims.toml``), and the AR speed that a GPU's bandwidth allows.

Figures are decimals that keep the printed digits: 1.50 is more precise than 1.5.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, field_validator

from specbench.analysis import PAPERS, UNLIKE
from specbench.common import UsageError, toml, validate
from specbench.hardware import gpus
from specbench.results import Record

#: Bytes of a weight in bf16 and fp16, the formats that the publications used.
BYTES_PER_WEIGHT = 2.0

_TODO = "fix it or install specbench-llm again"

#: Separator between the caveats of a row: first the table's, then the row's own.
BETWEEN = "; "


class Claim(Record):
    """One published row. Values that the publication does not give are None or empty."""

    id: str = Field(description="unique: name of its table, then method, setting, model and task")
    paper: str
    source: str = Field(min_length=1, description="place in the publication: table, section, post or repository")
    url: str = Field(description="https address of the publication, or of the page with the row")
    method: str = Field(description="specbench's name, otherwise the publication's")
    setting: str = ""
    model: str = ""
    gpu: str = Field(default="", description="name in the publication")
    task: str = Field(default="", description="specbench's name, otherwise the publication's; a subset after a colon")
    options: dict[str, bool | int | Decimal | str] = Field(
        default_factory=dict, description="options of specbench's method, as far as the publication gives them"
    )
    trained_for: str = Field(default="", description="method for which the weights were trained; empty: none known")
    batch: PositiveInt = Field(default=1, description="sequences decoded together")
    temperature: Decimal | None = Field(default=None, ge=0, description="None: not given")
    speedup: Decimal | None = Field(default=None, gt=0, description="over the publication's own baseline")
    tpf: Decimal | None = Field(
        default=None, gt=0, description="tokens per forward or accepted length, as counted in the publication"
    )
    tok_s: Decimal | None = Field(default=None, gt=0)
    baseline_tok_s: Decimal | None = Field(default=None, gt=0)
    accuracy: Decimal | None = Field(default=None, ge=0)
    metric: str = Field(default="", description="meaning of accuracy")
    also: dict[str, Decimal] = Field(
        default_factory=dict,
        description="further figures by name; a method's own figures have the names of its [measures]",
    )
    tpf_is: str = Field(default="unknown", description="how the publication counts TPF: a name of PAPERS or UNLIKE")
    caveat: str = ""
    note: str = Field(default="", description="contradictions within the publication")

    @field_validator("tpf_is")
    @classmethod
    def _defined(cls, name: str) -> str:
        if name not in {**PAPERS, **UNLIKE}:
            raise ValueError(f"tpf_is is one of {', '.join([*PAPERS, *UNLIKE])}")
        return name

    @property
    def counting(self) -> str:
        """How the publication counts TPF, in words."""
        return UNLIKE[self.tpf_is] if self.tpf_is in UNLIKE else PAPERS[self.tpf_is].words


class Catalog(Record):
    """The content of ``claims.toml``.

    ``parameters``: model -> weights that each token reads, in elements. ``gpus``: GPU name -> the boards that a
    publication may mean, slowest memory first.
    """

    claims: tuple[Claim, ...]
    parameters: dict[str, PositiveInt]
    gpus: dict[str, tuple[str, ...]]

    def bandwidth(self, claim: Claim) -> tuple[Bandwidth, ...]:
        """:func:`over_bandwidth` of a claim for each board that it may mean, the slowest first.

        Empty if model size or GPU is unknown. Sometimes the publication's own figures rule out a board.
        """
        parameters = self.parameters.get(claim.model)
        if parameters is None:
            return ()
        boards = [gpus.find(board) for board in self.gpus.get(claim.gpu, ())]
        return tuple(over_bandwidth(claim, parameters, BYTES_PER_WEIGHT, board) for board in boards)


class Bandwidth(Record):
    """The highest speed of one-token steps on a GPU, and the share of it that a publication's baseline reaches."""

    tok_s: float = Field(gt=0, description="tokens per second if weights are read at the datasheet's bandwidth")
    share: float | None = Field(description="the baseline's tok/s divided by that; None without a baseline")


def over_bandwidth(claim: Claim, parameters: int, bytes_per_weight: float, gpu: gpus.Gpu) -> Bandwidth:
    """AR tok/s that the GPU's bandwidth allows: weights read once per token, without KV cache and activations.

    A baseline far below it is limited by kernel launches instead of memory, so that more rows per step are nearly free.
    """
    bound = gpu.bandwidth_gb_s * 1e9 / (parameters * bytes_per_weight)
    share = None if claim.baseline_tok_s is None else float(claim.baseline_tok_s) / bound
    return Bandwidth(tok_s=bound, share=share)


def read(text: str) -> Catalog:
    """Parse a catalog of claims from TOML in the layout of ``claims.toml``; UsageError for another layout."""
    # Decimals, because a float would lose the last zero of 1.50.
    data = toml.parse(text, "claims", _TODO, parse_float=Decimal)
    try:
        rows = [_flat(table, row) for table in data.pop("table", []) for row in table["claim"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read claims: a table or a claim in it is not complete ({error}); {_TODO}") from error
    return validate(Catalog, {"parameters": {}, "gpus": {}, **data, "claims": rows}, "claims", _TODO)


@cache
def published_claims() -> Catalog:
    """The catalog that comes with specbench."""
    return read(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))


def _flat(table: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    shared = {field: value for field, value in table.items() if field not in ("name", "claim")}
    apart = [row["method"], *(row.get(field, "") for field in ("setting", "model", "task"))]
    flat = {**shared, **row, "id": f"{table['name']}/{_slug(*apart)}"}
    if flat.get("accuracy") is None:
        flat.pop("metric", None)
    if caveats := [words["caveat"] for words in (shared, row) if "caveat" in words]:
        flat["caveat"] = BETWEEN.join(caveats)
    return flat


def _slug(*parts: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")


def half_unit(figure: Decimal) -> Decimal:
    """Half a unit of the last printed digit."""
    exponent = figure.as_tuple().exponent
    assert isinstance(exponent, int)  # finite: it was validated
    return Decimal(1).scaleb(exponent) / 2
