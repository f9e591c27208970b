"""Accuracy and likelihood of a model, measured apart from speed: lm-eval and perplexity."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.quality.lm_eval_runs import measure_quality as measure_quality
    from specbench.quality.perplexity import Passage as Passage
    from specbench.quality.perplexity import ScoredPassage as ScoredPassage
    from specbench.quality.perplexity import assert_windows as assert_windows
    from specbench.quality.perplexity import rate_text as rate_text
    from specbench.quality.perplexity import read_passage as read_passage
    from specbench.quality.quality_plan import QualityPlan as QualityPlan
else:
    __getattr__, __dir__ = door(__name__)
