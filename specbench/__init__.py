"""Which parallel decoder is fastest for a model, a task and a GPU, by how much, and is its text still right."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.loading import load as load

__version__ = "0.1.0"

if not TYPE_CHECKING:  # or a type checker would let any name pass

    def __getattr__(name: str) -> Any:
        """``specbench.load``, fetched when it is asked for: it brings pandas, which costs a second."""
        if name == "load":
            return import_module("specbench.loading").load
        raise AttributeError(f"module 'specbench' has no attribute '{name}'")
