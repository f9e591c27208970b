"""Claims: published speedups as printed (``claims.toml``), and what each is worth beside measured rows. No torch.

Figures are decimals and keep the digits of the publication: 1.50 says more than 1.5, and a speedup is compared with its
own tok/s to within half a unit of the last digit of each.

A speedup is TPF × step ratio, and the step ratio has AR's step in it: over a baseline that waits for its own launches a
forward of many rows looks free. So a claim is shown in three ways: as printed; its printed tok/s over the AR that the
GPU's bandwidth allows, which is hard on a method whose own engine waited too; and its TPF with both at the bound of the
roofline, which is the most that any engine could make of it. A strong engine's speedup lies between the last two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, ValidationError, model_validator

from specbench.common import UsageError, toml
from specbench.common.errors import first_fault
from specbench.hardware import ModelShape, gpus
from specbench.hardware.profile import datasheet
from specbench.hardware.roofline import bound_s, step_cost
from specbench.models import names
from specbench.results import RunConfig
from specbench.results.schema import Record

#: Bytes of a weight in bf16 and fp16, which is what the publications ran in.
BYTES_PER_WEIGHT = 2.0


class Claim(Record):
    """One published row. Whatever the publication does not give is None or empty."""

    id: str = Field(description="unique: its table, then what tells it apart there")
    paper: str
    source: str = Field(description="where in the publication: table, section, post or repository")
    method: str = Field(description="the name it has here, or else the publication's")
    setting: str = ""
    model: str = ""
    gpu: str = Field(default="", description="as the publication names it")
    task: str = Field(default="", description="the name it has here, or else the publication's; a part after a colon")
    speedup: Decimal | None = Field(default=None, gt=0, description="over the publication's own baseline")
    tpf: Decimal | None = Field(default=None, gt=0, description="tokens a forward, accepted length, as counted there")
    tok_s: Decimal | None = Field(default=None, gt=0)
    baseline_tok_s: Decimal | None = Field(default=None, gt=0)
    accuracy: Decimal | None = Field(default=None, ge=0)
    metric: str = Field(default="", description="what accuracy is")
    tpf_is: str = Field(default="", description="how TPF is counted there, where it is known and not as here")
    caveat: str = ""
    note: str = Field(default="", description="where the publication disagrees with itself")

    @model_validator(mode="after")
    def _says_something_and_agrees_with_itself(self) -> Claim:
        if self.speedup is None and self.tpf is None and self.tok_s is None:
            raise ValueError(f"{self.id} claims no speedup, no TPF and no tok/s")
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
            speeds = [gpus.find(board).bandwidth_gb_s for board in boards]
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
    ours, theirs = (_half_unit(claim.tok_s), _half_unit(claim.baseline_tok_s))
    least = (claim.tok_s - ours) / (claim.baseline_tok_s + theirs)
    most = (claim.tok_s + ours) / (claim.baseline_tok_s - theirs)
    return least <= claim.speedup + _half_unit(claim.speedup) and most >= claim.speedup - _half_unit(claim.speedup)


def read(text: str) -> Catalog:
    """A catalog of claims from TOML, laid out as ``claims.toml``.

    Raises:
        UsageError: no TOML; an unknown or missing field; a row twice; a speedup that contradicts its own tok/s and has
            no note.
    """
    try:
        # Floats as written: a float would forget the last zero of 1.50.
        data = toml.loads(text, parse_float=Decimal)
        rows = [_flat(table, row) for table in data.pop("table", []) for row in table["claim"]]
        return Catalog.model_validate({"parameters": {}, "gpus": {}, **data, "claims": rows})
    except ValidationError as error:
        raise UsageError(f"claims: {first_fault(error)}") from error
    except KeyError as error:
        raise UsageError(f"claims: a table or a row lacks {error}") from error
    except toml.TOMLDecodeError as error:
        raise UsageError(f"claims: {error}") from error


@cache
def claims() -> Catalog:
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


def _half_unit(figure: Decimal) -> Decimal:
    exponent = figure.as_tuple().exponent
    assert isinstance(exponent, int)  # finite: it was validated
    return Decimal(1).scaleb(exponent) / 2


@dataclass(frozen=True)
class Range:
    """From the slowest to the fastest board that a publication may mean."""

    low: float
    high: float


@dataclass(frozen=True)
class Worth:
    """What a claim comes to; None where the publication does not give what it takes.

    Attributes:
        step_ratio: its speedup over its TPF: AR's step time over the method's, as measured there.
        baseline_share: its AR's tok/s over what the bandwidth allows.
        over_bound: its tok/s over the AR that the bandwidth allows.
    """

    step_ratio: float | None
    baseline_share: Range | None
    over_bound: Range | None


def worth(catalog: Catalog, claim: Claim) -> Worth:
    """What a claim comes to by its own figures and the datasheet of its GPU."""
    bounds = [bandwidth.tok_s for bandwidth in catalog.bandwidth(claim)]
    baseline = _divided(claim.baseline_tok_s)
    speed = _divided(claim.tok_s)
    if speed is None and baseline is not None and claim.speedup is not None:
        speed = baseline * float(claim.speedup)
    ratio = float(claim.speedup / claim.tpf) if claim.speedup is not None and claim.tpf is not None else None
    return Worth(ratio, _over(baseline, bounds), _over(speed, bounds))


def at_the_bound(catalog: Catalog, claim: Claim, tpf: float, rows: float) -> Range | None:
    """The speedup if AR and the method both ran at the roofline: TPF × (AR's bound over that of ``rows`` rows).

    Weights are read once a step and multiplied once a row; cache and attention are left out, and so is drafting.

    Args:
        catalog: knows the size of the claim's model and the boards of its GPU.
        claim: whose model and GPU are meant.
        tpf: tokens per forward.
        rows: of the method's step.

    Returns:
        None where model size, GPU or its peak is not known.
    """
    parameters = catalog.parameters.get(claim.model)
    if parameters is None:
        return None
    shape = ModelShape(
        matmul=parameters, head=0, embedding=0, embedding_width=0, tied=False, small=0, attention=(),
        weight_bytes=BYTES_PER_WEIGHT, cache_bytes=BYTES_PER_WEIGHT,
    )  # fmt: skip
    found = []
    for board in catalog.gpus.get(claim.gpu, ()):
        ceilings = datasheet(gpus.find(board), "bfloat16") or datasheet(gpus.find(board), "float16")
        if ceilings is not None:
            one, many = (bound_s(step_cost(shape, count, 0), ceilings) for count in (1, max(1, round(rows))))
            found.append(tpf * one / many)
    return Range(min(found), max(found)) if found else None


@dataclass(frozen=True)
class Setting:
    """What a measured row was measured on.

    Attributes:
        device: as the driver names it.
        memory_bytes: of it.
    """

    config: RunConfig
    device: str
    memory_bytes: int | None


def differences(catalog: Catalog, claim: Claim, mine: Setting) -> dict[str, str]:
    """In what a claim and a measured row are not alike: model, task, GPU -> words; empty where all three agree.

    What the publication does not say counts as a difference: rows are alike only where that is known.
    """
    model, task = mine.config.model, mine.config.task
    found = {}
    if not _same_model(claim.model, model.name):
        found["model"] = f"{model.name}, not {claim.model or 'told'}"
    elif model.dummy:
        found["model"] = "dummy weights"
    if claim.task.partition(":")[0] != task.name:
        found["task"] = f"{task.name}, not {claim.task or 'told'}"
    gpu = gpus.identify(mine.device, mine.memory_bytes)
    if gpu is None or gpu.name not in catalog.gpus.get(claim.gpu, ()):
        found["GPU"] = f"{mine.device}, not {claim.gpu or 'told'}"
    return found


def nearest(catalog: Catalog, claim: Claim, settings: Sequence[Setting]) -> int:
    """Index of the setting that differs in the least from a claim; the last of several, which is the newest."""
    counts = [len(differences(catalog, claim, setting)) for setting in settings]
    return max(at for at, count in enumerate(counts) if count == min(counts))


def same_tpf(claim: Claim, low: float, high: float) -> str:
    """Whether a measured TPF, with its interval, is the one printed, as far as the printed digits tell."""
    if claim.tpf is None:
        return ""
    exponent = claim.tpf.as_tuple().exponent
    half = 10.0 ** int(exponent) / 2 if isinstance(exponent, int) else 0.0
    printed = float(claim.tpf)
    if printed + half < low:
        return "higher here"
    return "lower here" if printed - half > high else "the same"


def _same_model(published: str, name: str) -> bool:
    """Whether a model of ours is the one a publication names: by its own name, or its alias's base."""
    alias: Mapping[str, object] = names.aliases().get(name, {})
    ours = {_letters(name.removeprefix("config:")), _letters(str(alias.get("base", "")).rpartition("/")[2])}
    return bool(published) and any(_letters(published) in (mine, mine.removesuffix("instruct")) for mine in ours)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def _divided(figure: object) -> float | None:
    return None if figure is None else float(str(figure))


def _over(figure: float | None, bounds: Sequence[float]) -> Range | None:
    if figure is None or not bounds:
        return None
    shares = [figure / bound for bound in bounds]
    return Range(min(shares), max(shares))


#: Between the caveats of a row: its table's first, then its own.
BETWEEN = "; "
