"""Whose tokens the operator shows to coordinators."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.kube.connection import ConfigurationError
from rollcall_operator.kube.service_account import ServiceAccount, own_service_account
from tests.token_issuer import TokenIssuer

if TYPE_CHECKING:
    from rollcall_operator.kube.connection import Connection

IN_POD = TokenIssuer().pod_token(job_uid="", pod="operator-0", pod_uid="uid-0", namespace="system")
IN_NO_POD = TokenIssuer().operator_token(job_uid="")


def connection(token: str) -> "Connection":
    async def auth_headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"} if token else {}

    made: Any = SimpleNamespace(auth_headers=auth_headers)
    return cast("Connection", made)


async def test_in_a_pod_it_is_the_pods_and_ends_with_it() -> None:
    found = await own_service_account(connection(IN_POD), setting="")
    assert found == ServiceAccount("system", "default", "operator-0", "uid-0")
    assert found.subject == "system:serviceaccount:system:default"


async def test_a_kubeconfig_of_a_service_account_names_it() -> None:
    found = await own_service_account(connection(IN_NO_POD), setting="")
    assert found == ServiceAccount("rollcall-system", "rollcall-operator")


async def test_a_setting_names_another_one_which_no_pod_is_bound_to() -> None:
    found = await own_service_account(connection(IN_POD), setting="other/name")
    assert found == ServiceAccount("other", "name")
    same = await own_service_account(connection(IN_POD), setting="system/default")
    assert same.pod == "operator-0"


@pytest.mark.parametrize("token", ["", "a-static-token", "a.b.c", "a.bm90IGpzb24.c"])
async def test_a_persons_credentials_need_the_setting(token: str) -> None:
    with pytest.raises(ConfigurationError, match="--service-account NAMESPACE/NAME"):
        await own_service_account(connection(token), setting="")
    found = await own_service_account(connection(token), setting="s/o")
    assert found == ServiceAccount("s", "o")


@pytest.mark.parametrize("setting", ["name", "/name", "namespace/"])
async def test_a_setting_of_another_form_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match="is not NAMESPACE/NAME"):
        await own_service_account(connection(IN_POD), setting=setting)
