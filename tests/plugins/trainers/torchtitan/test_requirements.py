"""What the engine torchtitan says where it cannot run."""

import importlib
import importlib.util

import pytest
import torch

from rollcall_plugins.trainers import torchtitan


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install 'rollcall\[torchtitan\]'"):
        importlib.reload(torchtitan)


def test_a_torch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+debian")
    with pytest.raises(ImportError, match=r"needs torch 2.13 or newer; this is 2.6.0"):
        importlib.reload(torchtitan)
