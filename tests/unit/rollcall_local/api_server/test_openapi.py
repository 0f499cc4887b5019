"""What kubectl asks before it sends a manifest: for each kind, whether the server checks fields."""

from pathlib import Path

from rollcall_local.api_server.kinds import KINDS
from tests.unit.rollcall_local.api_server.served import Object, served


async def test_each_kind_is_checked_by_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        _, root = await api.ask("GET", "/openapi/v3")
        checked = []
        for about in root["paths"].values():
            status, group = await api.ask("GET", about["serverRelativeURL"])
            assert (status, group["openapi"]) == (200, "3.0.0")
            operations: list[Object] = [path["patch"] for path in group["paths"].values()]
            for operation in operations:
                assert [each["name"] for each in operation["parameters"]] == ["fieldValidation"]
                checked.append(operation["x-kubernetes-group-version-kind"])
        assert {"group": "rollcall.dev", "version": "v1alpha1", "kind": "RLJob"} in checked
        assert {"group": "", "version": "v1", "kind": "ConfigMap"} in checked
        assert len(checked) == len(KINDS)


async def test_a_group_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        for place in ("apis/nobody.dev/v1", "api/v2", "x"):
            status, body = await api.ask("GET", f"/openapi/v3/{place}")
            assert (status, body["reason"]) == (404, "NotFound")
