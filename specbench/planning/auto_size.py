"""Choose the tree size of a method from the measured cost of rows on this machine, unless the user set it.

A method lists settings from large to small trees under ``[machine]`` in its ``method.toml``. Chosen is the largest tree
whose step takes at most :data:`TIMES` the time of an AR step according to the stored profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.common import option_names as option_names
from specbench.common import registry
from specbench.hardware import Profile, gpus, is_this_machine, newest_profile
from specbench.models import names
from specbench.planning.methods import Settings, make_method, written
from specbench.planning.plan import PROFILES, RESULTS, Plan

#: Limit for the time of a step, as a multiple of an AR step. A longer step pays off only if it emits more tokens than
#: this multiple.
TIMES = 2.0


def auto_tree_size(plan: Plan, labels: Mapping[str, str], settings: Settings) -> tuple[Settings, list[str]]:
    """Return the settings that limit tree sizes, and notes for the user; both empty unless ``--gpu`` is auto."""
    if plan.gpu != "auto" or plan.simulate:
        return {}, []
    open_ones = {label: name for label, name in labels.items() if _is_open(name, settings[label])}
    if not open_ones:
        return {}, []
    profile = profile_here(plan)
    more: Settings = {}
    notes = []
    for label, name in open_ones.items():
        widest = make_method(label, name, settings[label]).max_rows
        if profile is None:
            notes.append(
                f"{label} drafts up to {widest} rows; specbench profile --model {plan.model} measures what rows cost "
                "here, so that a later run can choose the tree size"
            )
            continue
        rows = profile.rows_within(TIMES)
        if widest <= rows:
            continue
        if rows == profile.most_rows:  # the profile ends before rows get expensive: wider trees may cost no more
            notes.append(
                f"{label} drafts up to {widest} rows, and the stored profile ends at {rows}; specbench profile --model "
                f"{plan.model} with --rows up to {widest} measures the rest"
            )
            continue
        mine = {label: _fitting(label, name, settings[label], rows)}
        more |= mine
        notes.append(
            f"{label}: {rows} rows cost at most {TIMES:g} times one row on this machine (stored profile), so specbench "
            f"sets {' '.join(f'--set {setting}' for setting in written(mine))}"
        )
    return more, notes


def _is_open(name: str, raw: Mapping[str, Any]) -> bool:
    """Whether a method has a table of tree sizes and the user has set none of its options."""
    card = registry.method(name)
    table = card.info.get("machine", {}).get("settings", [])
    known = option_names(card.load().Options)
    sizes = {option for settings in table for option in settings}
    return bool(table) and "preset" not in raw and not sizes & {known.get(each.replace("-", "_")) for each in raw}


def _fitting(label: str, name: str, raw: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the first setting of the method's table with at most ``rows`` rows, or the last one if all are larger."""
    table: list[dict[str, Any]] = registry.method(name).info["machine"]["settings"]
    fits = (settings for settings in table if make_method(label, name, {**raw, **settings}).max_rows <= rows)
    return next(fits, table[-1])


def profile_here(plan: Plan) -> Profile | None:
    """Return the newest stored profile of the plan's model and precision on this machine."""

    def suits(profile: Profile) -> bool:
        alike = (profile.settings.compile, profile.settings.native) == (plan.compile, plan.native)
        return alike and is_here(profile, plan)

    return newest_profile([Path.cwd() / PROFILES, Path.cwd() / RESULTS], suits)


def is_here(profile: Profile, plan: Plan) -> bool:
    """Whether a profile was measured with the plan's model and precision on this machine."""
    cards, cuda, model = gpus.seen(), _on_cuda(plan), names.resolve(plan.model)
    dtype = names.DTYPES.get(plan.dtype, "bfloat16" if cuda else "float32")
    mine = (profile.model.name, profile.model.dtype) == ((model.base or model).name, dtype)
    return mine and is_this_machine(profile.environment, (cards[0] if cards else "") if cuda else None)


def _on_cuda(plan: Plan) -> bool:
    return plan.device.startswith("cuda") or (plan.device == "auto" and gpus.seen() != [])
