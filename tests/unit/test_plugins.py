"""The core knows no plug-in; each registers by an entry point; a missing one is refused by name."""

import ast
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from rollcall_runtime.tasks.environments.environment_plugin import environment_plugins
from rollcall_runtime.tasks.reward_registry import named_rewards
from rollcall_runtime.train.train_engine import train_engines
from rollcall_runtime.train.trainer_plugin import trainer_plugins
from rollcall_runtime.worker import engine_registry
from rollcall_runtime.worker.engine_registry import Registry
from rollcall_runtime.worker.errors import SpecError

ROOT = Path(__file__).parents[2]
PLUGINS = "rollcall_plugins"
CORE = ("operator", "workloads/rollcall_protocol", "workloads/rollcall_runtime")


def test_no_text_of_the_core_names_a_plugin() -> None:
    """`lint-imports` finds imports; a registry is given names as text."""
    found = [
        str(path.relative_to(ROOT))
        for folder in CORE
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and PLUGINS in str(node.value)
    ]
    assert found == []


def test_what_is_installed_has_the_entry_points_of_the_tree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        (group, name, value)
        for group, entries in project["entry-points"].items()
        for name, value in entries.items()
    }
    installed = distribution("rollcall").entry_points
    assert wanted <= {(entry.group, entry.name, entry.value) for entry in installed}, "make venv"


@pytest.mark.parametrize(
    ("registry", "name", "field"),
    [
        (train_engines, "megatron", "spec.trainer.engine.name"),
        (trainer_plugins, "supervised", "spec.supervised"),
        (named_rewards, "math-verify", "spec.reward.function"),
        (environment_plugins, "tools", "spec.environment.tools"),
    ],
)
def test_a_plugin_that_is_not_installed_is_refused_by_name(
    registry: Registry[object], name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_registry, "entry_points", lambda **_: [])
    with pytest.raises(SpecError, match=f"^{field}: unknown .* {name!r}.*; available: "):
        registry.get(name)


def test_each_plugin_has_a_page_that_the_docs_list() -> None:
    folder = ROOT / "workloads" / PLUGINS
    modules = {path.parent for path in folder.glob("*/*/__init__.py")}
    assert len(modules) > 10
    assert {module for module in modules if not (module / "README.md").is_file()} == set()
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    named = {str(module.relative_to(ROOT)) for module in modules}
    assert {name for name in named if f"(../{name}/README.md)" not in page} == set()
