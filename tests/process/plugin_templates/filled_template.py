"""Copies a template of a plug-in, fills it as docs/plugins.md does, and installs it in a folder."""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "examples" / "plugin-template"
PAGE = ROOT / "docs" / "plugins.md"
HEADINGS = {
    "transport": "A transport",
    "inference": "An inference engine",
    "trainer": "A training engine",
}

_PYTEST = (sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider")

Kind = Literal["transport", "inference", "trainer"]


def copy(kind: Kind, folder: Path) -> Path:
    """The template as it is."""
    return shutil.copytree(TEMPLATES / kind, folder / kind)


def fill(template: Path, kind: Kind) -> None:
    """Replace the functions that the page has bodies for, and add what it imports."""
    engine = template / f"my_{kind}" / "engine.py"
    lines = engine.read_text(encoding="utf-8").splitlines()
    imports: list[str] = []
    bodies: dict[str, str] = {}
    for block in code_blocks(HEADINGS[kind]):
        for statement in ast.parse(block).body:
            source = ast.get_source_segment(block, statement) or ""
            if isinstance(statement, ast.FunctionDef):
                bodies[statement.name] = source
            else:
                imports.append(source)
    tree = ast.parse("\n".join(lines))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {node.name: node for node in methods if node.name in bodies}
    assert found.keys() == bodies.keys(), "the page fills what the template has"
    for node in sorted(found.values(), key=lambda node: -node.lineno):
        body = [f"    {line}" if line else "" for line in bodies[node.name].splitlines()]
        lines[node.lineno - 1 : node.end_lineno] = body
    docstring_end = tree.body[0].end_lineno
    lines[docstring_end:docstring_end] = ["", *imports]
    engine.write_text("\n".join(lines) + "\n", encoding="utf-8")


def code_blocks(heading: str) -> list[str]:
    """The Python blocks under a heading of the page."""
    found, here = [], False
    tokens = MarkdownIt().parse(PAGE.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open" and before.tag == "h2":
            here = token.content == heading
        if here and token.type == "fence" and token.info == "python":
            found.append(token.content)
    return found


def install(template: Path, folder: Path) -> Path:
    """As a distribution in a folder of its own, from which a process imports it."""
    command = (sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--no-build-isolation")
    target = folder / "installed"
    subprocess.run([*command, "--offline", "--target", target, template], check=True, timeout=60)
    return target


def run_its_tests(
    template: Path, installed: Path, chosen: str, *, seconds: float
) -> "subprocess.CompletedProcess[str]":
    """As docs/plugins.md says, from Rollcall's checkout; those that pytest's -k chooses.

    A test that starts pytest itself hands the choice on.
    """
    paths = [str(installed), *(path for path in sys.path if path)]
    return subprocess.run(
        [*_PYTEST, template / "test_conformance.py"],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTEST_ADDOPTS": shlex.join(["-k", chosen, "--maxfail", "3"]),
        },
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
