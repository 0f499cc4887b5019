"""Models by the path that a job names.

A builtin, or a directory with `config.json` and `weights.pt`, as `write_model` makes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.model.path"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.pt"

_BUILTINS = {
    "builtin:reverse-tiny": TinyConfig(),
    # 64 MiB in fp32 (16,783,008 parameters): what moving weights costs shows beside the rest.
    "builtin:reverse-64m": TinyConfig(width=528, heads=8, layers=5),
}
_KIND = "tiny"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that exists: its sizes, and where its weights come from (None: from a seed)."""

    path: str
    config: TinyConfig
    weights: Path | None = None

    def build(self, *, seed: int = 0) -> TinyDecoder:
        """The model with its weights, on the CPU. Each call makes another one.

        SpecError if the weights do not fit the sizes.
        """
        model = TinyDecoder.seeded(self.config, seed=seed)
        if self.weights is not None:
            try:
                state = torch.load(self.weights, map_location="cpu", weights_only=True)
                model.load_state_dict(state)
            except (UnpicklingError, EOFError) as error:
                raise SpecError(FIELD, f"{self.weights} is not a file of weights") from error
            except (OSError, RuntimeError, ValueError, AttributeError, TypeError) as error:
                raise SpecError(FIELD, f"cannot load {self.weights}: {error}") from error
        return model


def open_model(path: str) -> ModelSource:
    """The model that `path` names; SpecError says why there is none."""
    if path in _BUILTINS:
        return ModelSource(path, _BUILTINS[path])
    built_in = ", ".join(sorted(_BUILTINS))
    directory = Path(path)
    if path.startswith("builtin:") or not directory.is_dir():
        problem = f"{path!r} is neither built in ({built_in}) nor a directory in this container"
        raise SpecError(FIELD, problem)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise SpecError(FIELD, f"the directory {path!r} has no {name}")
    return ModelSource(path, _read_config(directory / CONFIG_FILE), directory / WEIGHTS_FILE)


def write_model(directory: Path, *, config: TinyConfig, weights: Mapping[str, Tensor]) -> None:
    """Write what `open_model` reads. `directory` is made; files in it are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": _KIND, **asdict(config)}, indent=2)
    (directory / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    torch.save(dict(weights), directory / WEIGHTS_FILE)


def _read_config(path: Path) -> TinyConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(FIELD, f"cannot read {path}: {error}") from error
    kind = values.pop("kind", None) if isinstance(values, dict) else None
    if kind != _KIND:
        raise SpecError(FIELD, f"{path}: kind is {kind!r}; only {_KIND!r} is known here")
    try:
        return TinyConfig(**values)
    except (TypeError, ValueError) as error:
        raise SpecError(FIELD, f"{path}: {error}") from error
