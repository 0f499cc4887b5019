"""The training engines that this image knows, and whether each can be used here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall_protocol.settings_reader import camel_case
from rollcall_runtime.sync.registry import library_version
from rollcall_runtime.train.train_engine import train_engines
from rollcall_runtime.worker.devices import worker_device

if TYPE_CHECKING:
    from rollcall_runtime.worker.engine_registry import Availability


@dataclass(frozen=True, slots=True)
class TrainEngineInfo:
    """An engine as `rollcall-train engines` lists it.

    `version` is that of the library it is built on. `reason` says why it cannot be used here, None
    if it can; devices, heads and settings are unknown, and empty, if it cannot be imported.
    `settings` are named as in `spec.trainer.engine.config`.
    """

    name: str
    available: bool
    version: str | None
    devices: tuple[str, ...]
    heads: tuple[str, ...]
    settings: tuple[str, ...]
    origin: str
    reason: str | None


def list_engines() -> list[TrainEngineInfo]:
    """Every known engine. Imports each, which takes seconds."""
    return [_info(known) for known in train_engines.survey()]


def _info(known: Availability) -> TrainEngineInfo:
    engine, reason = known.found, known.reason
    device = worker_device()
    if engine is not None and reason is None and device not in engine.devices:
        reason = f"runs on {', '.join(sorted(engine.devices))}, and this machine has {device}"
    return TrainEngineInfo(
        name=known.name,
        available=reason is None,
        version=library_version(engine.library) if engine else None,
        devices=tuple(sorted(engine.devices)) if engine else (),
        heads=tuple(sorted(engine.heads)) if engine else (),
        settings=tuple(sorted(map(camel_case, engine.settings_known))) if engine else (),
        origin=known.origin,
        reason=reason,
    )
