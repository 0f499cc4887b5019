"""Every manifest of a how-to can be applied: it is planned as `rollcall-operator plan` does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_operator.api import yaml_text
from rollcall_operator.plan_command import InvalidManifestError, children

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
FENCE = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The blocks of YAML of a page, without the indentation of the list that they stand in."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def manifests(text: str) -> Iterator[dict[str, Any]]:
    """Of one block; a part of a spec takes its place in the job of examples/own-task."""
    for document in yaml.safe_load_all(text):
        if "kind" in document:
            yield document
            continue
        job = yaml.safe_load((ROOT / "examples" / "own-task" / "rljob.yaml").read_text())
        yield job | {"spec": job["spec"] | document.get("spec", document)}


def planned(page: Path) -> list[str]:
    """Kinds of the children of a page's jobs and pools."""
    found = [m for text in blocks(page) for m in manifests(text)]
    out = children(yaml_text.dump(*found), namespace="default") if found else ""
    return [child["kind"] for child in yaml.safe_load_all(out) if child]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_manifests_of_a_page_are_right(page: Path) -> None:
    jobs = [m for text in blocks(page) for m in manifests(text) if m["kind"] == "RLJob"]
    assert planned(page).count("StatefulSet") == len(jobs)


def test_there_are_manifests() -> None:
    assert len([text for page in PAGES for text in blocks(page)]) >= 6


def test_a_lent_pool_of_a_how_to_gets_its_deployment() -> None:
    assert planned(ROOT / "docs" / "how-to" / "several-pools.md").count("Deployment") == 4


def test_a_field_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. Apply:\n\n   ```yaml\n   reward: {functoin: exact-match}\n   ```\n")
    with pytest.raises(InvalidManifestError, match=r"spec\.reward\.functoin: unknown field"):
        planned(page)
