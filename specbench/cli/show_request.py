"""Views of single answers: ``specbench show RUN --request ID`` step by step, as states or as a tree, and ``--race``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli import output
from specbench.common import UsageError, unknown_name

if TYPE_CHECKING:
    from specbench.analysis import ReadRun
    from specbench.results import RequestRecord


@dataclass(frozen=True)
class View:
    """A view of a request: step by step, states over positions, or the tree of a forward; ``out`` draws it."""

    trajectory: bool = False
    round: int | None = None
    out: Path | None = None


def view(
    request: str | None, method: str | None, race: str | None, trajectory: bool, number: int | None, out: Path | None
) -> View:
    """The view chosen by the options of ``show``."""
    asked = {"--method": method is not None, "--trajectory": trajectory, "--round": number is not None}
    for flag, there in asked.items():
        if there and request is None:
            raise UsageError(f"{flag} needs --request ID; add it, or leave {flag} out")
    if race is not None and method is not None:
        raise UsageError("--race already names the methods; remove --method")
    views = [flag for flag, there in {"--race": race is not None, **asked}.items() if there and flag != "--method"]
    if len(views) > 1:
        raise UsageError(f"{' and '.join(views)} cannot be combined; use one at a time")
    if out is not None and not views:
        raise UsageError("--out needs --race A,B, --trajectory or --round K; add one of them, or leave --out out")
    if out is not None and race is None and out.suffix.lower() != ".svg":
        raise UsageError(f"--out of {views[0]} draws SVG; give {out.name} the suffix .svg")
    return View(trajectory, number, out)


def show_request(read: ReadRun, request: str, method: str | None, seen: View, as_json: bool) -> None:
    """Print the generations that ``request`` names."""
    found = find(read, request, method)
    if not (seen.trajectory or seen.round is not None):
        _show_steps(read, found, as_json)
        return
    if method is None and len(found) > 1:  # a prompt id: AR has no drafts to show
        found = [record for record in found if _drafts(record)] or found
    if (seen.round is not None or seen.out is not None) and len(found) > 1:
        names = ", ".join(dict.fromkeys(record.method for record in found))
        raise UsageError(f"{request} has {len(found)} answers with drafts; name one by --method ({names}) or its key")
    made = [_made(record, seen) for record in found]
    if seen.out is not None:
        _draw(made[0][0], seen.out)
        return
    if as_json:
        output.emit_json([asdict(data) for data, _ in made])
        return
    console = output.stdout()
    for record, (_, shown) in zip(found, made, strict=True):
        console.print(shown)
        _say_simulated(read, record)
        console.print()


def _drafts(record: RequestRecord) -> bool:
    """Whether a record has drafts, or may have had some."""
    drafts = record.tokens and record.tokens.drafts
    return not drafts or any(draft.ids for draft in drafts)


def _made(record: RequestRecord, seen: View) -> tuple[Any, Any]:
    """A view's data, and the function that prints it."""
    if seen.round is not None:
        from specbench.analysis import round_of
        from specbench.report import RoundTree

        one = round_of(record, seen.round)
        return one, RoundTree(one)
    from specbench.analysis import trajectory
    from specbench.report import TrajectoryGrid

    all_states = trajectory(record)
    return all_states, TrajectoryGrid(all_states)


def _draw(data: Any, out: Path) -> None:
    from specbench.analysis import Round
    from specbench.common import check_writable, write_text_atomic
    from specbench.report import round_svg, trajectory_svg

    check_writable(out.parent)
    drawn = round_svg(data, "round", whole=True) if isinstance(data, Round) else trajectory_svg(data, "trajectory")
    write_text_atomic(out, drawn)
    output.stdout().print(str(out), soft_wrap=True, markup=False)


def _show_steps(read: ReadRun, found: list[RequestRecord], as_json: bool) -> None:
    from specbench.report import Generation, generation_data

    if as_json:
        output.emit_json([generation_data(record) for record in found])
        return
    console = output.stdout()
    for record in found:
        console.print(Generation(record))
        _say_simulated(read, record)
        console.print()


def _say_simulated(read: ReadRun, record: RequestRecord) -> None:
    if record.method in read.config.simulated:
        output.stdout().print("Acceptance was simulated: the text means nothing.", style="dim")


def find(read: ReadRun, request: str, method: str | None) -> list[RequestRecord]:
    """The records of a key or a prompt, of one method or of all."""
    labels = [spec.label for spec in read.config.methods]
    if method is not None and method not in labels:
        raise unknown_name("method", method, labels, "in this run")
    mine = [record for record in read.records if method in (None, record.method)]
    found = [record for record in mine if request in (record.request_id, record.prompt_id)]
    if not found:
        known = {record.request_id if "|" in request else record.prompt_id for record in mine}
        raise unknown_name("request", request, known, "in this run", see="requests.jsonl in its folder has all")
    order = {label: at for at, label in enumerate(labels)}
    return sorted(found, key=lambda record: (order.get(record.method, len(order)), record.repeat, record.turn))


_PAGES = (".html", ".htm")


def show_race(read: ReadRun, methods: str, request: str | None, speed: float, out: Path | None, as_json: bool) -> None:
    """Show a race, or write it to the file ``out``: a page (.html) or a film (.gif, or .mp4 by ffmpeg)."""
    from specbench.analysis import disturbance_line
    from specbench.report import play_race, race, race_data, write_race

    if not 0.01 <= speed <= 1000:
        raise UsageError(f"--speed must be from 0.01 to 1000, not {speed:g}")
    found = race(read.config, read.records, [name.strip() for name in methods.split(",") if name.strip()], request)
    about = [line] if (line := disturbance_line(read.summary)) else []
    about += [] if read.complete else ["the run is not complete"]
    if out is None or out.suffix.lower() not in _PAGES:  # a page lists them among its conditions
        found = replace(found, notes=[*found.notes, *about])
    if out is not None:
        output.stdout().print(str(write_race(found, read, out, speed)), soft_wrap=True, markup=False)
    elif as_json:
        output.emit_json(race_data(found))
    else:
        play_race(output.stdout(), found, speed)
