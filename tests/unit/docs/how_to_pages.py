"""The manifests of the how-to pages."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PAGES = sorted(HOW_TO.glob("*.md"))
_FENCE = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The blocks of YAML of a page, without the indentation of the list that they stand in."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def manifests(page: Path) -> list[dict[str, Any]]:
    """Of all blocks of a page; a part of a spec takes its place in the job of examples/own-task."""
    return [manifest for text in blocks(page) for manifest in _manifests_of(text)]


def _manifests_of(text: str) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(text):
        if "kind" in document:
            yield document
            continue
        job = yaml.safe_load((ROOT / "examples" / "own-task" / "rljob.yaml").read_text())
        yield job | {"spec": job["spec"] | document.get("spec", document)}
