"""``specbench profile``: what a step of this model costs on this device, and where it stops being free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.common.errors import INTERRUPTED
from specbench.common.options import flag, flag_of
from specbench.common.reading import whole
from specbench.runner.plan import Loading, Stepping, split

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from specbench.hardware import Profile
    from specbench.hardware.gpus import Gpu
    from specbench.hardware.profile import Settings
    from specbench.profiling.nodes import NodeCount, StepNodes

# Beyond so many rows of a step a number is a slip; those that do not fit in memory are left out.
_MOST_ROWS = 1 << 16
_MOST_TOKENS = 1 << 24
_WIDTH = 80  # of the narrowest terminal


class ProfilePlan(Loading, Stepping):
    """What ``profile`` takes."""

    rows: str | None = flag(None, "--rows", help="Rows of a step, comma-separated; 1 is added.", shown="1 to 512")
    contexts: str | None = flag(
        None, "--contexts", help="Cached tokens, comma-separated.", shown="128 to 32768, as the model takes"
    )
    slots: str | None = flag(None, "--slots", help="Sequences stepped together, comma-separated.", shown="1 to 16")
    seconds: float | None = flag(
        None, "--seconds", help="Time to measure for; what it does not cover is named.", shown="120", ge=1.0
    )
    out: Path = flag(options.PROFILES, "--out", help="Folder that receives the profile's folder.")
    gpu: str = flag(
        "auto", "--gpu", help="Refuse to run on any other GPU; with --nodes, cards to predict for. See list gpus."
    )
    nodes: bool = flag(
        False, "--nodes", help="Measure nothing: kernels, bytes and predicted time of a step. No GPU, no weights."
    )


@options.takes(
    ProfilePlan,
    shown=("model", "gpu", "rows", "contexts", "slots", "seconds", "dtype", "device", "nodes", "out"),
    without=("data_dir",),
)
def profile(plan: ProfilePlan, as_json: bool = options.JSON) -> None:
    """Measure a step's time over rows, context and sequences, against the device's roofline.

    Answers how many rows of a draft are nearly free, and which ceiling stops them.
    """
    if plan.nodes:
        _predict(plan, as_json)
        return
    from specbench.runner.progress import noting
    from specbench.runner.ready import check_device

    check_device(plan)
    settings = _settings(plan)
    from specbench.common.files import check_writable
    from specbench.models import resolve

    resolve(plan.model)
    check_writable(plan.out)
    notes = output.stderr()
    say = noting(notes)
    from specbench.profiling import measure_profile
    from specbench.runner.loading import load_model

    loaded = load_model(plan, say)
    found = measure_profile(loaded, settings, lambda line: say(f"{line} …"))
    folder = _write(found, plan.out)
    if as_json:
        output.emit_json({"folder": str(folder), **found.model_dump(mode="json")})
    else:
        from specbench.report.terminal.profile import profile_report

        console = output.stdout()
        console.print(profile_report(found))
        console.print(f"\nprofile: {folder}", soft_wrap=True)
    if found.interrupted:
        say(f"interrupted; what was measured until then is in {folder}")
        raise typer.Exit(INTERRUPTED)


def _settings(plan: ProfilePlan) -> Settings:
    from specbench.hardware.profile import CONTEXTS, ROWS, SECONDS, SLOTS, Settings

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
    """Ascending whole numbers of a comma-separated list.

    Raises:
        UsageError: something else is in it.
    """
    found = {add} if add else set()
    for word in split(text):
        number = whole(word)
        if not number or (most is not None and number > most):
            upper = f"to {most}" if most is not None else "up"
            raise UsageError(f"{flag} {word}: give whole numbers from 1 {upper}, comma-separated, as {flag} 1,16,64")
        found.add(number)
    if not split(text):
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


def _predict(plan: ProfilePlan, as_json: bool) -> None:
    """``--nodes``."""
    from specbench.hardware import profile as stored
    from specbench.models.names import DTYPES
    from specbench.profiling.nodes import CONTEXT, ROWS, as_data, count_nodes

    for field in ("seconds", "device", "attention", "graphs", "compile", "native", "out"):
        if getattr(plan, field) != ProfilePlan.model_fields[field].default:
            raise UsageError(
                f"{flag_of(ProfilePlan, field).name} is for measuring, which --nodes does not; leave it out"
            )
    dtype = "bfloat16" if plan.dtype == "auto" else DTYPES[plan.dtype]
    if dtype == "int8":
        raise UsageError("--nodes is about a GPU's step, and weights of int8 are for CPUs; give another --dtype")
    # A larger tree is stepped eagerly, where launches are another matter.
    most = stored.ROWS[-1]
    rows = ROWS if plan.rows is None else _counts("--rows", plan.rows, most, add=1)
    slots = _one("--slots", plan.slots, 1)
    if rows[-1] * slots > most:
        raise UsageError(f"{rows[-1]} rows of {slots} sequences are more than the {most} that are captured; give fewer")
    cards = _cards(plan.gpu)
    count = count_nodes(
        plan.model,
        rows,
        _one("--contexts", plan.contexts, CONTEXT),
        slots,
        dtype=dtype,
        revision=plan.revision,
        trust_remote_code=plan.trust_remote_code,
    )
    if as_json:
        output.emit_json(as_data(count, cards))
    else:
        output.stdout().print(_nodes_report(count, cards))


def _one(flag: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    found = _counts(flag, text, _MOST_TOKENS)
    if len(found) > 1:
        raise UsageError(f"{flag} {text}: --nodes takes one number, as {flag} {default}")
    return found[0]


def _cards(names: str) -> list[Gpu]:
    """Those that are named, else this machine's where its figures are known, else a few of the usual ones."""
    from specbench.hardware import gpus
    from specbench.profiling.nodes import CARDS

    if names.strip().lower() != "auto":
        if not split(names):
            raise UsageError("--gpu names nothing; give names of list gpus, comma-separated")
        return list({found.name: found for found in map(gpus.find, split(names))}.values())
    here = [found for name in gpus.seen() or () if (found := gpus.identify(name, None))]
    return here[:1] or [gpus.find(name) for name in CARDS]


def _nodes_report(count: NodeCount, cards: Sequence[Gpu]) -> RenderableType:
    """The tables of ``--nodes``, of at most 80 columns."""
    from rich.console import Group
    from rich.text import Text

    from specbench.profiling.nodes import NODE_S

    title = Text()
    title.append("nodes of a step: predicted, not measured", style="bold")
    together = f" · {count.slots} sequences" if count.slots > 1 else ""
    title.append(f" · {count.model} {count.dtype} · context {count.context}{together}")
    title.append(f" · {NODE_S * 1e6:g} µs a node (assumed)\n")
    counts = _plain("step", "layers", "a layer", "outside", "nodes", "weights", "KV")
    for step in count.steps:
        low, high = min(step.layers, default=0), max(step.layers, default=0)
        counts.add_row(
            *_step(step),
            f"{low}" if low == high else f"{low}–{high}",
            f"{step.outside}",
            f"{step.nodes}",
            _bytes(step.weight_bytes),
            _bytes(step.cache_bytes),
        )
    parts: list[RenderableType] = [title, counts, Text()]
    for some in _beside(cards):
        times = _plain("predicted ms", "layers", *(card.name for card in some))
        for step in count.steps:
            times.add_row(*_step(step), *(_predicted(count, step, card) for card in some))
        parts += [times, Text()]
    return Group(*parts, *(Text(line, style="dim") for line in _legend(count, cards)))


def _legend(count: NodeCount, cards: Sequence[Gpu]) -> Iterator[str]:
    from specbench.profiling.nodes import COPIED, EXPECTED, NODE_S, OWN_ROWS, ceilings_of

    yield (
        "nodes: kernels that a captured step launches, counted as on an H200; outside: of layers. weights, KV: bytes "
        "that it reads, and of KV writes."
    )
    yield (
        f"ms: {NODE_S * 1e6:g} µs for every node, and the longer of these bytes over {COPIED:.3g} of the datasheet's "
        f"bandwidth and of FLOPs over its peak; steps of more than {OWN_ROWS} rows read weights at "
        f"{EXPECTED.library:g} of that. All assumed; no host."
    )
    if count.fusions:
        left = "".join(f"; not {what}: {why}" for what, why in count.not_fused.items())
        yield (
            f"fused: {', '.join(count.fusions)}, as far as modules tell; at load each layer is compared with itself"
            f"{left}."
        )
    else:
        yield f"Nothing is fused: {count.why_not_fused}."
    fitting = [ceilings_of(card, count.dtype) for card in cards if count.fits(card)]
    if any(step.computes(ceilings) for step in count.steps for ceilings in fitting):
        yield "*: its FLOPs take longer than its bytes."
    if not all(map(count.fits, cards)):
        yield f"–: weights and cache, {_bytes(count.held_bytes)}, are more than its memory."


def _step(step: StepNodes) -> tuple[str, str]:
    rows = "1 row" if step.rows == 1 else f"{step.rows} rows"
    name = "sampled" if step.sampled else "AR" if step.rows == 1 else "tree"
    return f"{name}, {rows}", "fused" if step.fused else "transformers"


def _predicted(count: NodeCount, step: StepNodes, card: Gpu) -> str:
    from specbench.profiling.nodes import ceilings_of
    from specbench.report.terminal.profile import milliseconds

    if not count.fits(card):
        return "–"
    ceilings = ceilings_of(card, count.dtype)
    return f"{'* ' if step.computes(ceilings) else ''}{milliseconds(step.seconds(ceilings))}"


def _bytes(count: float) -> str:
    unit, factor = next(((u, f) for u, f in (("GB", 1e9), ("MB", 1e6)) if count >= f), ("kB", 1e3))
    value = count / factor
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def _beside(cards: Sequence[Gpu]) -> Iterator[list[Gpu]]:
    """Cards by the table: as many as 80 columns take."""
    some: list[Gpu] = []
    left = room = _WIDTH - len("sampled, 512 rows") - len("transformers") - 2
    for card in cards:
        width = max(len(card.name), len("> 1234")) + 2
        if some and width > left:
            yield some
            some, left = [], room
        some.append(card)
        left -= width
    yield some


def _plain(*columns: str) -> Table:
    """A table whose first two columns are words, and the others figures."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at < 2 else "right", no_wrap=True)
    return table
