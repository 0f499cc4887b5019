"""Writes a model as a directory that `open_model`, and transformers, load."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.models.adapter_files import adapter_shapes, write_adapter
from rollcall_runtime.models.tensor_file import write_tensors
from rollcall_runtime.models.weight_files import INDEX_FILE, SINGLE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

    from rollcall_protocol.adapter_config import AdapterConfig
    from rollcall_runtime.models.model_source import Head, ModelSource

FILE_BYTES = 5 * 10**9

# Files that a model's directory has beside weights and config.json.
_COPIED = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "generation_config.json",
    "LICENSE*",
)


def export_model(
    source: ModelSource,
    weights: Iterable[tuple[str, Tensor]],
    directory: Path,
    *,
    head: Head = "language-model",
    dtype: torch.dtype = torch.float32,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write `weights`, the whole tensors of a model that was built from `source`, to `directory`.

    Names are those of `source`, as `TrainEngine.named_weights` gives them; each tensor is written
    in `dtype`, in files of at most `file_bytes` unless one tensor is larger. Tokenizer, chat
    template and generation settings are the source's. `directory` appears when everything is
    written; until then host memory holds one file's tensors. ValueError if the tensors are not the
    model's; FileExistsError if `directory` is there already; OSError if it cannot be written.
    """
    with _appearing(directory) as scratch:
        _write_weights(source, weights, scratch, head=head, dtype=dtype, file_bytes=file_bytes)
        _write_json(scratch / "config.json", source.config_json(head=head, dtype=dtype))
        _copy_files(source, scratch)


def export_adapter(
    source: ModelSource,
    config: AdapterConfig,
    weights: Iterable[tuple[str, Tensor]],
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `weights`, the tensors of an adapter of `source` by PEFT's names, to `directory`.

    That is what `PeftModel.from_pretrained` reads beside the model. Errors as `export_model`.
    """
    with _appearing(directory) as scratch:
        tensors = {name: _copied(tensor, dtype) for name, tensor in weights}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = adapter_shapes(source.weights().shapes, config)
        if found != expected:
            wrong = sorted({name for name, _ in found.items() ^ expected.items()})
            raise ValueError(f"not the adapter's: {', '.join(wrong[:3])}")
        write_adapter(scratch, tensors, config, base=source.path)


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """A folder that becomes `directory`, on the disk, when all is written into it."""
    if directory.exists():
        raise FileExistsError(f"'{directory}' is there already")
    scratch = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        _sync(scratch)
        scratch.rename(directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_weights(
    source: ModelSource,
    weights: Iterable[tuple[str, Tensor]],
    folder: Path,
    *,
    head: Head,
    dtype: torch.dtype,
    file_bytes: int,
) -> None:
    missing = dict(source.weights(head=head).shapes)
    files: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = held_bytes = 0
    for name, tensor in weights:
        shape = missing.pop(name, None)
        if shape != tuple(tensor.shape):
            raise ValueError(f"{name} {tuple(tensor.shape)} is not the model's: {shape}")
        size = tensor.numel() * dtype.itemsize
        if held and held_bytes + size > file_bytes:
            files.append(_write_file(folder, len(files), held))
            held, held_bytes = {}, 0
        held[name] = _copied(tensor, dtype)
        held_bytes += size
        total += size
    files.append(_write_file(folder, len(files), held))
    if missing:
        raise ValueError(f"not given: {', '.join(sorted(missing)[:3])}")
    _name_files(folder, files, total=total)


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # The tensor may be the model's own memory, or a view of a larger one.
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number}.safetensors"


def _write_file(folder: Path, number: int, tensors: dict[str, Tensor]) -> list[str]:
    # transformers asks for this mark of the framework that wrote a file.
    write_tensors(tensors, _part(folder, number), metadata={"format": "pt"})
    return list(tensors)


def _name_files(folder: Path, files: list[list[str]], *, total: int) -> None:
    """Give the files the names that transformers looks for, now that their count is known."""
    if len(files) == 1:
        _part(folder, 0).rename(folder / SINGLE_FILE)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files):
        final = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        _part(folder, number).rename(folder / final)
        weight_map |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / INDEX_FILE, index)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _copy_files(source: ModelSource, folder: Path) -> None:
    if source.directory is None:
        return
    for pattern in _COPIED:
        for path in source.directory.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)


def _sync(folder: Path) -> None:
    """The files are on the disk before the rename makes them visible."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
