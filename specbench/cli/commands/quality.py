"""``specbench quality``: accuracy of models on lm-eval's tasks, or the perplexity of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.quality import QualityPlan

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


@options.takes(
    QualityPlan,
    shown=(
        "models", "tasks", "include", "limit", "shots", "chat", "out", "text", "base", "context", "stride", "max_words",
        "tokens",
    ),
    without=("model", "data_dir"),
)  # fmt: skip
def quality(
    plan: QualityPlan,
    card: bool = typer.Option(
        False, "--card", help="Add the figures to the model card of the last MODEL, a trained folder."
    ),
    as_json: bool = options.JSON,
) -> None:
    """Measure accuracy on tasks of lm-evaluation-harness, or the perplexity of a text with --text.

    Weights are loaded as for decoding. A second model is compared with the first,
    document by document. With --text, an adapter is compared with its base.
    """
    from specbench.runner import notes_of, printing_to

    say = printing_to(notes_of(plan))
    if plan.text is not None:
        plan.check()
        if card:
            raise UsageError("--card needs figures of --tasks, not of --text; leave one of them out")
        _rate_text(plan, say, as_json)
        return
    if card:
        from specbench.training import check_card

        check_card(plan.models[-1])
    from specbench.analysis import quality_json as compared
    from specbench.quality import measure_quality

    found = measure_quality(plan, say)
    asked = [each.quality for each in found]
    if card:
        from specbench.training import put_on_card

        put_on_card(plan.models[-1], asked)
    if as_json:
        output.emit_json(
            {
                "models": [{"file": str(each.file), **each.quality.model_dump(mode="json")} for each in found],
                "differences": [compared(asked[0], other) for other in asked[1:]],
            }
        )
        return
    from specbench.report import quality_report, render_terminal

    output.stdout().print(render_terminal(quality_report(asked)))
    for each in found:
        say(f"written: {each.file}")


def _rate_text(plan: QualityPlan, say: Callable[[str], None], as_json: bool) -> None:
    """Print the perplexity of a text under each model, in rolling windows."""
    from specbench.common import check_writable, progress_lines, write_text_atomic
    from specbench.models import names
    from specbench.quality import assert_windows, rate_text, read_passage
    from specbench.runner import load_model

    bases = [names.base_of(model) for model in plan.models] if plan.base == "auto" else [plan.base]
    models = list(dict.fromkeys([*plan.models, *(base for base in bases if base and base != "none")]))
    for model in models:
        names.resolve(model)
    if plan.tokens is not None:
        check_writable(plan.tokens.parent)
    assert_windows(plan.context, plan.stride)
    assert plan.text is not None
    passage = read_passage(plan.text, plan.max_words)
    scored, lines = [], []
    for model in models:  # only one model is in memory
        revision = plan.revision if model == plan.models[0] else None
        loaded = load_model(plan.model_copy(update={"model": model, "revision": revision}), say)
        scored.append(rate_text(loaded, passage, plan.context, plan.stride, progress_lines(say, "tokens")))
        lines += [] if plan.tokens is None else _lines(scored[-1], loaded)
        del loaded
    if plan.tokens is not None:
        write_text_atomic(plan.tokens, "".join(lines))
    if as_json:
        about = {"text": passage.file, "sha256": passage.sha256, "bytes": passage.bytes, "words": passage.words}
        output.emit_json({**about, "models": [each.figures() for each in scored]})
        return
    _print(passage, scored)


def _lines(rated: ScoredPassage, loaded: LoadedModel) -> list[str]:
    """A line of JSON for each scored token, in the order of the text."""
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
    caption = f"{passage.file}: {passage.words:,} words, {passage.bytes:,} bytes; {' and '.join(ways)}."
    console.print(f"\n{caption}", markup=False)


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
