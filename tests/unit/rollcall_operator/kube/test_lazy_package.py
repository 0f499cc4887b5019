"""Parts of a package are imported without its `__init__`, which runs when a name is asked for."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_operator.kube.lazy_package import run_init_lazily

NAME = "package_with_a_slow_init"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    inner = tmp_path / NAME / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text(f"import {NAME}.slow\nfrom {NAME} import inner\n")
    (inner.parent / "slow.py").write_text("")
    (inner / "__init__.py").write_text(f"from {NAME} import slow\nvalue = 7\n")
    (inner / "part.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_a_part_is_imported_without_the_init_of_its_packages() -> None:
    run_init_lazily(NAME)
    run_init_lazily(f"{NAME}.inner")
    assert importlib.import_module(f"{NAME}.inner.part").value == 3
    assert f"{NAME}.slow" not in sys.modules


def test_the_init_runs_when_the_package_is_asked_for_a_name() -> None:
    run_init_lazily(NAME)
    run_init_lazily(f"{NAME}.inner")
    assert importlib.import_module(NAME).inner.value == 7
    assert f"{NAME}.slow" in sys.modules


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    run_init_lazily(NAME)
    package = importlib.import_module(NAME)
    for _ in range(2):
        with pytest.raises(AttributeError, match="nothing"):
            _ = package.nothing


def test_a_package_that_was_imported_stays_as_it_is() -> None:
    before = importlib.import_module(NAME)
    run_init_lazily(NAME)
    assert sys.modules[NAME] is before


def test_a_package_that_is_not_there_is_said_so() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        run_init_lazily("no_such_package")
