"""FlexAttention inside of transformers models, on a CPU, in seconds."""

from __future__ import annotations

from typing import Any

import pytest


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers calls it as it is: compiled for a CPU it takes minutes."""
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as theirs

    def plain(*args: Any, training: bool = False, **options: Any) -> Any:
        return flex_attention(*args, **options)

    monkeypatch.setattr(theirs, "compile_friendly_flex_attention", plain)
