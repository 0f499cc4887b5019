"""Each setting of a weight-sync transport, a server of rollouts and a reward is in a page.

Those of training engines are in docs/reference.md, which is generated.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rollcall_protocol.settings_reader import camel_case

ROOT = Path(__file__).parents[3]
WORKLOADS = ROOT / "workloads"
SOURCES = [
    *(WORKLOADS / "rollcall_plugins").rglob("*.py"),
    *(WORKLOADS / "rollcall_runtime/sync").rglob("*.py"),
    *(WORKLOADS / "rollcall_runtime/rollout/engines").rglob("*.py"),
    *(WORKLOADS / "rollcall_runtime/tasks").rglob("*.py"),
    *(WORKLOADS / "rollcall_protocol").glob("*_settings.py"),
]
GENERATED = {"EngineSettings", "LoopSettings", "AlgorithmSettings"}  # docs/reference.md


def settings() -> Iterator[str]:
    """As a manifest has them. No package is imported, since some are for other machines."""
    for source in SOURCES:
        for found in ast.parse(source.read_text()).body:
            if not isinstance(found, ast.ClassDef) or found.name in GENERATED:
                continue
            if found.name.endswith("Settings"):
                for item in found.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        yield camel_case(item.target.id)


def test_each_is_in_a_page() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *WORKLOADS.rglob("README.md")]
    named = {word for page in pages for word in re.findall(r"\w+", page.read_text())}
    every = set(settings())
    assert {"operationBytes", "gpuMemoryUtilization", "pinMemory", "memoryMebibytes"} <= every
    assert sorted(every - named) == []
