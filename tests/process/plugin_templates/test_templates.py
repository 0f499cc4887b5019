"""A plug-in is made as docs/plugins.md says: copied, filled, installed, run through its suite."""

import ast
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from tests.process.plugin_templates.filled_template import (
    Kind,
    copy,
    fill,
    install,
    run_its_tests,
)

KINDS = get_args(Kind)
SECONDS = 560.0
SUITES: dict[Kind, str] = {
    "transport": "not abort_ends_a_join and not aborted_publish",  # they assert times
    "inference": "",
    "trainer": "passes_the_suite or (DP2 and not 2x and not llama and not checkpoint)",
}

FIRST: dict[Kind, str] = {
    "transport": "byte_for_byte",
    "inference": "copied",
    "trainer": "passes_the_suite or (DP2 and not_finite)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_fills_each_marked_place(kind: Kind, tmp_path: Path) -> None:
    template = copy(kind, tmp_path)
    assert "FILL 1: " in engine_of(template, kind)
    fill(template, kind)
    assert "FILL 1: " not in engine_of(template, kind)
    assert "FILL 2: " not in engine_of(template, kind)
    assert "FILL 3: " not in engine_of(template, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_point_of_a_template_names_its_class(kind: Kind, tmp_path: Path) -> None:
    template = copy(kind, tmp_path)
    project = tomllib.loads((template / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((entries),) = project["entry-points"].values()
    assert list(entries) == [f"example.my-{kind}"]
    module, _, name = entries[f"example.my-{kind}"].partition(":")
    assert module == f"my_{kind}.engine"
    classes = [n for n in ast.parse(engine_of(template, kind)).body if isinstance(n, ast.ClassDef)]
    assert name in {found.name for found in classes}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 40)
@pytest.mark.parametrize("kind", KINDS)
def test_a_filled_template_passes_the_suite(kind: Kind, tmp_path: Path) -> None:
    template = copy(kind, tmp_path)
    fill(template, kind)
    run = run_its_tests(template, install(template, tmp_path), SUITES[kind], seconds=SECONDS)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 40)
@pytest.mark.parametrize("kind", KINDS)
def test_a_template_as_it_is_fails_with_the_place_to_fill(kind: Kind, tmp_path: Path) -> None:
    template = copy(kind, tmp_path)
    run = run_its_tests(template, install(template, tmp_path), FIRST[kind], seconds=SECONDS)
    assert run.returncode == 1, run.stdout
    assert "NotImplementedError: FILL 1: " in run.stdout


def engine_of(template: Path, kind: Kind) -> str:
    return (template / f"my_{kind}" / "engine.py").read_text(encoding="utf-8")
