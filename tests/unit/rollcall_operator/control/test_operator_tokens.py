"""The operator's tokens: one for each job, bound to its pod, renewed long before they expire."""

import datetime as dt
from typing import TYPE_CHECKING, Any, cast

from rollcall_operator.control.operator_tokens import JobCredentials, OperatorTokens
from rollcall_operator.kube.service_account import ServiceAccount

if TYPE_CHECKING:
    from rollcall_operator.control.trust_keys import TrustKeys
    from rollcall_operator.kube.client import KubeClient

ACCOUNT = ServiceAccount("rollcall-system", "rollcall-operator")
START = 1_800_000_000.0


class Cluster:
    """Stands in for the client, and for the time. A token lasts `seconds`."""

    def __init__(self, seconds: float = 3600.0) -> None:
        self.now, self.seconds = START, seconds
        self.asked: list[dict[str, Any]] = []

    def clock(self) -> float:
        return self.now

    async def create_token(self, *, namespace: str, account: str, spec: Any) -> Any:
        assert (namespace, account) == (ACCOUNT.namespace, ACCOUNT.name)
        self.asked.append(spec)
        ends = dt.datetime.fromtimestamp(self.now + self.seconds, dt.UTC)
        text = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"token": f"token-{len(self.asked)}", "expirationTimestamp": text}


def tokens_of(cluster: Cluster, account: ServiceAccount = ACCOUNT) -> OperatorTokens:
    return OperatorTokens(cast("KubeClient", cluster), account, clock=cluster.clock)


async def test_a_token_is_for_one_job_and_is_used_until_most_of_its_life_is_over() -> None:
    cluster = Cluster()
    tokens = tokens_of(cluster)
    assert await tokens.token("a") == "token-1"
    assert await tokens.token("b") == "token-2"
    assert [spec["audiences"] for spec in cluster.asked] == [["rollcall.dev/a"], ["rollcall.dev/b"]]
    cluster.now += 0.79 * 3600
    assert await tokens.token("a") == "token-1"
    cluster.now += 0.02 * 3600
    assert await tokens.token("a") == "token-3"


async def test_a_token_that_lasts_shorter_than_was_asked_for_is_renewed_sooner() -> None:
    cluster = Cluster(seconds=600)
    tokens = tokens_of(cluster)
    await tokens.token("a")
    cluster.now += 500
    assert await tokens.token("a") == "token-2"


async def test_it_ends_with_the_operators_pod() -> None:
    cluster = Cluster()
    account = ServiceAccount(ACCOUNT.namespace, ACCOUNT.name, "operator-0", "uid-0")
    await tokens_of(cluster, account).token("a")
    assert cluster.asked[0]["boundObjectRef"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "operator-0",
        "uid": "uid-0",
    }
    await tokens_of(cluster).token("a")
    assert "boundObjectRef" not in cluster.asked[1], "it runs in no pod"


async def test_after_a_refusal_another_one_is_shown_and_the_keys_are_looked_at() -> None:
    cluster, looks = Cluster(), list[str]()

    class Keys:
        def look_now(self) -> None:
            looks.append("now")

    credentials = JobCredentials(tokens_of(cluster), cast("TrustKeys", Keys()), job_uid="a")
    assert await credentials.token() == await credentials.token() == "token-1"
    credentials.refused()
    assert await credentials.token() == "token-2"
    assert looks == ["now"]
