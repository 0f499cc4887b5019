"""Every manifest of a how-to can be applied: it is planned as `rollcall-operator plan` does."""

from pathlib import Path

import pytest
import yaml

from rollcall_operator.api import yaml_text
from rollcall_operator.plan_command import InvalidManifestError, children
from tests.unit.docs.how_to_pages import HOW_TO, PAGES, blocks, manifests


def planned(page: Path) -> list[str]:
    """Kinds of the children of a page's jobs and pools."""
    found = manifests(page)
    out = children(yaml_text.dump(*found), namespace="default") if found else ""
    return [child["kind"] for child in yaml.safe_load_all(out) if child]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_manifests_of_a_page_are_right(page: Path) -> None:
    jobs = [m for m in manifests(page) if m["kind"] == "RLJob"]
    assert planned(page).count("StatefulSet") == len(jobs)


def test_there_are_manifests() -> None:
    assert len([text for page in PAGES for text in blocks(page)]) >= 6


def test_a_lent_pool_of_a_how_to_gets_its_deployment() -> None:
    assert planned(HOW_TO / "several-pools.md").count("Deployment") == 4


def test_a_field_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. Apply:\n\n   ```yaml\n   reward: {functoin: exact-match}\n   ```\n")
    with pytest.raises(InvalidManifestError, match=r"spec\.reward\.functoin: unknown field"):
        planned(page)
