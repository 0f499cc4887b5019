"""The parts of an engine's configuration: the loop's, what all engines share, the engine's own."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import EngineSettings, LoopSettings
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.engine_config import read_settings

T = TypeVar("T")


def split_loop(config: Mapping[str, Any]) -> tuple[LoopSettings, dict[str, Any]]:
    """The settings of policy training in `config`, and the rest. Raises as `split_config` does."""
    return _split(LoopSettings, config)


def split_config(config: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
    """The settings of all engines in `config`, and the rest, which the engine checks itself.

    SpecError names a setting that has the wrong type or is out of its range.
    """
    return _split(EngineSettings, config)


def _split(kind: type[T], config: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    names = {camel_case(item.name) for item in fields(kind)}  # type: ignore[arg-type]
    known = {key: value for key, value in config.items() if key in names}
    rest = {key: value for key, value in config.items() if key not in names}
    return read_settings(kind, known, field=f"{FIELD}.config"), rest
