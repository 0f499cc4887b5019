"""Weight-sync engines by name and device.

To add a built-in engine, write its class (see `sessions.OwnedEngine`) and add its row to
`_BUILTINS`. The row repeats what the class says, so that an engine whose library is missing can
still be told of; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rollcall_runtime.errors import SpecError
from rollcall_runtime.registry import Registry
from rollcall_runtime.sync.engine import EngineKind, SyncEngine

AUTO = "auto"
_FIELD = "spec.weightSync.engine"

# What `auto` means on each torch device type.
_PREFERRED = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Where an engine's class is ("module:Class"), and what is known without importing it.

    `devices` are torch device types; `package` is the distribution whose version tells what runs.
    """

    target: str
    kind: EngineKind
    devices: tuple[str, ...]
    package: str


_BUILTINS = {
    "gloo": BuiltIn("rollcall_runtime.sync.gloo:GlooEngine", EngineKind.GROUP, ("cpu",), "torch"),
    "hccl": BuiltIn(
        "rollcall_runtime.sync.hccl:HcclEngine", EngineKind.GROUP, ("npu",), "torch-npu"
    ),
    "nccl": BuiltIn(
        "rollcall_runtime.sync.nccl:NcclEngine", EngineKind.GROUP, ("cuda",), "nvidia-nccl-cu13"
    ),
}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as `rollcall-sync engines` tells of it.

    `reason` says why it cannot be used here, None if it can. `kind`, None, and `devices`, none, are
    unknown for an engine of another distribution (`origin`) that cannot be imported. `version` is
    its package's, None where that is not installed.
    """

    name: str
    kind: EngineKind | None
    devices: tuple[str, ...]
    available: bool
    reason: str | None
    version: str | None
    origin: str


def make_registry(builtins: Mapping[str, BuiltIn]) -> Registry[SyncEngine]:
    """The registry of `builtins` by name and what other packages register."""
    return Registry(
        kind="weight-sync engine",
        group="rollcall.sync_engines",
        field=_FIELD,
        base=SyncEngine,  # type: ignore[type-abstract]  # engines are found as classes
        builtins={name: row.target for name, row in builtins.items()},
    )


_REGISTRY = make_registry(_BUILTINS)


def create_engine(name: str, *, device: str) -> SyncEngine:
    """The engine called `name`, or the device's own for `auto`; not opened yet.

    Raises SpecError that lists what is available, and why the rest is not.
    """
    wanted = _PREFERRED.get(device, AUTO) if name == AUTO else name
    found = _REGISTRY.get(wanted)
    if device not in found.devices:
        devices = ", ".join(sorted(found.devices))
        others = [engine.name for engine in engines() if engine.available]
        fitting = [other for other in others if device in _REGISTRY.get(other).devices]
        problem = f"engine {wanted!r} serves {devices}, not {device!r}"
        raise SpecError(_FIELD, f"{problem}; for {device!r}: {', '.join(fitting) or 'none'}")
    return found()


def engines() -> tuple[EngineInfo, ...]:
    """Every known engine and whether it can be used here; imports each, which takes seconds."""
    return tuple(_info(found.name, found.origin, found.reason) for found in _REGISTRY.survey())


def _info(name: str, origin: str, reason: str | None) -> EngineInfo:
    kind: EngineKind | None = None
    devices: tuple[str, ...] = ()
    package: str | None = None
    if reason is None:
        engine = _REGISTRY.get(name)
        kind, devices, package = engine.kind, tuple(sorted(engine.devices)), engine.package
    elif name in _BUILTINS:
        row = _BUILTINS[name]
        kind, devices, package = row.kind, row.devices, row.package
    return EngineInfo(
        name=name, kind=kind, devices=devices, available=reason is None, reason=reason,
        version=_version(package), origin=origin,
    )  # fmt: skip


def _version(package: str | None) -> str | None:
    try:
        return version(package) if package else None
    except PackageNotFoundError:
        return None
