"""``specbench show --request``: how the tokens of an answer came, forward by forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.cli import output
from specbench.errors import unknown

if TYPE_CHECKING:
    from specbench.reading import ReadRun
    from specbench.records import RequestRecord


def show_request(read: ReadRun, request: str, method: str | None, as_json: bool) -> None:
    """Prints the generations that ``request`` names.

    Raises:
        UsageError: none is named, or its record holds no trace.
    """
    from specbench.reporting.generation import Generation, as_data

    found = find(read, request, method)
    if as_json:
        output.emit_json([as_data(record) for record in found])
        return
    console = output.stdout()
    for record in found:
        console.print(Generation(record))
        if record.method in read.config.simulated:
            console.print("Acceptance was simulated: the text means nothing.", style="dim")
        console.print()


def find(read: ReadRun, request: str, method: str | None) -> list[RequestRecord]:
    """The records of a key, or of a prompt: of one method where it is named, else of all.

    Raises:
        UsageError: no such method, or no such request; names the nearest ones.
    """
    labels = [spec.label for spec in read.config.methods]
    if method is not None and method not in labels:
        raise unknown("method in this run", method, labels)
    mine = [record for record in read.records if method in (None, record.method)]
    found = [record for record in mine if request in (record.key, record.prompt_id)]
    if not found:
        known = {record.key if "|" in request else record.prompt_id for record in mine}
        raise unknown("request in this run", request, known)
    order = {label: at for at, label in enumerate(labels)}
    return sorted(found, key=lambda record: (order.get(record.method, len(order)), record.repeat, record.turn))
