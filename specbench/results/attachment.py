"""JSON files that a run folder may contain, each with the type of its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from specbench.common import damaged, first_fault, read_json_object, write_json_atomic

T = TypeVar("T")


class Attachment(Generic[T]):
    """A JSON file that a run folder may contain: a pydantic model, or a dictionary of models.

    ``todo`` is the advice in the error for a damaged file.
    """

    def __init__(self, name: str, content: type[T], todo: str = "delete it to go on without its figures") -> None:
        self.name, self.todo = name, todo
        self._content: TypeAdapter[T] = TypeAdapter(content)

    def read(self, folder: Path) -> T | None:
        """Return the content, or None if the file does not exist. The UsageError for a damaged file names the field."""
        path = folder / self.name
        if not os.path.lexists(path):
            return None
        try:
            return self._content.validate_python(read_json_object(path, self.todo))
        except ValidationError as error:
            raise damaged(path, first_fault(error), self.todo) from None

    def write(self, folder: Path, value: T) -> None:
        """Replace the file."""
        write_json_atomic(folder / self.name, self.json(value))

    def json(self, value: T) -> dict[str, Any]:
        """Return the content as it is written to JSON."""
        found: dict[str, Any] = self._content.dump_python(value, mode="json")
        return found


class AttachmentStore(Protocol):
    """Storage for attachments: a run folder, or the memory of a sweep's worker process."""

    def read(self, what: Attachment[T]) -> T | None: ...
    def write(self, what: Attachment[T], value: T) -> None: ...
