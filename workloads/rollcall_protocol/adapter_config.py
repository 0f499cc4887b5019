"""The low-rank adapter that a job trains, as its trainer and its rollouts know it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rollcall_protocol.settings_reader import camel_case, read_settings
from rollcall_protocol.train_settings import ADAPTER, EngineSettings, lora_targets


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Beside each linear layer of a name in `targets`: two matrices of `rank`.

    What they add is scaled by `alpha` / `rank`.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]


def exported_adapter(settings: EngineSettings) -> AdapterConfig | None:
    """What leaves the trainer in the place of the whole model; None if that leaves it."""
    if settings.lora_export != ADAPTER:
        return None
    targets = lora_targets(settings.lora_targets)
    return AdapterConfig(settings.lora_rank, settings.lora_alpha, targets)


def sent_adapter(config: Mapping[str, Any]) -> AdapterConfig | None:
    """The same, from `spec.trainer.engine.config` of any engine. SettingError for what is wrong."""
    names = {camel_case(item.name) for item in fields(EngineSettings)}
    common = {key: value for key, value in config.items() if key in names}
    return exported_adapter(read_settings(EngineSettings, common))
