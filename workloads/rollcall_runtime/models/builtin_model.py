"""The built-in decoder, by a name or from a directory with `config.json` and safetensors files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.models.model_source import FIELD, Head, ModelSource
from rollcall_runtime.models.source_weights import SourceWeights, new_output_layer, of_files
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.models.weight_files import open_weight_files
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from rollcall_runtime.models.weight_files import WeightFiles
    from rollcall_runtime.models.weight_loading import WeightReader

KIND = "tiny"  # `kind` in its config.json

BUILTINS: Mapping[str, TinyConfig] = {
    "builtin:reverse-tiny": TinyConfig(),
    # 64 MiB in fp32 (16,783,008 parameters): what moving weights costs shows beside the rest.
    "builtin:reverse-64m": TinyConfig(width=528, heads=8, layers=5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSource(ModelSource):
    """A TinyDecoder: its sizes, and the files with its weights (None: they come from a seed)."""

    config: TinyConfig
    files: WeightFiles | None = None

    def build_empty(
        self, *, head: Head = "language-model", dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        with torch.device("meta"):
            model = TinyDecoder(self.config, outputs=0 if head == "language-model" else 1)
        return model.to(dtype).eval()

    def weights(self, *, head: Head = "language-model", seed: int = 0) -> WeightReader:
        parameters = self.build_empty(head=head).state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        made = new_output_layer(shapes, head=head, seed=seed)
        if self.files is not None:
            return of_files(self.files, shapes, made=made, tied={})
        made = {**TinyDecoder.seeded(self.config, seed=seed).state_dict(), **made}
        return SourceWeights(shapes, None, {}, made)

    def config_json(self, *, head: Head, dtype: torch.dtype) -> dict[str, Any]:  # noqa: ARG002
        return {"kind": KIND, **asdict(self.config)}


def builtin_source(path: str) -> BuiltinSource:
    """The model of that name; SpecError lists those that are known."""
    config = BUILTINS.get(path)
    if config is None:
        raise SpecError(FIELD, f"unknown {path!r}; built in: {', '.join(sorted(BUILTINS))}")
    return _source(path, config)


def builtin_directory(path: str, directory: Path, values: Mapping[str, Any]) -> BuiltinSource:
    """The decoder of a directory whose config.json holds `values`; SpecError as `open_model`."""
    sizes = {name: value for name, value in values.items() if name != "kind"}
    try:
        config = TinyConfig(**sizes)
    except (TypeError, ValueError) as error:
        raise SpecError(FIELD, f"{directory / 'config.json'}: {error}") from error
    return _source(path, config, directory, open_weight_files(directory))


def _source(
    path: str,
    config: TinyConfig,
    directory: Path | None = None,
    files: WeightFiles | None = None,
) -> BuiltinSource:
    return BuiltinSource(
        path=path,
        architecture=KIND,
        vocabulary=config.vocabulary,
        positions=config.positions,
        named_eos=frozenset({config.eos}),
        directory=directory,
        config=config,
        files=files,
    )
