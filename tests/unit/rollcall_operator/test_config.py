"""Settings: flags win over variables, and wrong values name the flag."""

import argparse

import pytest

from rollcall_operator.config import SettingsError, add_arguments, from_arguments


def parse(*flags: str, **environ: str) -> object:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(flags), environ)


def test_defaults_serve_the_whole_cluster_under_a_lease() -> None:
    settings = from_arguments(argparse.Namespace(), {})
    assert settings.namespaces == ()
    assert settings.leader_elect
    assert settings.reach == "auto"
    assert settings.identity != from_arguments(argparse.Namespace(), {}).identity


def test_flags_win_over_variables() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = parser.parse_args(["--namespace", "a", "--namespace", "b", "--workers", "3"])
    environ = {"ROLLCALL_OPERATOR_WORKERS": "7", "ROLLCALL_OPERATOR_NAMESPACES": "x,y"}
    settings = from_arguments(flags, environ)
    assert (settings.namespaces, settings.workers) == (("a", "b"), 3)
    settings = from_arguments(parser.parse_args([]), environ)
    assert (settings.namespaces, settings.workers) == (("x", "y"), 7)


def test_taints_can_be_named_and_can_be_none() -> None:
    assert "karpenter.sh/disrupted" in from_arguments(argparse.Namespace(), {}).preemption_taints
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for text, keys in (("a/b, c", ("a/b", "c")), ("", ())):
        flags = parser.parse_args(["--preemption-taints", text])
        assert from_arguments(flags, {}).preemption_taints == keys
        environ = {"ROLLCALL_OPERATOR_PREEMPTION_TAINTS": text}
        assert from_arguments(argparse.Namespace(), environ).preemption_taints == keys


def test_peers_of_network_policies_are_json_and_unknown_by_default() -> None:
    settings = from_arguments(argparse.Namespace(), {})
    assert (settings.operator_peers, settings.monitoring_peers) == (None, ())
    environ = {"ROLLCALL_OPERATOR_OPERATOR_PEERS": '[{"ipBlock": {"cidr": "10.0.0.1/32"}}]'}
    peers = from_arguments(argparse.Namespace(), environ).operator_peers
    assert peers == ({"ipBlock": {"cidr": "10.0.0.1/32"}},)


def test_the_workers_user_is_that_of_their_images_by_default_and_never_root() -> None:
    assert from_arguments(argparse.Namespace(), {}).worker_user is None
    environ = {"ROLLCALL_OPERATOR_WORKER_USER": "65532"}
    assert from_arguments(argparse.Namespace(), environ).worker_user == 65532
    with pytest.raises(SettingsError, match="--worker-user: must be above 0, not 0"):
        from_arguments(argparse.Namespace(), {"ROLLCALL_OPERATOR_WORKER_USER": "0"})


@pytest.mark.parametrize("value", ["false", "0", "no", "False"])
def test_leader_election_can_be_switched_off(value: str) -> None:
    environ = {"ROLLCALL_OPERATOR_LEADER_ELECT": value}
    assert not from_arguments(argparse.Namespace(), environ).leader_elect
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert not from_arguments(parser.parse_args(["--no-leader-elect"]), {}).leader_elect


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "many"], "--workers"),
        (["--workers", "0"], "--workers"),
        (["--operator-peers", "10.0.0.1"], "--operator-peers"),
        (["--monitoring-peers", '{"podSelector": {}}'], "--monitoring-peers"),
        (["--monitoring-peers", "[{}]"], "--monitoring-peers"),
        (["--http-port", "x"], "--http-port"),
        (["--reach", "tunnel"], "--reach"),
        (["--log-format", "xml"], "--log-format"),
        (["--log-level", "loud"], "--log-level"),
        (["--lease-duration", "2"], "--lease-duration"),
    ],
)
def test_a_wrong_value_names_its_flag(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(*flags)
