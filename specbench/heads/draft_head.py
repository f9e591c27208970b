"""Base class of draft heads: create, read and write them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn

from specbench.common import SpecbenchError, UsageError, one_line
from specbench.decoding import Target, shipped_head
from specbench.heads import head_files
from specbench.heads.head_config import HeadConfig
from specbench.models import use_huge_pages

H = TypeVar("H", bound="Head")


class Head(nn.Module):
    """A draft head. A subclass creates its parameters: ``fc`` over the target's features, ``layers`` if it has any.

    ``__init__`` takes a configuration of the class ``CONFIG``.
    """

    CONFIG: ClassVar[type[HeadConfig]] = HeadConfig
    CONVERT: ClassVar[str | None] = None  # command that converts a folder's pickled weights to .safetensors
    DTYPE_FIELD: ClassVar[str] = "dtype"  # field of config.json
    IGNORED: ClassVar[tuple[str, ...]] = ("t2d",)  # stored tensors that drafting does not need

    config: Any
    fc: nn.Linear
    rotary_emb: Any
    d2t: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    @staticmethod
    def rotary(config: Any) -> nn.Module | None:
        """Return the rotary embedding of a head with layers; its buffers are not stored in files."""
        return None

    @classmethod
    def sized(cls, files: head_files.HeadFiles, config: Any, target: Any) -> Any:
        """Return the configuration with sizes that ``config.json`` lacks, from the files' tensors or the target's."""
        return config

    @classmethod
    def wanted(cls, stored: Collection[str]) -> Collection[str]:
        """Return those of a file's tensors that the head has, for files that hold other parts of a model, too."""
        return stored

    @classmethod
    def from_file(cls, name: str, config: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Rename a file's tensors to the head's names, in place; return further arguments of the class."""
        return {}

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under their names in files, with the tensors that only files have."""
        return tensors

    def finish(self) -> None:
        """Add the rotary embedding and the map from draft ids to tokens; call it after creating all parameters."""
        self.rotary_emb = self.rotary(self.config)
        if not self.config.whole:
            self.register_buffer("d2t", torch.zeros(self.config.draft_vocab_size, dtype=torch.long))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def features(self) -> int:
        """Size of the target's features that the head reads for each token."""
        return self.fc.in_features

    def shapes(self) -> dict[int, tuple[int, int, int]]:
        """Return (KV heads, key size, value size) that each of the head's layers stores."""
        shape = self.config.num_key_value_heads, self.config.head_dim, self.config.head_dim
        return dict.fromkeys(range(len(getattr(self, "layers", ()))), shape)

    @property
    def draft_ids(self) -> Tensor | None:
        """Target ids of the tokens that the head can draft, ascending int64 [draft vocabulary]; None is all tokens.

        ``d2t`` is each id minus its index, as in EAGLE-3's files.
        """
        if self.config.whole:
            return None
        offsets: Any = self.d2t
        found: Tensor = torch.arange(len(offsets), device=offsets.device) + offsets
        return found

    def scorer(self, lm_head: Any) -> Any:
        """Return the target's LM head, or its rows that the head can draft: [..., H] to [..., draft vocabulary]."""
        ids = self.draft_ids
        if ids is None:
            return lm_head
        weight, bias = lm_head.weight, lm_head.bias
        rows = nn.Linear(weight.shape[1], len(ids), bias=bias is not None, device="meta")
        rows.weight = nn.Parameter(weight[ids], requires_grad=False)
        if bias is not None:
            rows.bias = nn.Parameter(bias[ids], requires_grad=False)
        return rows

    def set_draft_ids(self, ids: Tensor) -> None:
        """Set the tokens that the head can draft: ascending int64 [draft vocabulary]."""
        self.d2t = (ids - torch.arange(len(ids))).to(self.device)

    @classmethod
    def random(
        cls: type[H], config: Any, *, device: Any = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> H:
        """Return an untrained head, initialised from the seed; torch's random generators are not changed."""
        where = torch.device(device)
        with torch.device(where), torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            torch.manual_seed(seed)
            head = cls(config).to(dtype)
            for name, parameter in head.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith(("bias", "sinks")):  # transformers leaves sinks as the memory was
                    nn.init.zeros_(parameter)
        return head

    @classmethod
    def load(
        cls: type[H], where: str | Path, target: Any = None, *, device: Any = "cpu", dtype: torch.dtype | None = None
    ) -> H:
        """Load a head from a folder or the hub, with optional ``::SUBFOLDER``. Arguments as in :meth:`read`."""
        return cls.read(cls.find(str(where)), target, device=device, dtype=dtype)

    @classmethod
    def find(cls, name: str) -> head_files.HeadFiles:
        """Find the files of a head by folder or hub id."""
        return head_files.find(name, convert=cls.CONVERT)

    @classmethod
    def read(
        cls: type[H],
        files: head_files.HeadFiles,
        target: Any = None,
        *,
        device: Any = "cpu",
        dtype: torch.dtype | None = None,
        **sense: Any,
    ) -> H:
        """Read a head from its files.

        Args:
            target: configuration of the target, with which the head is checked; None skips the check.
            dtype: None keeps the stored precision.
            sense: further arguments of the configuration's ``from_json``.

        Raises:
            UsageError: parameters are missing, unknown or of another shape, or the head was made for another target.
        """
        text = None if target is None else target.get_text_config()
        config = cls.CONFIG.from_json(files.config, None if text is None else text.num_hidden_layers, **sense)
        config = cls.sized(files, config, text)
        if text is not None:
            config.check_target(files.name, text)
        tensors = files.tensors(device, dtype, cls.wanted(files.stored()))
        for name in (*cls.IGNORED, *(["d2t"] if config.whole else [])):
            tensors.pop(name, None)
        head = cls.filled(files.name, config, tensors, device, **cls.from_file(files.name, config, tensors))
        ids = head.draft_ids
        if ids is not None and text is not None and not bool(((ids >= 0) & (ids < text.vocab_size)).all()):
            raise UsageError(
                f"cannot use head {files.name}: its d2t has token ids that the target lacks; use a complete copy of it"
            )
        if ids is not None and len(ids.unique()) < len(ids):
            raise UsageError(f"cannot use head {files.name}: its d2t has a token id twice; use a complete copy of it")
        return head

    @classmethod
    def filled(cls: type[H], name: str, config: Any, tensors: dict[str, Tensor], device: Any, **how: Any) -> H:
        """Return the head with a file's tensors, whose names, shapes and types are checked; ``how``: of the class."""
        try:
            with torch.device("meta"):
                head = cls(config, **how)
            rotary = cls.rotary(config)
        except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
            raise
        except Exception as error:  # transformers' own checks, for example of sizes that do not divide
            raise UsageError(
                f"cannot create head {name} from its config.json: {one_line(str(error))}; use a complete copy of "
                "the head"
            ) from error
        head_files.check_names(name, {key: p.shape for key, p in head.state_dict().items()}, tensors)
        head.load_state_dict(tensors, assign=True)
        head.rotary_emb = None if rotary is None else rotary.to(device)
        use_huge_pages(head.parameters())
        return head

    @classmethod
    def prepared(cls: type[H], method: str, name: str | None, target: Target, **sense: Any) -> tuple[H, dict[str, str]]:
        """Return the head that a method drafts with, loaded once per run, and facts on it for the record.

        Args:
            name: a folder, a hub id, or the name of an untrained head; None is the head that the package has for this
                target.
            sense: further arguments of the configuration's ``from_json``.
        """
        found: tuple[H, dict[str, str]] = target.once(
            (method, name, *sense.values()), lambda: cls._prepared(method, name, target, **sense)
        )
        return found

    @classmethod
    def _prepared(
        cls: type[H], method: str, name: str | None, target: Target, **sense: Any
    ) -> tuple[H, dict[str, str]]:
        model, config = target.model, target.model.config.get_text_config()
        how = {"device": model.device, "dtype": model.dtype}
        if name is None:
            own = shipped_head(method, target.name)
            if own is None:  # if the target's name was known earlier, Decoder.check has already reported this
                raise UsageError(f"cannot draft with {method}: it has no head for {target.name}; give one with --head")
            name = str(own)
        last_token = model.get_input_embeddings().weight.shape[0] - 1
        facts = {"head": name}
        if untrained := cls.CONFIG.untrained(name, config, last_token):
            head = cls.random(untrained, **how)
        else:
            files = cls.find(name)
            head = cls.read(files, config, **how, **sense)
            facts = {"head": files.shown, "head_sha256": files.sha256()}
            facts |= {"head_revision": files.revision} if files.revision else {}
        head.eval().requires_grad_(False)
        return head, facts | {"head_parameters": str(sum(parameter.numel() for parameter in head.parameters()))}

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None, largest: str = "5GB") -> None:
        """Write ``config.json`` and ``model.safetensors`` in the format of published heads.

        Args:
            folder: created if missing; existing files of these names are overwritten.
            dtype: precision of the file; None is the head's.
            largest: size limit of a file, such as "10MB"; a larger head is split into several files with an index.
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
