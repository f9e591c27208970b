"""``specbench quality``: what a model gets right, by lm-evaluation-harness's own runner, and beside another model."""

from __future__ import annotations

import typer

from specbench.cli import options, output
from specbench.runner.quality.plan import QualityPlan


@options.takes(
    QualityPlan, shown=("models", "tasks", "include", "limit", "shots", "chat", "out"), without=("model", "data_dir")
)
def quality(
    plan: QualityPlan,
    card: bool = typer.Option(
        False, "--card", help="Put the figures on the card of the trained folder that the last MODEL is."
    ),
    as_json: bool = options.JSON,
) -> None:
    """Ask models the tasks of lm-evaluation-harness, on weights as they are decoded here.

    Two models get the difference of their answers too, document by document.
    """
    from specbench.runner.progress import notes_of, noting

    if card:
        from specbench.training.quality_card import check_card

        check_card(plan.models[-1])
    say = noting(notes_of(plan))
    from specbench.results.quality import as_json as compared
    from specbench.runner.quality.measuring import measure_quality

    found = measure_quality(plan, say)
    asked = [each.quality for each in found]
    if card:
        from specbench.training.quality_card import put_on_card

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
