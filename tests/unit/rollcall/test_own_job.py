"""A job without an operator: its folder, its members, and the tokens that it gives them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall import RollcallError
from rollcall.own_job import OwnJob
from rollcall.own_job_settings import OwnJobSettings
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children.worker_config import job_config
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.environment import read_rollout, read_trainer
from rollcall_runtime.worker.identity.roles import CallerRole, RoleBook

SETTINGS = OwnJobSettings("127.0.0.1", "builtin:reverse-tiny")


def job(folder: Path) -> OwnJob:
    return OwnJob(folder / "job", SETTINGS)


def admit(of: OwnJob, name: str = "one", address: str = "127.0.0.2") -> dict[str, str]:
    return of.admit(name, address, engine="tiny", config={})


def test_what_is_not_asked_for_is_as_in_an_rljob(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["c"]}]}}
    rollout = {"spec": {"containers": [{"name": "rollout", "image": "i"}]}}
    pool = {"name": "own", "engine": {"name": "tiny"}, "template": rollout}
    spec = {
        "model": {"path": SETTINGS.model},
        "trainer": {"kind": "External", "template": template},
        "rollouts": [pool],
    }
    wanted = job_config(RLJobSpec.model_validate(spec), namespace="own", name="own", uid="u")
    made = SETTINGS.config("u")
    assert made.weight_sync == wanted.weight_sync
    assert made.membership == wanted.membership
    assert made.external
    assert (made.coordinator.max_steps, made.coordinator.max_staleness) == (0, 0)


def test_members_show_tokens_that_name_them(tmp_path: Path) -> None:
    own = job(tmp_path)
    trainer = read_trainer(own.trainer())
    rollout = read_rollout(admit(own))
    book = RoleBook(job=trainer.job.job, trainer_replicas=1)
    verifier = trainer.verifier()
    shown = verifier.verify(rollout.token())
    assert (shown.pod, shown.pod_uid) == (rollout.pod.name, rollout.pod.uid)
    assert book.role(shown) is CallerRole.REGISTERED
    assert book.role(verifier.verify(trainer.token())) is CallerRole.TRAINER_RANK


def test_another_jobs_tokens_are_refused(tmp_path: Path) -> None:
    other = read_rollout(admit(job(tmp_path / "other")))
    with pytest.raises(Exception, match="unknown key"):
        read_trainer(job(tmp_path).trainer()).verifier().verify(other.token())


def test_a_folder_is_read_again(tmp_path: Path) -> None:
    before = job(tmp_path)
    variables = admit(before)
    after = job(tmp_path)
    assert after.members == before.members
    again = admit(after)
    for name in (pod_contract.POD_UID, pod_contract.CONFIG, pod_contract.TOKEN_DIR):
        assert again[name] == variables[name]
    assert after.trainer()[pod_contract.POD_UID] == before.trainer()[pod_contract.POD_UID]
    assert len(after.members) == 1, "it was admitted before"


def test_the_coordinators_port_is_kept(tmp_path: Path) -> None:
    before = job(tmp_path)
    assert read_trainer(before.trainer()).coordinator_port == 0, "a free one"
    before.listens_at(4711)
    after = job(tmp_path)
    assert read_trainer(after.trainer()).coordinator_port == 4711
    rollout = read_rollout(admit(after))
    assert rollout.coordinator_url(pod_contract.MEMBERSHIP_PORT, "/r") == "https://127.0.0.1:4711/r"
    assert rollout.own_port(pod_contract.AGENT_PORT) == 0, "rollouts may share an address"


def test_the_certificate_is_kept_while_the_address_is(tmp_path: Path) -> None:
    def authorities(settings: OwnJobSettings) -> str:
        variables = OwnJob(tmp_path / "job", settings).trainer()
        return Path(variables[pod_contract.TRUST_DIR], pod_contract.TRUST_FILE).read_text()

    before = authorities(SETTINGS)
    assert authorities(SETTINGS) == before
    assert authorities(replace(SETTINGS, address="::1")) != before


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    job(tmp_path)
    (tmp_path / "job" / "tls" / "tls.crt").write_text("none")
    with pytest.raises(RollcallError, match=r"tls\.crt: .*take another folder"):
        job(tmp_path)


def test_only_its_owner_can_read_the_key(tmp_path: Path) -> None:
    own = job(tmp_path)
    admit(own)
    for key in ("key.pem", "tls/tls.key"):
        assert (tmp_path / "job" / key).stat().st_mode & 0o077 == 0
    assert (tmp_path / "job").stat().st_mode & 0o077 == 0


def test_one_that_was_removed_is_another_when_it_comes_back(tmp_path: Path) -> None:
    own = job(tmp_path)
    first = admit(own)
    own.remove("one")
    assert own.members == ()
    assert not (tmp_path / "job" / "one").exists()
    assert admit(own)[pod_contract.POD_UID] != first[pod_contract.POD_UID]
    with pytest.raises(RollcallError, match="remove: two was not admitted"):
        own.remove("two")


@pytest.mark.parametrize("name", ["", "One", "a_b", "-a", "../a", "own-trainer-0", "a" * 64])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    own = job(tmp_path)
    with pytest.raises(RollcallError, match="take small letters, digits and dashes"):
        admit(own, name)
    assert own.members == ()


def test_addresses_are_checked(tmp_path: Path) -> None:
    own = job(tmp_path)
    with pytest.raises(RollcallError, match="'gpu-3' is no IP address; give the machine's own"):
        admit(own, address="gpu-3")
    with pytest.raises(RollcallError, match="address '' is no IP address"):
        OwnJob(tmp_path / "job", OwnJobSettings("", "m"))
    admit(own)
    with pytest.raises(RollcallError, match="already; remove it before it moves"):
        admit(own, address="127.0.0.3")


@pytest.mark.parametrize("text", ["", "[]", '{"uid": 3}', "{"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text(text)
    with pytest.raises(RollcallError, match=r"job\.json: .*; take another folder"):
        job(tmp_path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "key.pem").write_text(json.dumps({}))
    with pytest.raises(RollcallError, match=r"key\.pem: .*; take another folder"):
        job(tmp_path)
