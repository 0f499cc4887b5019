"""A group's engine is opened with the settings that the job has for it."""

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.job_config import EngineRef, GroupConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.open_engine import OpenEngine, open_engine
from rollcall_runtime.sync.weights.shards import RowShard
from rollcall_runtime.worker.errors import SpecError

MEMBER = MemberId("pod-1", "boot")


@contextmanager
def opened(config: dict[str, Any], **more: Any) -> Iterator[OpenEngine]:
    group = GroupConfig("default", EngineRef("gloo", config))
    made = open_engine(group, member=MEMBER, address="127.0.0.9", role=Role.SENDER, **more)
    try:
        yield made
    finally:
        made.engine.close()


def test_an_engine_reads_its_settings_from_the_job() -> None:
    with opened({"operationTimeout": "2.5", "inFlight": 3}) as made:
        assert isinstance(made.engine, ThreadedEngine)
        assert made.engine.settings.operation_timeout == 2.5
        assert made.engine.settings.in_flight == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"inFlght": 3}, r"^spec\.weightSync\.config\.inFlght: unknown setting"),
        (
            {"interface": "eth99"},
            r"^spec\.weightSync\.config\.interface: .* no .* 'eth99'.* has .*lo",
        ),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message), opened(config):
        pass


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (EngineRef("glue"), r"^spec\.weightSync\.groups\[npu\]\.engine: unknown"),
        (EngineRef("gloo", {"x": 1}), r"^spec\.weightSync\.groups\[npu\]\.config\.x: unknown"),
    ],
)
def test_an_error_of_a_group_has_its_name(engine: EngineRef, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_engine(
            GroupConfig("npu", engine), member=MEMBER, address="127.0.0.9", role=Role.SENDER
        )


def test_an_engine_binds_to_the_interface_it_is_given_instead_of_the_pods_address() -> None:
    with opened({"interface": "lo"}) as made:
        assert made.address == "127.0.0.1"
        assert json.loads(b64decode(made.descriptor))["rendezvous"][0] == "127.0.0.1"
    with opened({}) as made:
        assert made.address == ""
        assert json.loads(b64decode(made.descriptor))["rendezvous"][0] == "127.0.0.9"


def test_traces_are_written_only_when_asked_for(tmp_path: Path) -> None:
    with opened({}):
        assert not list(tmp_path.iterdir())
    with opened({}, profile=str(tmp_path)):
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("engine", "config", "announced"),
    [("store", {"url": "memory://weights"}, "0/2"), ("gloo", {}, None)],
)
def test_the_descriptor_has_the_shard_where_only_the_shard_is_received(
    engine: str, config: dict[str, Any], announced: str | None
) -> None:
    group, shard = GroupConfig("default", EngineRef(engine, config)), RowShard(0, 2)
    made = open_engine(group, member=MEMBER, address="127.0.0.9", role=Role.RECEIVER, shard=shard)
    made.engine.close()
    assert made.shard == (shard if announced else None)
    assert json.loads(b64decode(made.descriptor)).get("shard") == announced
