"""Refuses what an engine cannot do, before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_protocol.settings_reader import SettingError
from rollcall_protocol.train_settings import check_known, check_mesh
from rollcall_runtime.train.engines.common.optimizers import check_optimizer
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.train.train_engine import EngineSetup, TrainEngine


def check_settings(engine: type[TrainEngine], setup: EngineSetup) -> None:
    """SpecError for a setting, a head, a device or an optimizer that `engine` does not have."""
    try:
        check_known(setup.settings, engine.settings_known, engine=engine.__name__)
        check_mesh(setup.settings, ranks=setup.ranks.size)
    except SettingError as error:
        key = f".{error.key}" if error.key else ""
        raise SpecError(f"{FIELD}.config{key}", error.problem) from error
    if setup.head not in engine.heads:
        known = ", ".join(sorted(engine.heads))
        raise SpecError(f"{FIELD}.name", f"this engine has no head {setup.head!r}, only: {known}")
    device = setup.ranks.device.type
    if device not in engine.devices:
        known = ", ".join(sorted(engine.devices))
        raise SpecError(
            f"{FIELD}.name", f"this engine runs on {known}, and this worker has {device}"
        )
    if setup.optimizer is not None:
        check_optimizer(setup.optimizer)
