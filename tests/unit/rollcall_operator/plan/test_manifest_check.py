"""What is wrong with a manifest, and between a pool and its job."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_operator.plan.manifest_check import CheckedManifest, check_manifest, pool_errors

EXAMPLES = Path(__file__).parents[4] / "examples"


def manifest(file: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / file).read_text())
    body["metadata"].setdefault("namespace", "default")
    return body


@pytest.fixture
def job() -> dict[str, Any]:
    return manifest("reverse.yaml")


@pytest.fixture
def pool() -> dict[str, Any]:
    return manifest("extra-pool.yaml")


def of_pool(pool: dict[str, Any], job: dict[str, Any]) -> list[str]:
    found: list[CheckedManifest] = [check_manifest(job), check_manifest(pool)]
    assert not any(each.errors for each in found)
    return list(pool_errors(found[1], found))


def test_a_right_one_has_its_defaults(job: dict[str, Any]) -> None:
    found = check_manifest(job)
    assert found.errors == ()
    assert found.body["spec"]["algorithm"]["groupSize"] == 16


def test_mistakes_of_fields_and_of_the_name_are_found_together(job: dict[str, Any]) -> None:
    job["metadata"]["name"] = "a" * 80
    job["spec"]["modle"] = {}
    name, field = check_manifest(job).errors
    assert name.startswith("metadata.name")
    assert field == "spec.modle: unknown field; remove it, or correct its name"


def test_a_date_is_to_be_written_in_quotes(job: dict[str, Any]) -> None:
    job["spec"]["model"]["path"] = dt.date(2026, 1, 1)
    (error,) = check_manifest(job).errors
    assert error.endswith("write dates and the like in quotes")


def test_without_a_spec_there_is_one_error(job: dict[str, Any]) -> None:
    del job["spec"]
    assert check_manifest(job).errors == ("spec: is required; add it",)


def test_a_pool_fits_its_job(job: dict[str, Any], pool: dict[str, Any]) -> None:
    assert of_pool(pool, job) == []


def test_a_pool_needs_its_job_in_its_own_namespace(
    job: dict[str, Any], pool: dict[str, Any]
) -> None:
    pool["metadata"]["namespace"] = "other"
    (error,) = of_pool(pool, job)
    assert error.startswith("spec.jobRef.name: no RLJob 'reverse' in these manifests")


def test_a_pool_needs_a_sync_group_of_its_job(job: dict[str, Any], pool: dict[str, Any]) -> None:
    pool["spec"]["syncGroup"] = "far"
    (error,) = of_pool(pool, job)
    assert error.startswith("spec.syncGroup: the job has no sync group 'far'")
