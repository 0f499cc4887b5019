"""What a worker reads at its start; what is missing is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import ReferenceConfig, ReferencePodConfig
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime.worker.environment import (
    new_member,
    read_front,
    read_reference,
    read_rollout,
    read_trainer,
)
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.credentials import ISSUER
from tests.unit.rollcall_runtime.jobs import job_config, pool_config

JOB = job_config()


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    mounted = ISSUER.mount(tmp_path, job_uid=JOB.uid, pod="p", pod_uid="u", namespace=JOB.namespace)
    (tmp_path / pod_contract.TOKEN_FILE).write_text("own-token\n")
    return {
        pod_contract.CONFIG: json.dumps(encode(job_config())),
        pod_contract.POOL_CONFIG: json.dumps(encode(pool_config())),
        pod_contract.REFERENCE_CONFIG: json.dumps(encode(ReferencePodConfig("cpu"))),
        pod_contract.COORDINATOR: "reverse-trainer-0.reverse-trainer",
        pod_contract.POD_NAME: "reverse-trainer-0",
        pod_contract.POD_UID: "uid-1",
        pod_contract.POD_IP: "127.0.0.2",
        **mounted,
        pod_contract.STATE_DIR: str(tmp_path),
    }


def test_a_rollout_learns_its_job_pool_and_token(variables: dict[str, str]) -> None:
    read = read_rollout(variables)
    assert (read.job, read.pool) == (job_config(), pool_config())
    assert (read.token(), read.pod.address) == ("own-token", "127.0.0.2")
    assert read.trust.current().operator == ISSUER.operator


def test_a_reference_pod_learns_its_job_and_device_and_needs_no_token(
    variables: dict[str, str],
) -> None:
    del variables[pod_contract.COORDINATOR], variables[pod_contract.TOKEN_DIR]
    read = read_reference(variables)
    assert (read.job, read.pods) == (job_config(), ReferencePodConfig("cpu"))
    assert read.pod.address == "127.0.0.2"
    token = ISSUER.pod_token(
        job_uid=JOB.uid,
        pod="p",
        pod_uid="u",
        namespace=JOB.namespace,
        audience=pod_contract.reference_audience(JOB.uid),
    )
    assert read.verifier().verify(token).pod == "p"


def test_a_front_learns_its_bounds_and_where_the_keys_are(
    variables: dict[str, str], tmp_path: Path
) -> None:
    variables[pod_contract.FRONT_CONFIG] = json.dumps(encode(FrontConfig(most_running=3)))
    with pytest.raises(SpecError, match=pod_contract.API_KEYS_DIR):
        read_front(variables)
    variables[pod_contract.API_KEYS_DIR] = str(tmp_path)
    read = read_front(variables)
    assert (read.front.most_running, read.token()) == (3, "own-token")
    assert read.keys_file == tmp_path / "api-keys"
    assert read.certificate is None


def test_a_front_without_keys_says_so(variables: dict[str, str]) -> None:
    variables[pod_contract.FRONT_CONFIG] = json.dumps(encode(FrontConfig(without_keys=True)))
    assert read_front(variables).keys_file is None


def test_a_trainer_learns_its_token_and_its_rank(variables: dict[str, str]) -> None:
    config = replace(job_config(), trainer_replicas=3)
    variables |= {
        pod_contract.CONFIG: json.dumps(encode(config)),
        pod_contract.POD_NAME: "reverse-trainer-2",
    }
    read = read_trainer(variables)
    assert (read.token(), read.rank, read.reference_token) == ("own-token", 2, None)


def test_a_trainer_has_another_token_for_a_reference_in_pods_of_its_own(
    variables: dict[str, str], tmp_path: Path
) -> None:
    config = replace(JOB, reference=ReferenceConfig(host="reverse-reference"))
    variables |= {pod_contract.CONFIG: json.dumps(encode(config))}
    read = read_trainer(variables)
    assert read.reference_token is not None
    assert read.reference_token() == (tmp_path / pod_contract.REFERENCE_TOKEN_FILE).read_text()


@pytest.mark.parametrize(("pod", "local_rank", "rank"), [(0, 0, 0), (0, 1, 1), (2, 1, 5)])
def test_ranks_are_counted_through_pods_and_their_processes(
    variables: dict[str, str], pod: int, local_rank: int, rank: int
) -> None:
    variables |= several_ranks() | {
        pod_contract.POD_NAME: f"reverse-trainer-{pod}",
        pod_contract.LOCAL_RANK: str(local_rank),
    }
    read = read_trainer(variables)
    assert (read.rank, read.local_rank, read.starts_ranks) == (rank, local_rank, False)
    assert read.job.trainer_ranks == 6


def test_the_first_process_of_a_pod_of_several_ranks_starts_them(
    variables: dict[str, str],
) -> None:
    assert read_trainer(variables | several_ranks()).starts_ranks
    assert not read_trainer(variables).starts_ranks, "one rank needs no other process"


def several_ranks() -> dict[str, str]:
    config = replace(job_config(), trainer_replicas=3, trainer_processes=2)
    return {pod_contract.CONFIG: json.dumps(encode(config))}


def test_each_start_is_another_member_of_the_pod(variables: dict[str, str]) -> None:
    pod = read_rollout(variables).pod
    first, second = new_member(pod), new_member(pod)
    assert first.pod_uid == second.pod_uid == "uid-1"
    assert first.boot_id != second.boot_id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({pod_contract.CONFIG: ""}, "ROLLCALL_CONFIG: is not set"),
        ({pod_contract.CONFIG: "{"}, "ROLLCALL_CONFIG: Expecting property name"),
        ({pod_contract.CONFIG: "{}"}, "ROLLCALL_CONFIG: JobConfig.namespace: missing"),
        ({pod_contract.POD_IP: ""}, "ROLLCALL_POD_IP: is not set"),
        ({pod_contract.POD_NAME: "reverse-trainer"}, "does not end in an ordinal"),
        ({pod_contract.POD_NAME: "reverse-trainer-1"}, "does not end in an ordinal below 1"),
        ({pod_contract.LOCAL_RANK: "1"}, "ROLLCALL_LOCAL_RANK: '1' is not a number below 1"),
        ({pod_contract.TOKEN_DIR: "/nowhere"}, "ROLLCALL_TOKEN_DIR: '/nowhere' is not a folder"),
        ({pod_contract.TRUST_DIR: "/nowhere"}, "ROLLCALL_TRUST_DIR: '/nowhere' is not a folder"),
    ],
)
def test_what_is_wrong_is_named(
    variables: dict[str, str], change: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read_trainer(variables | change)
    assert message in str(caught.value)


def test_an_empty_token_is_no_token(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / pod_contract.TOKEN_FILE).write_text(" \n")
    with pytest.raises(SpecError, match="token is empty"):
        read_rollout(variables)
