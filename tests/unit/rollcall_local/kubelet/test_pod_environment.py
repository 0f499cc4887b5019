"""What a container is started with: variables, references, and folders in place of mount paths."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall_local.api_server.errors import MissingObjectError
from rollcall_local.kubelet.pod_environment import (
    UnsupportedValueError,
    command,
    expanded,
    inherited,
    variables,
    with_addresses,
    with_folders,
)
from tests.unit.rollcall_local.kubelet import kubelet_expansion

FIELDS = {"metadata.name": "web-0", "status.podIP": "127.1.2.3"}
CONTENT = {
    ("ConfigMap", "settings"): {"level": "info"},
    ("ConfigMap", "dollars"): {"price": "$(A)$$"},
    ("Secret", "login"): {"password": "xyz"},
}


def read(kind: str, name: str) -> Mapping[str, str]:
    try:
        return CONTENT[kind, name]
    except KeyError as error:
        raise MissingObjectError(f"{kind} {name} not found") from error


def of_env(*env: dict[str, Any], **more: Any) -> dict[str, str]:
    return variables({"env": list(env), **more}, FIELDS, read)


def from_source(**source: Any) -> dict[str, str]:
    return of_env({"name": "X", "valueFrom": source})


# --- references -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$", "$"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$A ${A} $(A", "$A ${A} $(A"),
        ("$(B$(A))", "$(B$(A))"),  # its name is B$(A
        ("$(B$$C)", "$(B$$C)"),
    ],
)
def test_a_reference_becomes_a_value_and_what_is_not_known_stays(text: str, result: str) -> None:
    assert expanded(text, {"A": "1"}) == result


@settings(max_examples=500)
@given(st.text('$()AB. \n"é', max_size=16))
def test_a_text_becomes_what_a_kubelet_makes_of_it(text: str) -> None:
    values = {"A": "1", "A.B": "$(A)$$", "": "empty", "B$(A": "odd"}
    assert expanded(text, values) == kubelet_expansion.expand(text, values)


def test_a_variable_may_refer_to_those_before_it() -> None:
    found = of_env(
        {"name": "A", "value": "$(B)"},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "$(B)$(level)"},
        envFrom=[{"configMapRef": {"name": "settings"}}],
    )
    assert found == {"level": "info", "A": "$(B)", "B": "2", "C": "2info"}


def test_a_variable_without_a_value_is_empty() -> None:
    assert of_env({"name": "A"}) == {"A": ""}


def test_what_comes_from_elsewhere_is_taken_as_it_is() -> None:
    source = {"configMapKeyRef": {"name": "dollars", "key": "price"}}
    found = of_env({"name": "A", "value": "1"}, {"name": "X", "valueFrom": source})
    assert found["X"] == "$(A)$$"


def test_a_command_refers_to_the_containers_variables() -> None:
    container = {"command": ["serve", "$(A)"], "args": ["$(HOME)", "/data/x"]}
    found = command(container, {"A": "1"}, {"/data": Path("/there")})
    assert found == ["serve", "1", "$(HOME)", "/there/x"]


# --- sources ----------------------------------------------------------------------------------


def test_variables_come_from_fields_config_maps_and_secrets() -> None:
    assert from_source(fieldRef={"fieldPath": "metadata.name"}) == {"X": "web-0"}
    assert from_source(configMapKeyRef={"name": "settings", "key": "level"}) == {"X": "info"}
    assert from_source(secretKeyRef={"name": "login", "key": "password"}) == {"X": "xyz"}


def test_all_keys_of_a_config_map_become_variables_and_own_ones_win() -> None:
    source = {"prefix": "LOG_", "configMapRef": {"name": "settings"}}
    assert of_env(envFrom=[source]) == {"LOG_level": "info"}
    own = {"name": "password", "value": "own"}
    assert of_env(own, envFrom=[{"secretRef": {"name": "login"}}]) == {"password": "own"}


@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_what_is_away_is_waited_for_unless_it_is_optional(kind: str) -> None:
    reference = {"name": "away", "key": "k"}
    with pytest.raises(MissingObjectError):
        from_source(**{f"{kind}KeyRef": reference})
    with pytest.raises(MissingObjectError):
        of_env(envFrom=[{f"{kind}Ref": {"name": "away"}}])
    optional = {**reference, "optional": True}
    assert from_source(**{f"{kind}KeyRef": optional}) == {}
    assert of_env(envFrom=[{f"{kind}Ref": {"name": "away", "optional": True}}]) == {}


def test_a_key_that_is_away_is_named_unless_it_is_optional() -> None:
    reference = {"name": "settings", "key": "colour"}
    with pytest.raises(UnsupportedValueError, match="env X: ConfigMap settings has no key colour"):
        from_source(configMapKeyRef=reference)
    assert from_source(configMapKeyRef={**reference, "optional": True}) == {}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"fieldRef": {"fieldPath": "spec.x"}}, "env X: fieldPath spec.x is not known here"),
        ({"resourceFieldRef": {}}, "env X: valueFrom.resourceFieldRef is not known here"),
    ],
)
def test_a_source_that_is_not_there_on_one_machine_is_named(
    source: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedValueError, match=message):
        from_source(**source)


def test_programs_caches_and_proxies_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PATH", "HF_HOME", "https_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, f"of {name}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    found = inherited()
    assert found["PATH"] == "of PATH"
    assert {"HF_HOME", "https_proxy", "NO_PROXY"} < found.keys()
    assert "AWS_SECRET_ACCESS_KEY" not in found


# --- folders ----------------------------------------------------------------------------------

FOLDERS = {"/data": Path("/there/d"), "/data/deep": Path("/there/deep"), "/there": Path("/other")}


@pytest.mark.parametrize(
    "text",
    [
        "/database",
        "/data.json",
        "/data-2",
        "my/data",
        "./data",
        "../data",
        "~/data",
        "${HOME}/data",
        "$(pwd)/data",
        "s3://bucket/data",
        "http://host/data",
        "/x/data",
    ],
)
def test_another_path_that_looks_alike_stays(text: str) -> None:
    assert with_folders(text, FOLDERS) == text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/data", "/there/d"),
        ("/data/", "/there/d/"),
        ("/data/x.json", "/there/d/x.json"),
        ("--out=/data/x", "--out=/there/d/x"),
        ("a:/data:/data/deep/y", "a:/there/d:/there/deep/y"),
        ("/data/deeper", "/there/d/deeper"),
        ("file:///data/x", "file:///there/d/x"),
        ("cat </data/x >'/data/y'", "cat </there/d/x >'/there/d/y'"),
    ],
)
def test_a_mount_path_becomes_its_folder(text: str, result: str) -> None:
    assert with_folders(text, FOLDERS) == result


def test_mount_paths_are_found_inside_of_json() -> None:
    settings = {"path": "/data/rows.jsonl", "all": ["/data/deep"], "name": "data"}
    found = json.loads(with_folders(json.dumps(settings), FOLDERS))
    assert found == {"path": "/there/d/rows.jsonl", "all": ["/there/deep"], "name": "data"}


def test_a_folder_that_looks_like_a_mount_path_is_not_replaced_once_more() -> None:
    assert with_folders("/data /there", FOLDERS) == "/there/d /other"


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_paths_that_programs_know_by_heart_stay(path: str) -> None:
    assert with_folders(f"{path}/x", {path: Path("/there")}) == f"{path}/x"


def test_a_folder_with_a_backslash_is_taken_as_it_is() -> None:
    assert with_folders("/data/x", {"/data": Path("/a\\1b")}) == "/a\\1b/x"


@pytest.mark.parametrize("end", ["", ".cluster.local", "."])
def test_ranks_meet_at_an_address(end: str) -> None:
    """Pods have no names in C++, where torch looks the host up."""
    host = f"mine-trainer-0.mine-trainer.team.svc{end}"
    given = {"MASTER_ADDR": host, "PET_MASTER_ADDR": host, "ROLLCALL_COORDINATOR": host}
    found = with_addresses(given, lambda *pod: " ".join(pod))
    assert found["MASTER_ADDR"] == found["PET_MASTER_ADDR"] == "team mine-trainer-0"
    assert found["ROLLCALL_COORDINATOR"] == host, "its certificate has that name"


def test_a_meeting_place_of_the_users_own_stays() -> None:
    given = {"MASTER_ADDR": "10.0.0.1", "PET_MASTER_ADDR": "elsewhere.example"}
    assert with_addresses(given, lambda *_: "none") == given
