"""Without megatron-core the engine says which extra brings it."""

import importlib
import sys

import pytest

PACKAGE = "rollcall_plugins.trainers.megatron"


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.startswith(PACKAGE) or name.partition(".")[0] == "megatron":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", None)
    with pytest.raises(ImportError, match="the extra `megatron`"):
        importlib.import_module(PACKAGE)
