"""What a local run refuses before anything starts, by file or field."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.manifests import ManifestError, Manifests, read
from tests.apiserver.bad_manifests.manifests import external_job

EXAMPLES = Path(__file__).parents[3] / "examples"
USER = 1000
JOBS = [file for file in sorted(EXAMPLES.glob("*.yaml")) if "kind: RLJob" in file.read_text()]


@pytest.fixture
def job() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    return body


def written(folder: Path, *bodies: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(bodies))
    return file


def taken(*files: Path, folders: tuple[Path, ...] = ()) -> Manifests:
    return read(list(files), list(folders), images={}, user=USER)


def refusal(folder: Path, *bodies: Any) -> str:
    with pytest.raises(ManifestError) as found:
        taken(written(folder, *bodies))
    return str(found.value)


@pytest.mark.parametrize("file", JOBS, ids=lambda path: path.name)
def test_an_example_can_run(file: Path) -> None:
    assert taken(file).jobs


def test_an_example_with_a_volume_from_an_image_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"volumes\[0\].image: is not there on one machine"):
        taken(EXAMPLES / "smollm" / "first-letter.yaml")


@pytest.mark.parametrize("name", ["own-task", "calculator"])
def test_a_kustomization_with_a_generator_is_read(name: str) -> None:
    manifests = taken(folders=(EXAMPLES / name,))
    first, last = manifests.objects
    assert (first["kind"], last["kind"]) == ("ConfigMap", "RLJob")
    assert "prompts.jsonl" in first["data"]


def test_a_kustomization_with_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("patches: []\nresources: [job.yaml]\n")
    with pytest.raises(ManifestError, match=r"patches: not known here; run `kubectl kustomize"):
        taken(folders=(tmp_path,))


def test_a_folder_without_a_kustomization_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=f"{tmp_path}: there is no kustomization.yaml"):
        taken(folders=(tmp_path,))


def test_what_is_no_yaml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("kind: [")
    with pytest.raises(ManifestError, match=r"job.yaml: while parsing"):
        taken(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"job.yaml: .*No such file"):
        taken(tmp_path / "job.yaml")


def test_other_kinds_are_refused_by_name(tmp_path: Path, job: dict[str, Any]) -> None:
    text = refusal(tmp_path, job, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}})
    assert "document 2: kind: 'Job' is none of RLJob" in text


def test_an_object_without_a_name_is_refused(tmp_path: Path, job: dict[str, Any]) -> None:
    del job["metadata"]["name"]
    assert "document 1: metadata.name: is required; add it" in refusal(tmp_path, job)


def test_there_must_be_a_job(tmp_path: Path) -> None:
    claim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    assert refusal(tmp_path, claim) == "no RLJob is given"


def test_every_mistake_is_named_at_once(tmp_path: Path, job: dict[str, Any]) -> None:
    job["spec"]["algorithm"]["maxSteps"] = "many"
    job["spec"]["modle"] = {}
    text = refusal(tmp_path, job)
    assert "spec.algorithm.maxSteps: must be an integer" in text
    assert "spec.modle: unknown field" in text


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"nodeSelector": {"gpu": "a100"}}, "spec.nodeSelector: there is one machine"),
        ({"securityContext": {"runAsUser": 7}}, "spec.securityContext.runAsUser: 7: all processes"),
        (
            {"volumes": [{"name": "a", "csi": {"driver": "d"}}]},
            "spec.volumes[0].csi: is not there on one machine; use one of",
        ),
    ],
)
def test_what_one_machine_lacks_is_refused_by_field(
    tmp_path: Path, job: dict[str, Any], spec: dict[str, Any], says: str
) -> None:
    job["spec"]["trainer"]["template"]["spec"] |= spec
    assert f"RLJob reverse: spec.trainer.template.{says}" in refusal(tmp_path, job)


def test_a_device_that_is_not_handed_out_is_refused(tmp_path: Path, job: dict[str, Any]) -> None:
    (rollout,) = job["spec"]["rollouts"]
    (container,) = rollout["template"]["spec"]["containers"]
    container["resources"]["limits"] = {"huawei.com/Ascend910": 1}
    assert "spec.rollouts[0].template.spec.containers[0].resources: huawei.com/Ascend910" in (
        refusal(tmp_path, job)
    )


def test_an_image_that_stands_for_nothing_is_refused(tmp_path: Path, job: dict[str, Any]) -> None:
    images = {"rollcall/worker-cpu:dev": tmp_path / "bin" / "python"}
    with pytest.raises(ManifestError, match=r"containers\[0\].image: .* does not exist; see"):
        read([written(tmp_path, job)], [], images=images, user=USER)


def test_each_object_comes_after_what_it_names(tmp_path: Path, job: dict[str, Any]) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    pool = yaml.safe_load((EXAMPLES / "extra-pool.yaml").read_text())
    manifests = taken(written(tmp_path, pool, job, settings))
    assert [body["kind"] for body in manifests.objects] == ["ConfigMap", "RLJob", "RolloutPool"]


def test_a_job_has_no_network_policies(tmp_path: Path, job: dict[str, Any]) -> None:
    before = copy.deepcopy(job)
    (placed,) = taken(written(tmp_path, job)).jobs
    assert placed["spec"].pop("networkPolicy") == {"enabled": False}
    assert placed["spec"] == before["spec"]


def test_network_policies_are_left_out(tmp_path: Path, job: dict[str, Any]) -> None:
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {}}
    assert [body["kind"] for body in taken(written(tmp_path, policy, job)).objects] == ["RLJob"]


def test_a_trainer_of_the_users_own_names_its_command(tmp_path: Path) -> None:
    own = external_job()
    assert taken(written(tmp_path, own)).jobs
    container = own["spec"]["trainer"]["template"]["spec"]["containers"][0]
    container["args"] = container.pop("command")
    assert taken(written(tmp_path, own)).jobs
    del container["args"]
    assert "spec.trainer.template: the trainer's container has no command" in refusal(tmp_path, own)
    assert taken(written(tmp_path, job_without_command())).jobs, "a builtin trainer has one"


def job_without_command() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "reverse.yaml").read_text())
    assert "command" not in body["spec"]["trainer"]["template"]["spec"]["containers"][0]
    return body
