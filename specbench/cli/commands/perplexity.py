"""``specbench perplexity``: how probable a given text is to a model, and to what it was made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli import options, output
from specbench.common import flag
from specbench.planning import Loading, Noting

if TYPE_CHECKING:
    from specbench.models import LoadedModel
    from specbench.quality import Passage, ScoredPassage

#: Figures of the table, with their titles and formats.
_ROWS = (
    ("tokens rated", "tokens_rated", "{:,}"),
    ("nats a token", "nats_per_token", "{:.4f}"),
    ("perplexity", "perplexity", "{:.4g}"),
    ("perplexity a word", "perplexity_per_word", "{:.4g}"),
    ("perplexity a byte", "perplexity_per_byte", "{:.4f}"),
    ("bits a byte", "bits_per_byte", "{:.4f}"),
)


class PerplexityPlan(Noting, Loading):
    """What ``perplexity`` takes."""

    text: Path = flag(..., "--text", help="Text file in UTF-8.", exists="file")
    base: str = flag(
        "auto", "--base", help="A model to rate it by too; none. auto: what an adapter was made for.", metavar="MODEL"
    )
    context: int | None = flag(
        None, "--context", help="Tokens of a window.", shown="1024, or what the model takes", ge=1
    )
    stride: int | None = flag(None, "--stride", help="Tokens that a window rates.", shown="half of it", ge=1)
    tokens: Path | None = flag(None, "--tokens", help="Write the nats of each token there, as .jsonl.")


@options.takes(
    PerplexityPlan, shown=("text", "model", "base", "context", "stride", "tokens", "dtype", "device"),
    without=("data_dir",),
)  # fmt: skip
def perplexity(plan: PerplexityPlan, as_json: bool = options.JSON) -> None:
    """Rate a text: perplexity per token, word and byte, by windows that roll over it.

    Of an adapter, also by the model that it was made for.
    """
    from specbench.common import check_writable, write_text_atomic
    from specbench.models import names
    from specbench.runner import notes_of, printing_to

    base = names.base_of(plan.model) if plan.base == "auto" else None if plan.base == "none" else plan.base
    for name in (plan.model, *([base] if base else [])):
        names.resolve(name)
    if plan.tokens is not None:
        check_writable(plan.tokens.parent)
    say = printing_to(notes_of(plan))
    from specbench.common import progress_lines
    from specbench.quality import assert_windows, rate_text, read_passage
    from specbench.runner import load_model

    assert_windows(plan.context, plan.stride)
    passage = read_passage(plan.text)

    def rated(name: str) -> tuple[ScoredPassage, list[str]]:  # one model at a time is in memory
        revision = plan.revision if name == plan.model else None
        loaded = load_model(plan.model_copy(update={"model": name, "revision": revision}), say)
        found = rate_text(loaded, passage, plan.context, plan.stride, progress_lines(say, "tokens"))
        return found, [] if plan.tokens is None else _lines(found, loaded)

    both = [rated(name) for name in (plan.model, *([base] if base else []))]
    found = [each for each, _ in both]
    if plan.tokens is not None:
        write_text_atomic(plan.tokens, "".join(line for _, lines in both for line in lines))
    if as_json:
        about = {"text": passage.file, "sha256": passage.sha256, "bytes": passage.bytes, "words": passage.words}
        output.emit_json({**about, "models": [rated.figures() for rated in found]})
        return
    _print(passage, found)


def _lines(rated: ScoredPassage, loaded: LoadedModel) -> list[str]:
    """A line of JSON for each rated token, in the text's order."""
    first = len(rated.ids) - len(rated.nats)
    return [
        json.dumps({"model": rated.model, "at": at, "id": token, "token": loaded.decode([token]), "nats": nats}) + "\n"
        for at, (token, nats) in enumerate(zip(rated.ids[first:], rated.nats, strict=True), first)
    ]


def _print(passage: Passage, found: Sequence[ScoredPassage]) -> None:
    figures = [rated.figures() for rated in found]
    rows = [[title, *(_shown(each[name], form) for each in figures)] for title, name, form in _ROWS]
    console = output.stdout()
    console.print(output.table(["", *(each["model"] for each in figures)], rows))
    ways = dict.fromkeys(f"windows of {each.context} tokens, {each.stride} rated in each" for each in found)
    said = f"{passage.file}: {passage.words:,} words, {passage.bytes:,} bytes; {' and '.join(ways)}."
    console.print(f"\n{said}", markup=False)


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
