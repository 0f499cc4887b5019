"""Reads an engine's own `config` (free-form in the RLJob) into that engine's dataclass."""

from collections.abc import Mapping
from typing import Any, TypeVar

from rollcall_protocol import settings_reader
from rollcall_protocol.settings_reader import SettingError
from rollcall_runtime.worker.errors import SpecError

T = TypeVar("T")


def read_settings(cls: type[T], config: Mapping[str, Any], *, field: str) -> T:
    """`settings_reader.read_settings`; SpecError names the wrong key under `field`."""
    try:
        return settings_reader.read_settings(cls, config)
    except SettingError as error:
        raise SpecError(f"{field}.{error.key}" if error.key else field, error.problem) from error
