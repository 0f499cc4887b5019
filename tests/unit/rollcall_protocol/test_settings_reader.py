"""Free-form settings become a dataclass, or an error that names the key."""

from dataclasses import dataclass
from typing import Any

import pytest

from rollcall_protocol.settings_reader import SettingError, read_settings


@dataclass(frozen=True, slots=True)
class Settings:
    max_tokens: int = 6
    weight_decay: float = 0.5
    eager: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError("maxTokens must be at least 1")


def test_camel_case_keys_and_decimal_strings_are_read() -> None:
    config = {"maxTokens": 8, "weightDecay": "1e-2", "eager": True}
    assert read_settings(Settings, config) == Settings(8, 0.01, eager=True)


@pytest.mark.parametrize(
    ("config", "key", "problem"),
    [
        ({"max": 8}, "max", "unknown setting; known: eager, maxTokens, weightDecay"),
        ({"maxTokens": "8"}, "maxTokens", "'8' is not of type int"),
        ({"weightDecay": "much"}, "weightDecay", "'much' is not a decimal number"),
        ({"maxTokens": 0}, "", "maxTokens must be at least 1"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(Settings, config)
    assert (caught.value.key, caught.value.problem) == (key, problem)
