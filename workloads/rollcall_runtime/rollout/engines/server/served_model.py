"""The model that an inference server opens by itself, and what its process finds around it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollcall_runtime.models.hugging_face import HuggingFaceSource
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.inference_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from rollcall_runtime.models.model_source import ModelSource


def open_served(model: str, *, engine: str) -> tuple[ModelSource, Path]:
    """The model and its directory; SpecError unless it is one in Hugging Face's format."""
    source = open_model(model)
    if not isinstance(source, HuggingFaceSource) or source.directory is None:
        raise SpecError(f"{FIELD}.name", f"{engine} does not serve the model {model!r}; tiny does")
    return source, source.directory


def has_tokenizer(directory: Path) -> bool:
    """Whether a server finds a tokenizer beside the weights."""
    return any(directory.glob("tokenizer*")) or (directory / "vocab.json").exists()


def home_variables(folder: Path) -> dict[str, str]:
    """Servers keep caches at home; the root file system of a pod may be read-only."""
    home = os.environ.get("HOME", "")
    return {} if home and os.access(home, os.W_OK) else {"HOME": str(folder)}
