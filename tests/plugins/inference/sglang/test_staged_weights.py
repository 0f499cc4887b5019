"""Weights in memory as a directory of safetensors, which any reader of that format opens."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rollcall_plugins.inference.sglang.staged_weights import stage

WEIGHTS = {
    "narrow": torch.arange(3, dtype=torch.bfloat16),
    "wide": torch.arange(6, dtype=torch.float64).view(2, 3),
    "half": torch.ones(5, dtype=torch.float16),
    "none": torch.empty(0, 4),
    "a view": torch.arange(12, dtype=torch.float32).view(3, 4).t(),
}


def test_a_reader_of_safetensors_finds_the_same_tensors(tmp_path: Path) -> None:
    staged = stage(tmp_path, WEIGHTS.items(), version=3)
    found = load_file(staged.directory / "model.safetensors")
    assert found.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype
    staged.close()


def test_its_memory_is_free_when_it_is_closed(tmp_path: Path) -> None:
    staged = stage(tmp_path, WEIGHTS.items(), version=3)
    staged.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(staged.descriptor)


def test_a_dtype_without_a_name_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    weights = {"odd": torch.zeros(2, dtype=torch.complex64)}
    with pytest.raises(ValueError, match=r"odd has the dtype torch\.complex64"):
        stage(tmp_path, weights.items(), version=3)
    assert list(tmp_path.iterdir()) == []
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before)
