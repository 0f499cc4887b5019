"""Copies of a stored job: other names and uids, texts of the same length, a roster that fits."""

from hack.bench.operator_load.restart import StoredJob
from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_protocol.wire.roster import RosterMember, roster_digest

TRAINER, ROLLOUT, JOB = (f"{letter * 8}-0000-4000-8000-123456789abc" for letter in "abc")


def pod(role: str, name: str, uid: str) -> Object:
    own = {labels.ROLE: role, labels.POOL: "job-00000-cpu"}
    return {
        "metadata": {"name": name, "uid": uid, "labels": own},
        "status": {"podIP": "198.18.0.7"},
    }


def roster_of(prefix: str, job: str) -> str:
    member = RosterMember(prefix + ROLLOUT[8:], f"{job}-cpu-x", "198.18.0.7", f"{job}-cpu")
    return roster_digest(prefix + TRAINER[8:], (member,))


def stored() -> StoredJob:
    digest = roster_of("b" * 8, "job-00000").encode()
    rljob = {
        "metadata": {"name": "job-00000"},
        "status": {"syncGroups": [{"rosterDigest": "0123456789abcdef"}]},
    }
    assert len(digest) == 16
    value = f"\x00\x09job-00000 uid {JOB} owner {TRAINER} digest 0123456789abcdef".encode()
    pods = [
        pod(labels.ROLLOUT, "job-00000-cpu-x", ROLLOUT),
        pod(labels.TRAINER, "job-00000-trainer-0", TRAINER),
    ]
    return StoredJob([(b"/registry/pods/jobs/job-00000-trainer-0", value)], rljob, pods)


def test_a_copy_has_its_own_name_and_uids_and_the_length_of_the_first() -> None:
    ((key, value),) = stored().copy(258)
    assert key == b"/registry/pods/jobs/job-00258-trainer-0"
    assert value.startswith(b"\x00\x09job-00258 uid 00000102-0000-4000-8000-123456789abc owner ")
    ((_, other),) = stored().copy(259)
    assert len(value) == len(other)
    assert value != other


def test_the_status_of_a_copy_names_the_roster_of_its_own_pods() -> None:
    ((_, value),) = stored().copy(258)
    assert value.endswith(b"digest " + roster_of("00000102", "job-00258").encode())
