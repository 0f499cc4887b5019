"""What the bench of one engine prints, and where."""

import argparse
import json
from typing import Any

import pytest

from hack.bench.sync_engines import one_engine
from rollcall_protocol.pod_contract import ExitCode

KEYS = [
    "engine",
    "receivers",
    "senders",
    "bytes",
    "rounds",
    "gbps_per_receiver",
    "tcp_gbps_per_receiver",
    "ratio_to_tcp",
    "memcpy_gbps",
    "snapshot_seconds",
    "blocking_seconds",
    "visible_ratio",
    "verified",
]
RECOVERY_KEYS = ["detect_seconds", "rebuild_seconds", "resend_seconds"]


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that the command prints, which is all that it prints."""
    assert one_engine.main([*arguments, "--json"]) == ExitCode.OK
    return json.loads(capfd.readouterr().out)


@pytest.mark.slow
def test_bench_prints_exactly_these_figures(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(
        capfd,
        "--engine",
        "auto",
        "--receivers",
        "2",
        "--senders",
        "2",
        "--size",
        "300Ki",
        "--bucket-size",
        "64Ki",
        "--rounds",
        "2",
    )
    assert list(found) == KEYS
    assert (found["engine"], found["receivers"], found["senders"]) == ("gloo", 2, 2)
    assert (found["bytes"], found["rounds"], found["verified"]) == (300 << 10, 2, True)
    assert all(found[key] > 0 for key in KEYS[5:12])


@pytest.mark.slow
def test_bench_kills_receivers_in_mid_transfer(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(
        capfd,
        "--engine",
        "gloo",
        "--receivers",
        "2",
        "--size",
        "128Mi",
        "--rounds",
        "2",
        "--kill-member",
        "--details",
        "--config",
        "gloo.operationTimeout=5",
    )
    details = found.pop("details")
    assert list(found) == KEYS + RECOVERY_KEYS
    assert details["kills"] == 2
    assert details["worst_seconds"] < 5  # no member waited until gloo gave up
    assert details["naive_seconds"] > 0  # gloo notices by itself at times
    assert 0 < found["detect_seconds"] < details["total_seconds"] <= details["worst_seconds"]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--engine", "glue"], "unknown weight-sync engine 'glue'; available: gloo", 64),
        (["--engine", "gloo", "--kill-member"], "--kill-member needs at least two --receivers", 1),
        (["--engine", "gloo", "--size", "1000Gi"], "MiB are free; choose a smaller --size", 1),
        (
            ["--engine", "gloo", "--size", "64Ki", "--config", "inFlght=2"],
            "inFlght: unknown setting; known: inFlight",
            64,
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(
    capfd: pytest.CaptureFixture[str], arguments: list[str], message: str, code: int
) -> None:
    assert one_engine.main(arguments) == code
    printed = capfd.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "nbytes"), [("512Mi", 512 << 20), ("1Gi", 1 << 30), ("2M", 2_000_000), ("10", 10)]
)
def test_sizes_are_quantities(text: str, nbytes: int) -> None:
    assert one_engine.size(text) == nbytes


@pytest.mark.parametrize("text", ["512MiB", "0", "3", "-2", "1.5Gi", ""])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        one_engine.size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inFlight=4", ("", "inFlight", 4)),
        ("store.url=file:///tmp/x", ("store", "url", "file:///tmp/x")),
        ("eager=true", ("", "eager", True)),
        ("acme.fast.threads=2", ("acme.fast", "threads", 2)),
    ],
)
def test_settings_are_written_as_key_and_value(text: str, expected: tuple[str, str, Any]) -> None:
    assert one_engine.setting(text) == expected
