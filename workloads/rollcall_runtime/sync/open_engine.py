"""Opens the engine of a sync group with the settings of the job."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollcall_protocol.job_config import GroupConfig, WeightSyncConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from rollcall_runtime.sync.engine import Role, SyncEngine, encode_descriptor
from rollcall_runtime.sync.network_interfaces import address_of
from rollcall_runtime.sync.registry import create_engine, engine_class
from rollcall_runtime.sync.weights.shards import Shard
from rollcall_runtime.worker.devices import choose_device, worker_device
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.environment import TrainerEnvironment
from rollcall_runtime.worker.errors import SpecError

STREAMED = "Streamed"  # weightSync.staging: one copy of the weights, so that training waits

_FIELD = "spec.weightSync"


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """The open engine of group `name`, and the descriptor (base64) of this process.

    `address` is that of the interface that the settings name; empty if the pod's address is used.
    `shard` is the part of the weights that is received, None for everything.
    """

    name: str
    engine: SyncEngine
    descriptor: str
    address: str = ""
    shard: Shard | None = None


def open_engine(
    group: GroupConfig,
    *,
    member: MemberId,
    address: str,
    role: Role,
    profile: str = "",
    device: str | None = None,
    shard: Shard | None = None,
) -> OpenEngine:
    """Create and open the engine of one group. SpecError names the setting that is wrong.

    `shard` is what this process needs; an engine that is not `selective` receives everything
    anyway. `address` is the pod's; the address of the interface in the settings takes precedence.
    Traces are written to the folder `profile`, unless it is empty. `device` is the torch device
    type to serve, this worker's if None.
    """
    place = _FIELD if group.name == DEFAULT_GROUP else f"{_FIELD}.groups[{group.name}]"
    try:
        engine = create_engine(group.engine.name, device=device or worker_device())
    except SpecError as error:
        raise SpecError(f"{place}.engine", error.problem) from error
    field = f"{place}.config"
    settings = read_settings(engine.settings_type, group.engine.config, field=field)
    if profile:
        settings = replace(settings, profile=profile)
    own = ""
    if settings.interface:
        try:
            own = address_of(settings.interface, like=address)
        except ValueError as error:
            raise SpecError(f"{field}.interface", str(error)) from error
    try:
        descriptor = engine.open(
            member=member, address=own or address, role=role, settings=settings
        )
    except ValueError as error:  # a setting that this node cannot satisfy, such as a device
        raise SpecError(field, str(error)) from error
    if shard is None or not engine.selective:
        return OpenEngine(group.name, engine, encode_descriptor(descriptor), own)
    descriptor = json.dumps(json.loads(descriptor) | {"shard": shard.key}).encode()
    return OpenEngine(group.name, engine, encode_descriptor(descriptor), own, shard)


async def open_senders(environment: TrainerEnvironment, member: MemberId) -> list[OpenEngine]:
    """An engine for each sync group of a trainer's process, opened in a thread. SpecError.

    Some start processes and import libraries, up to a minute on a busy node. Meanwhile the event
    loop has to answer the liveness probe: if that fails, the kubelet stops the trainer.
    """
    sync, device = environment.job.weight_sync, choose_device(environment.job)
    opened: list[OpenEngine] = []
    try:
        for group in sync.all_groups():
            engine = await asyncio.to_thread(
                open_engine,
                group,
                member=member,
                address=environment.pod.address,
                role=Role.SENDER,
                profile=sync.profile_path,
                device=device,
            )
            opened.append(engine)
    except BaseException:
        await close_engines(opened)
        raise
    return opened


async def close_engines(engines: Sequence[OpenEngine]) -> None:
    """Close each in a thread."""
    for opened in engines:
        await asyncio.to_thread(opened.engine.close)


def engine_classes(sync: WeightSyncConfig, *, device: str) -> list[type[SyncEngine]]:
    """Those of all groups, for a trainer on `device` (a torch device type).

    SpecError for an unknown engine.
    """
    return [engine_class(group.engine.name, device=device) for group in sync.all_groups()]


def checksums_do(sync: WeightSyncConfig, *, device: str) -> bool:
    """Whether members compare versions by checksums: the job asks for nothing else, and versions go
    from the trainer on `device` to them whole, by no other hands.

    SpecError for an unknown engine.
    """
    elsewhere = any(engine.needs_digests for engine in engine_classes(sync, device=device))
    whole = sync.delta is None and sync.staging != STREAMED
    return sync.verify == "Checksum" and whole and not elsewhere
