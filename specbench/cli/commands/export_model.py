"""``specbench export-model``: write a model's weights for llama.cpp, vLLM and transformers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer
from pydantic import field_validator

from specbench.cli import options, output
from specbench.common import UsageError, flag, safe_name, unknown_name
from specbench.models import DTYPES, EXPORTED
from specbench.planning import Loading, Noting


class ExportModelPlan(Noting, Loading):
    """Options of ``export-model``."""

    model: str = flag(..., "MODEL", help="Alias, hub id, folder, .gguf file or config:NAME.")
    to: Literal["gguf", "hf", "openvino"] = flag(
        ...,
        "--to",
        help="gguf: a file for llama.cpp; hf: a folder for vLLM and transformers; openvino: one for OpenVINO.",
    )
    dtype: str = flag("float32", "--dtype", help="float32 or bfloat16.")
    vocabulary: Literal["tokenizer", "placeholders"] | None = flag(
        None,
        "--vocabulary",
        help="For gguf: the tokenizer, or placeholders without stop tokens, for ids in and ids out.",
        metavar="S",
        shown="tokenizer",
    )
    out: Path | None = flag(None, "--out", help="File or folder; must not exist.", shown="exported/MODEL-DTYPE[.gguf]")

    @field_validator("dtype")
    @classmethod
    def _exported(cls, dtype: str) -> str:
        if DTYPES.get(dtype) not in EXPORTED:
            raise unknown_name("precision", dtype, EXPORTED, "of an export")
        return DTYPES[dtype]

    def into(self, name: str) -> Path:
        """The default file or folder for a model of this name."""
        return self.out or Path("exported", safe_name(f"{name}-{self.dtype}") + (".gguf" if self.to == "gguf" else ""))


@options.takes(ExportModelPlan, shown=("model", "to", "dtype", "vocabulary", "out"), without=("device", "data_dir"))
def export_model(plan: ExportModelPlan, as_json: bool = options.JSON) -> None:
    """Write a model's weights for other engines, unchanged, and compare the copy with the model bit for bit.

    For openvino, tools in the environment of make engines convert a copy. An adapter is merged into its base. In a
    gguf, norms and biases are always float32.
    """
    from specbench.common import check_can_make
    from specbench.models import names
    from specbench.runner import notes_of, printing_to

    if plan.vocabulary is not None and plan.to != "gguf":
        raise UsageError("--vocabulary needs --to gguf; a folder keeps the model's own tokenizer")
    if plan.quantize:
        raise UsageError("cannot export weights of --quantize; remove it")
    into = plan.into(names.resolve(plan.model).name)
    if into.exists() or into.is_symlink():
        raise UsageError(f"cannot write {into}: it exists; choose another --out or move it away")
    check_can_make(into.parent)
    say = printing_to(notes_of(plan))
    from specbench.models import export_gguf, export_hf
    from specbench.runner import load_model

    loaded = load_model(plan.model_copy(update={"device": "cpu"}), say)
    say(f"writing {into} …")
    if plan.to == "gguf":
        made = export_gguf(loaded, into, dtype=plan.dtype, vocabulary=plan.vocabulary or "tokenizer")
    elif plan.to == "openvino":
        from specbench.backends import export_openvino

        made, verified = export_openvino(loaded, into, dtype=plan.dtype)
        if not verified:
            say("unverified: not all of the model's tensors are constants of the converted one")
    else:
        made = export_hf(loaded, into, dtype=plan.dtype)
    figures = {**asdict(made), "path": str(made.path)}
    if as_json:
        output.emit_json(figures)
        return
    # Not through the console, which would wrap paths and hashes that users copy.
    typer.echo(
        "\n".join(
            f"{name:<12}{value:,}" if name == "bytes" else f"{name:<12}{value}" for name, value in figures.items()
        )
    )
