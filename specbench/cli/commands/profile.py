"""``specbench profile``: what a step of this model costs on this device, and where it stops being free."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import INTERRUPTED, UsageError, flag, parse_count
from specbench.planning import Loading, Stepping, split_names

if TYPE_CHECKING:
    from specbench.hardware import Profile, Settings

# More rows than this are a typing mistake; row counts that do not fit in memory are left out.
_MOST_ROWS = 1 << 16


class ProfilePlan(Loading, Stepping):
    """Options of ``profile``."""

    rows: str | None = flag(None, "--rows", help="Rows of a step, comma-separated; 1 is added.", shown="1 to 512")
    contexts: str | None = flag(
        None, "--contexts", help="Cached tokens, comma-separated.", shown="128 to 32768, as the model takes"
    )
    slots: str | None = flag(None, "--slots", help="Sequences stepped together, comma-separated.", shown="1 to 16")
    seconds: float | None = flag(
        None, "--seconds", help="Seconds to measure; what they do not cover is listed.", shown="120", ge=1.0
    )
    out: Path = flag(options.PROFILES, "--out", help="Folder that receives the profile's folder.")
    gpu: str = flag("auto", "--gpu", help="Refuse to run on any other GPU. See list gpus.")
    datasheet: bool = flag(
        False, "--datasheet", help="Draw the roofline of --gpu from its datasheet; nothing is loaded or measured."
    )


@options.takes(
    ProfilePlan,
    shown=("model", "gpu", "datasheet", "rows", "contexts", "slots", "seconds", "dtype", "device", "out"),
    without=("data_dir",),
)
def profile(plan: ProfilePlan, as_json: bool = options.JSON) -> None:
    """Measure a step's time over rows, context and sequences, against the device's roofline.

    Answers how many rows of a draft are nearly free, and which ceiling stops them.
    """
    if plan.datasheet:
        _draw_datasheet(plan)
        return
    from specbench.profiling import check_device
    from specbench.runner import printing_to

    check_device(plan)
    settings = _settings(plan)
    from specbench.common import check_writable
    from specbench.models import resolve

    resolve(plan.model)
    check_writable(plan.out)
    notes = output.stderr()
    say = printing_to(notes)
    from specbench.profiling import measure_profile
    from specbench.runner import load_model

    loaded = load_model(plan, say)
    found = measure_profile(loaded, settings, lambda line: say(f"{line} …"))
    folder = _write(found, plan.out)
    if as_json:
        output.emit_json({"folder": str(folder), **found.model_dump(mode="json")})
    else:
        from specbench.report import profile_report, render_terminal

        console = output.stdout()
        console.print(render_terminal(profile_report(found)))
        console.print(f"\nprofile: {folder}", soft_wrap=True)
    if found.interrupted:
        say(f"interrupted; what was measured until then is in {folder}")
        raise typer.Exit(INTERRUPTED)


def _draw_datasheet(plan: ProfilePlan) -> None:
    """Draw the roofline of a GPU that need not be here."""
    from specbench.common import check_writable
    from specbench.hardware import datasheet, gpus, knee
    from specbench.models import configured_shape, resolve

    if plan.gpu == "auto":
        raise UsageError("cannot draw --datasheet: no GPU is named; add --gpu NAME, see specbench list gpus")
    gpu, dtype = gpus.find(plan.gpu), "bfloat16" if plan.dtype == "auto" else plan.dtype
    ceilings, shape = datasheet(gpu, dtype), configured_shape(resolve(plan.model), dtype)
    if ceilings is None:
        raise UsageError(f"cannot draw --datasheet: the vendor of {gpu.name} states no {dtype} peak; choose --dtype")
    if shape is None:
        raise UsageError(
            f"cannot draw --datasheet: the sizes of {plan.model} are not known here; choose an alias or config:NAME "
            "with a shape, or a folder with a config.json"
        )
    contexts = (512, 8192) if plan.contexts is None else _counts("--contexts", plan.contexts)
    check_writable(plan.out)
    from specbench.report import draw_datasheet

    plan.out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"roofline-{plan.model}-{gpu.name}-datasheet")
    what, path = f"{plan.model}, {dtype}", plan.out / f"{name}.png"
    draw_datasheet(shape, ceilings, contexts, what, gpu.name, path)
    console = output.stdout()
    for context in contexts:
        rows = knee(shape, ceilings, context).rows
        reach = f"{rows} rows" if rows else "more than 65,536 rows"
        console.print(f"knee after {context} cached tokens: {reach} (datasheet of {gpu.name}, not measured)")
    console.print(str(path), soft_wrap=True, markup=False)


def _settings(plan: ProfilePlan) -> Settings:
    from specbench.hardware import CONTEXTS, ROWS, SECONDS, SLOTS, Settings

    return Settings(
        rows=ROWS if plan.rows is None else _counts("--rows", plan.rows, _MOST_ROWS, add=1),
        contexts=CONTEXTS if plan.contexts is None else _counts("--contexts", plan.contexts),
        slots=SLOTS if plan.slots is None else _counts("--slots", plan.slots, add=1),
        clip=plan.contexts is None,
        seconds=plan.seconds or SECONDS,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
        native=plan.native,
    )


def _counts(flag: str, text: str, most: int | None = None, add: int | None = None) -> tuple[int, ...]:
    """Ascending integers of a comma-separated list."""
    found = {add} if add else set()
    for word in split_names(text):
        number = parse_count(word)
        if not number or (most is not None and number > most):
            upper = f"to {most}" if most is not None else "up"
            raise UsageError(f"{flag} {word}: give integers from 1 {upper}, comma-separated, as {flag} 1,16,64")
        found.add(number)
    if not split_names(text):
        raise UsageError(f"{flag} is empty; give integers, comma-separated, as {flag} 1,16,64")
    return tuple(sorted(found))


def _write(found: Profile, out: Path) -> Path:
    from specbench.common import write_folder, write_json_atomic, write_text_atomic
    from specbench.hardware import PROFILE, STEPS, steps_csv
    from specbench.report import write_profile_charts

    def write(folder: Path) -> None:
        write_json_atomic(folder / PROFILE, found.model_dump(mode="json"))
        write_text_atomic(folder / STEPS, steps_csv(found))
        write_profile_charts(found, folder)

    return write_folder(out, f"profile-{found.model.name}", found.digest(), write)
