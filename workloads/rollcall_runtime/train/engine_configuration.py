"""An engine's configuration as one mapping: settings that all engines share, and its own."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.engine_config import read_settings


def split_config(config: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
    """The settings of all engines in `config`, and the rest, which the engine checks itself.

    SpecError names a setting that has the wrong type or is out of its range.
    """
    names = {camel_case(item.name) for item in fields(EngineSettings)}
    common = {key: value for key, value in config.items() if key in names}
    own = {key: value for key, value in config.items() if key not in names}
    return read_settings(EngineSettings, common, field=f"{FIELD}.config"), own
