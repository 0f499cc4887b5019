"""The safetensors files of a model's directory: which tensors they hold, and reading one of them.

One file `model.safetensors`, or several that `model.safetensors.index.json` names, as transformers
writes them. Opening checks headers, sizes and index without reading any data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from rollcall_runtime.models.finite import finite
from rollcall_runtime.models.json_file import read_json_object
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_HEADER_BYTES = 32 << 20
"""Of a file of some 250,000 tensors."""

# Dtypes that a model can be trained from, as safetensors names them.
_DTYPES = frozenset({"F32", "BF16", "F16", "F64"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is stored; `dtype` as safetensors names it, such as BF16."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The tensors of `directory` by name."""

    directory: Path
    tensors: Mapping[str, StoredTensor]

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Tensor:
        """The tensor, or `rows` (the first, and the end) of its first dimension, on the CPU.

        SpecError names file and tensor if a number of it is NaN or infinite: a model with it
        computes nothing else.
        """
        with _opened(self.tensors[name].file, framework="pt") as file:
            tensor: Tensor
            if rows is None:
                tensor = file.get_tensor(name)
            else:
                tensor = file.get_slice(name)[rows[0] : rows[1]]
        if not finite(tensor):
            problem = f"{self.tensors[name].file}: {name} holds NaN or infinite numbers"
            raise SpecError(FIELD, f"{problem}, so nothing can be learnt; copy the model again")
        return tensor


def open_weight_files(directory: Path) -> WeightFiles:
    """Read the headers. SpecError names a file that is missing, damaged or not as indexed."""
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        found = _tensors(single)
    elif index.is_file():
        found = _indexed_tensors(index)
    else:
        raise SpecError(
            FIELD, f"the directory '{directory}' has no {SINGLE_FILE}{_hint(directory)}"
        )
    for name, tensor in found.items():
        if tensor.dtype not in _DTYPES:
            raise SpecError(
                FIELD,
                f"{tensor.file}: {name} is stored as {tensor.dtype}; quantized weights cannot be "
                f"trained: name a copy with weights of {', '.join(sorted(_DTYPES))}",
            )
    return WeightFiles(directory, found)


def _hint(directory: Path) -> str:
    """What else the directory holds that looks like weights."""
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt")):
        return " but pickled weights, which are not read; save the model as safetensors"
    return f" and no {INDEX_FILE}"


def _indexed_tensors(index: Path) -> dict[str, StoredTensor]:
    files = _weight_map(index)
    headers = {name: _tensors(index.parent / name) for name in sorted(set(files.values()))}
    for tensor, file in files.items():
        if tensor not in headers[file]:
            raise SpecError(
                FIELD,
                f"{index} says that {tensor} is in {file}, which holds no such tensor; "
                "copy index and files from one model",
            )
    return {tensor: headers[file][tensor] for tensor, file in files.items()}


def _weight_map(index: Path) -> dict[str, str]:
    files = read_json_object(index).get("weight_map")
    if not (isinstance(files, dict) and files and all(map(_is_file_name, files.values()))):
        raise SpecError(FIELD, f"{index} has no weight_map from tensors to files beside it")
    missing = sorted({name for name in files.values() if not (index.parent / name).is_file()})
    if missing:
        raise SpecError(
            FIELD,
            f"{index} names {len(set(files.values()))} files, of which {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; copy the whole model",
        )
    return files


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value == Path(value).name


def _tensors(path: Path) -> dict[str, StoredTensor]:
    _check_header_size(path)
    # numpy: the header is the same, and torch is not needed for it.
    with _opened(path, framework="numpy") as file:
        found = {}
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            found[name] = StoredTensor(path, part.get_dtype(), tuple(part.get_shape()))
        return found


def _check_header_size(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        size = int.from_bytes(file.read(8), "little")
        whole = os.fstat(file.fileno()).st_size
    if size > min(whole, MAX_HEADER_BYTES):
        problem = f"{path} is not a whole safetensors file (a header of {size} bytes in {whole})"
        raise SpecError(FIELD, f"{problem}; copy it again")


def _opened(path: Path, *, framework: str) -> Any:
    """The open file; SpecError if its header is damaged or does not fit its size."""
    try:
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError) as error:
        problem = f"{path} is not a whole safetensors file ({error}); copy it again"
        raise SpecError(FIELD, problem) from error
