"""``specbench profile``: what a step of this model costs on this device, and where it stops being free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.common.errors import INTERRUPTED

if TYPE_CHECKING:
    from specbench.hardware import Profile
    from specbench.hardware.profile import Settings


def profile(
    model: str = options.MODEL,
    gpu: str = typer.Option("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus."),
    rows: str | None = typer.Option(
        None, "--rows", help="Rows of a step, comma-separated; 1 is added.", show_default="1 to 512"
    ),
    contexts: str | None = typer.Option(
        None, "--contexts", help="Cached tokens, comma-separated.", show_default="128 to 32768, as the model takes"
    ),
    slots: str | None = typer.Option(
        None, "--slots", help="Sequences stepped together, comma-separated.", show_default="1 to 16"
    ),
    seconds: float | None = typer.Option(
        None, "--seconds", min=1.0, help="Time to measure for; what it does not cover is named.", show_default="120"
    ),
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    attention: str = options.ATTENTION,
    graphs: str = options.GRAPHS,
    compile: bool = options.COMPILE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    out: Path = typer.Option(options.PROFILES, "--out", help="Folder that receives the profile's folder."),
    as_json: bool = options.JSON,
) -> None:
    """Measure a step's time over rows, context and sequences, against the device's roofline.

    Answers how many rows of a draft are nearly free, and which ceiling stops them.
    """
    options.assert_gpu(gpu)
    settings = _settings(rows, contexts, slots, seconds, attention, graphs, compile)
    options.assert_graphs(settings.graphs, device)
    from specbench.common.files import check_writable
    from specbench.models import resolve

    resolve(model)
    check_writable(out)
    notes = output.stderr()
    notes.print(f"loading {model} …")
    from specbench.models import load
    from specbench.profiling import measure_profile

    loaded = load(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
    found = measure_profile(loaded, settings, lambda line: notes.print(f"{line} …", soft_wrap=True, markup=False))
    folder = _write(found, out)
    if as_json:
        output.emit_json({"folder": str(folder), **found.model_dump(mode="json")})
    else:
        from specbench.report.terminal.profile import profile_report

        console = output.stdout()
        console.print(profile_report(found))
        console.print(f"\nprofile: {folder}", soft_wrap=True)
    if found.interrupted:
        notes.print(f"interrupted; what was measured until then is in {folder}", soft_wrap=True, markup=False)
        raise typer.Exit(INTERRUPTED)


def _settings(
    rows: str | None,
    contexts: str | None,
    slots: str | None,
    seconds: float | None,
    attention: str,
    graphs: str,
    compile: bool,
) -> Settings:
    from specbench.hardware.profile import CONTEXTS, ROWS, SECONDS, SLOTS, Settings
    from specbench.runner.plan import ROW_LIMIT, plan_attention, plan_graphs

    return Settings(
        rows=ROWS if rows is None else _counts("--rows", rows, ROW_LIMIT, add=1),
        contexts=CONTEXTS if contexts is None else _counts("--contexts", contexts),
        slots=SLOTS if slots is None else _counts("--slots", slots, add=1),
        clip=contexts is None,
        seconds=seconds or SECONDS,
        attention=plan_attention(attention),
        graphs=plan_graphs(graphs),
        compile=compile,
    )


def _counts(flag: str, text: str, most: int | None = None, add: int | None = None) -> tuple[int, ...]:
    """Ascending whole numbers of a comma-separated list.

    Raises:
        UsageError: something else is in it.
    """
    found = {add} if add else set()
    for word in options.split(text):
        if not word.isdecimal() or int(word) < 1 or (most is not None and int(word) > most):
            upper = f"to {most}" if most is not None else "up"
            raise UsageError(f"{flag} {word}: give whole numbers from 1 {upper}, comma-separated, as {flag} 1,16,64")
        found.add(int(word))
    if not options.split(text):
        raise UsageError(f"{flag} names nothing; give whole numbers, comma-separated, as {flag} 1,16,64")
    return tuple(sorted(found))


def _write(found: Profile, out: Path) -> Path:
    from specbench.common.files import write_folder, write_json_atomic, write_text_atomic
    from specbench.hardware.profile import PROFILE, STEPS, steps_csv
    from specbench.report.pictures.roofline import write_pictures

    def write(folder: Path) -> None:
        write_json_atomic(folder / PROFILE, found.model_dump(mode="json"))
        write_text_atomic(folder / STEPS, steps_csv(found))
        write_pictures(found, folder)

    return write_folder(out, f"profile-{found.model.name}", found.digest(), write)
