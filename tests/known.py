"""Known: a value that the test knows to be there, for a type that says it may not be; and the line of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from specbench.common.errors import SpecbenchError

T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


def refusal(error: type[SpecbenchError], call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """What somebody is told whose call is refused with that error, after checking that it is one line."""
    with pytest.raises(error) as caught:
        call(*arguments, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)
