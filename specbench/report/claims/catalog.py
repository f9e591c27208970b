"""Published speedups as printed (``claims.toml``), and what a GPU's bandwidth allows their baselines.

Figures are decimals and keep the digits of the publication: 1.50 says more than 1.5.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from specbench.common import toml, validate
from specbench.hardware import gpus
from specbench.results import Record

#: Bytes of a weight in bf16 and fp16, which is what the publications ran in.
BYTES_PER_WEIGHT = 2.0

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


class Catalog(Record):
    """All of ``claims.toml``.

    ``parameters`` are weights that a token reads, in elements, by model; ``gpus`` the boards that a publication may
    mean by a GPU's name, slowest memory first.
    """

    claims: tuple[Claim, ...]
    parameters: dict[str, PositiveInt]
    gpus: dict[str, tuple[str, ...]]

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

    A baseline far below it waits for kernels to be launched and not for memory: more rows in such a step are nearly
    free.
    """
    bound = gpu.bandwidth_gb_s * 1e9 / (parameters * bytes_per_weight)
    share = None if claim.baseline_tok_s is None else float(claim.baseline_tok_s) / bound
    return Bandwidth(tok_s=bound, share=share)


def read(text: str) -> Catalog:
    """A catalog of claims from TOML, laid out as ``claims.toml``; UsageError for another layout."""
    # Floats as written: a float would forget the last zero of 1.50.
    data = toml.parse(text, "claims", _TODO, parse_float=Decimal)
    rows = [_flat(table, row) for table in data.pop("table", []) for row in table["claim"]]
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
