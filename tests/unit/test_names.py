"""House rules on names and words that no other tool checks."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.golden import metrics

ROOT = Path(__file__).parents[2]
SOURCES = ("operator", "workloads", "hack")
PRODUCT = ("operator", "workloads")

# Words that leave open who does what to what. In messages, help and descriptions that users read.
UNCLEAR = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|tells?|told|hears?|heard|knock(s|ed)?|drew"
    r"|what there is|what is the case|struck off|anew)\b",
    re.IGNORECASE,
)
# The same in names, where the verb of the field is report, receive, sample or wait for.
UNCLEAR_IN_NAMES = {
    *("nobody", "somebody", "anybody", "everybody", "whoever", "tell", "tells", "told"),
    *("hear", "hears", "heard", "knock", "knocks", "knocked", "drew", "drawn", "noted", "anew"),
}
LOGGING = {"debug", "info", "warning", "error", "exception"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_public_class_name_is_defined_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources(*PRODUCT):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name_of(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_formatting_is_never_switched_off() -> None:
    mark = "# fmt: " + "skip"
    found = [name_of(p) for p in sources(*SOURCES, "tests", "images") if mark in p.read_text()]
    assert found == []


def test_the_runtimes_root_holds_packages_and_the_command_line_alone() -> None:
    root = ROOT / "workloads" / "rollcall_runtime"
    assert {path.name for path in root.glob("*.py")} == {"__init__.py", "cli.py"}


def defined(path: Path) -> Iterator[str]:
    """The names that a module defines: of functions, classes, arguments, variables and fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


@pytest.mark.parametrize("folder", [*SOURCES, "tests", "images"])
def test_names_say_who_does_what(folder: str) -> None:
    names = {(name_of(path), name) for path in sources(folder) for name in defined(path)}
    assert sorted((path, n) for path, n in names if words_of(n) & UNCLEAR_IN_NAMES) == []


# --- words that users read -----------------------------------------------------------------------


def texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def logged(path: Path) -> Iterator[tuple[str, str]]:
    """Where a log message stands, and its text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOGGING
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
            and node.args
        ):
            for text in texts(node.args[0]):
                yield f"{name_of(path)}:{node.lineno}", text


def raised(path: Path) -> Iterator[tuple[str, str]]:
    """Where an error is raised, and the texts in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for text in texts(node.exc):
                yield f"{name_of(path)}:{node.lineno}", text


def unclear(found: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{where}: {text}" for where, text in found if UNCLEAR.search(text)]


def test_log_messages_name_who_does_what() -> None:
    assert [line for path in sources(*PRODUCT) for line in unclear(logged(path))] == []


def test_error_messages_name_who_does_what() -> None:
    assert [line for path in sources(*PRODUCT) for line in unclear(raised(path))] == []


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.name)
def test_what_kubectl_explain_prints_names_who_does_what(path: Path) -> None:
    def descriptions(value: object, where: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            text = value.get("description")
            if isinstance(text, str):
                yield where, text
            for name, inner in value.items():
                yield from descriptions(inner, f"{where}.{name}")
        elif isinstance(value, list):
            for inner in value:
                yield from descriptions(inner, where)

    assert unclear(descriptions(yaml.safe_load(path.read_text(encoding="utf-8")), "")) == []


def test_the_help_of_metrics_names_who_does_what() -> None:
    assert unclear(("metrics", line) for line in metrics.render().splitlines()) == []


@pytest.mark.parametrize("name", ["conditions.txt", "events.txt"])
def test_conditions_and_events_name_who_does_what(name: str) -> None:
    lines = (ROOT / "tests" / "golden" / name).read_text(encoding="utf-8").splitlines()
    assert unclear((name, line) for line in lines) == []
