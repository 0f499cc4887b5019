"""Which authorities a job's clients believe: the operator's, its earlier ones, or the user's."""

import json
from typing import Any

import trustme

from rollcall_operator.plan.children.certificates import believed_authorities
from tests.certificates import certificate_of
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

OWN, BEFORE, OLDER = (
    f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n" for name in "abc"
)


def simulator(tls: dict[str, Any] | None = None) -> JobSimulator:
    made = JobSimulator({"spec.tls": tls} if tls else None)
    made.authority = OWN
    made.converge()
    return made


def believed(made: JobSimulator) -> str:
    bundle = json.loads(made.children["ConfigMap/bad-rollcall-trust"]["data"]["trust.json"])
    return str(bundle["authorities"])


def test_it_is_the_operators_own() -> None:
    assert believed(simulator()) == OWN


def test_servers_of_an_earlier_authority_are_still_believed_when_the_operator_has_another() -> None:
    made = simulator()
    made.authority = BEFORE
    made.converge()
    made.authority = OLDER
    made.converge()
    assert believed(made) == OLDER + BEFORE + OWN
    for number in range(9):
        made.authority = OWN.replace("a", str(number), 1)
        made.converge()
    assert believed(made).count("BEGIN") == 4, "not without end"


def test_a_users_own_is_the_only_one() -> None:
    bundle = certificate_of(trustme.CA())
    made = simulator({"secretName": "mine", "caBundle": bundle})
    assert believed(made) == bundle
    pod = made.children["StatefulSet/bad-trainer"]["spec"]["template"]["spec"]
    secrets = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
    assert secrets == ["mine"]


def test_without_tls_there_is_none_and_no_pod_mounts_a_certificate() -> None:
    made = simulator({"enabled": False})
    assert believed(made) == ""
    for name in ("StatefulSet/bad-trainer", "Deployment/bad-cpu"):
        pod = made.children[name]["spec"]["template"]["spec"]
        assert all("secret" not in volume for volume in pod["volumes"])


def test_a_rollout_has_no_certificate_to_show() -> None:
    made = simulator()
    pod = made.children["Deployment/bad-cpu"]["spec"]["template"]["spec"]
    assert all("secret" not in volume for volume in pod["volumes"])


def test_a_config_map_with_another_text_gets_its_own_again() -> None:
    made = simulator()
    assert made.job is not None
    for text in ("", "[]", '{"authorities": 3}', "{}"):
        live = made.children["ConfigMap/bad-rollcall-trust"]
        live["data"]["trust.json"] = text
        assert OWN in believed_authorities(made.job, [live], OWN)
        made.converge()
        assert believed(made) == OWN
