"""Soundness of a model in training: when its held-out answers have become so bad that no speed is worth them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.training.recipe import WeightOptions


def unsound(options: WeightOptions, first: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why a training ends at a look; empty where it goes on.

    A loop is easy to draft, so weights that loop look fast: tokens per forward cannot be what tells when to end.

    Args:
        options: what is still sound.
        first: figures of the untrained weights' look (:meth:`specbench.training.held_out.Held.figures`).
        now: those of this look, at the same prompts.
    """
    loops, before = now.get("loop_share"), first.get("loop_share")
    if options.max_loops is not None and loops is not None and loops - (before or 0.0) > options.max_loops:
        return f"{loops:.1%} of the tokens are in closing loops, {before or 0.0:.1%} before training"
    name = "sound_log_likelihood_per_token"  # a loop is likely, and a model that stops looping no worse for it
    likely, target = now.get(name), first.get(name)
    if options.max_unlikely is None or likely is None or target is None:
        return ""
    if target - likely > options.max_unlikely * abs(target):
        return f"the log-likelihood of answers that do not loop is {likely:.3f} a token, {target:.3f} before training"
    return ""
