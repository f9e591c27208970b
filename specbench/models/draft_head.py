"""The base of draft heads: making, reading and writing them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn

from specbench.common import SpecbenchError, UsageError
from specbench.common.errors import one_line
from specbench.models import head_files

H = TypeVar("H", bound="Head")


class Head(nn.Module):
    """A draft head. A subclass makes its layers, ``fc`` over the target's features, ``config`` and ``rotary_emb``.

    ``config`` has ``draft_vocab_size``, ``whole`` (it can draft every token) and ``to_json``.
    """

    DTYPE_FIELD: ClassVar[str] = "dtype"  # of config.json

    config: Any
    fc: nn.Linear
    rotary_emb: Any
    d2t: Tensor

    @staticmethod
    def rotary(config: Any) -> nn.Module:
        """The rotary embedding of a head; its buffers are in no file."""
        raise NotImplementedError

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by the names that files have, and what files have in addition."""
        return tensors

    def map_draft_ids(self) -> None:
        """Make room for the map from what the head can draft to the target's tokens."""
        if not self.config.whole:
            self.register_buffer("d2t", torch.zeros(self.config.draft_vocab_size, dtype=torch.long))

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def draft_ids(self) -> Tensor | None:
        """The target's ids of what it can draft, ascending int64 [draft vocabulary]; None is all.

        Each is its own index plus ``d2t``, as EAGLE-3's files have it.
        """
        if self.config.whole:
            return None
        offsets: Any = self.d2t
        found: Tensor = torch.arange(len(offsets), device=offsets.device) + offsets
        return found

    def set_draft_ids(self, ids: Tensor) -> None:
        """Set the tokens that it can draft: ascending int64 [draft vocabulary]."""
        self.d2t = (ids - torch.arange(len(ids))).to(self.device)

    @classmethod
    def random(
        cls: type[H], config: Any, *, device: Any = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> H:
        """An untrained head of that shape, the same for the same seed; torch's generators stay as they were."""
        where = torch.device(device)
        with torch.device(where), torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            torch.manual_seed(seed)
            head = cls(config).to(dtype)
            for name, parameter in head.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)
        return head

    @classmethod
    def filled(
        cls: type[H],
        name: str,
        config: Any,
        tensors: dict[str, Tensor],
        vocab_size: int | None,
        device: Any,
        **how: Any,
    ) -> H:
        """A head with the tensors of a file.

        Args:
            vocab_size: the target's; None does not check which tokens the head drafts.
            how: further arguments of the class.

        Raises:
            UsageError: parameters are missing, left over or of another shape, or it drafts tokens of another target.
        """
        try:
            with torch.device("meta"):
                head = cls(config, **how)
            rotary = cls.rotary(config).to(device)
        except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
            raise
        except Exception as error:  # sizes that do not divide, a rope without its numbers: transformers' own checks
            raise UsageError(f"head {name}: no head can be made of its config.json: {one_line(str(error))}") from error
        head_files.check_names(name, {name: p.shape for name, p in head.state_dict().items()}, tensors)
        head.load_state_dict(tensors, assign=True)
        head.rotary_emb = rotary
        ids = head.draft_ids
        if ids is not None and vocab_size is not None and not bool(((ids >= 0) & (ids < vocab_size)).all()):
            raise UsageError(f"head {name}: its d2t names tokens that the target has not; take a whole copy of it")
        return head

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None, largest: str = "5GB") -> None:
        """Write ``config.json`` and ``model.safetensors`` as published heads have them.

        Args:
            folder: made where it is not there; files of these names are overwritten.
            dtype: of the file; None is the head's.
            largest: size of a file, as "10MB"; a larger head is written in several, with an index next to them.
        """
        into = Path(folder)
        into.mkdir(parents=True, exist_ok=True)
        dtype = dtype or self.dtype
        config = {**self.config.to_json(), self.DTYPE_FIELD: str(dtype).removeprefix("torch.")}
        (into / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {
            name: (p.to(dtype) if p.is_floating_point() else p).detach().contiguous().cpu()
            for name, p in self.state_dict().items()
        }
        save_torch_state_dict(self.to_file(tensors), into, max_shard_size=largest)


def check_target(name: str, sizes: Mapping[str, tuple[int, int]], mask: int | None, vocab_size: int) -> None:
    """Check that a head was made for a target of these sizes.

    Args:
        sizes: the head's and the target's, by what they are.
        mask: token that fills a block, if any.

    Raises:
        UsageError: it was not.
    """
    for what, (own, theirs) in sizes.items():
        if own != theirs:
            raise UsageError(f"head {name} is for a target with a {what} of {own}, this one's is {theirs}")
    if mask is not None and not 0 <= mask < vocab_size:
        raise UsageError(f"head {name} has mask token {mask}, the target {vocab_size} tokens")


def ready(
    name: str, random: Callable[[str], H | None], read: Callable[[head_files.HeadFiles], H], convert: str | None = None
) -> tuple[H, dict[str, str]]:
    """A head that is ready to draft, and what the record says of it.

    Args:
        name: a folder, a hub id, or an untrained head's name.
        random: an untrained head of that name, if it is one.
        read: a head from its files.
        convert: command that converts a pickled head.
    """
    head = random(name)
    said = {"head": name}
    if head is None:
        files = head_files.find(name, convert=convert)
        head = read(files)
        said = {"head": files.shown, "head_sha256": files.sha256()}
        said |= {"head_revision": files.revision} if files.revision else {}
    head.eval().requires_grad_(False)
    return head, said | {"head_parameters": str(sum(parameter.numel() for parameter in head.parameters()))}
