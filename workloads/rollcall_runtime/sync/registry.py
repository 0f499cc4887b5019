"""Weight-sync engines by name and device.

To add a built-in engine, write its class (see `engines.common.threaded_engine`) and add its row to
`_BUILTINS`. The row repeats what the class says, so that an engine whose library is missing can
still be listed; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution, packages_distributions

from rollcall_runtime.sync.engine import EngineKind, SyncEngine
from rollcall_runtime.worker.devices import CPU, worker_device
from rollcall_runtime.worker.engine_registry import Availability, Registry
from rollcall_runtime.worker.errors import SpecError

AUTO = "auto"
_FIELD = "spec.weightSync.engine"

# What `auto` means on each torch device type; gloo on all others.
_PREFERRED = {CPU: "gloo", "cuda": "nccl", "npu": "hccl"}


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Where an engine's class is ("module:Class"), and what is known without importing it.

    `devices` are torch device types; `library` is the module that the engine needs, maybe a nested
    one: the version of the distribution that provides it is shown.
    """

    target: str
    kind: EngineKind
    devices: tuple[str, ...]
    library: str


_ENGINES = "rollcall_runtime.sync.engines"
_GROUP, _PEER = EngineKind.GROUP, EngineKind.PEER
_BUILTINS = {
    "gloo": BuiltIn(f"{_ENGINES}.gloo:GlooEngine", _GROUP, ("cpu",), "torch"),
    "mooncake": BuiltIn(f"{_ENGINES}.mooncake:MooncakeEngine", _PEER, ("cpu",), "mooncake"),
    "kimi": BuiltIn(f"{_ENGINES}.kimi.engine:KimiEngine", _GROUP, ("cpu",), "checkpoint_engine"),
    "store": BuiltIn(f"{_ENGINES}.store:StoreEngine", _PEER, ("cpu",), "fsspec"),
    "nixl": BuiltIn(f"{_ENGINES}.nixl.engine:NixlEngine", _PEER, ("cpu",), "nixl"),
    "ray": BuiltIn(f"{_ENGINES}.ray.engine:RayEngine", _GROUP, ("cpu",), "ray"),
    "hccl": BuiltIn(f"{_ENGINES}.hccl.engine:HcclEngine", _GROUP, ("npu",), "torch_npu"),
    "nccl": BuiltIn(f"{_ENGINES}.nccl.engine:NcclEngine", _GROUP, ("cuda",), "nvidia.nccl"),
}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as `rollcall-sync engines` lists it.

    `reason` says why it cannot be used here, None if it can. `kind`, None, and `devices`, none, are
    unknown for an engine of another distribution (`origin`) that cannot be imported. `version` is
    its library's, None where that is not installed; several, where several distributions have it.
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
        problem=_problem,
    )


def _serves(engine: type[SyncEngine], device: str) -> bool:
    return device in engine.devices or CPU in engine.devices


def _problem(engine: type[SyncEngine]) -> str | None:
    device = worker_device()
    if _serves(engine, device):
        return None
    return f"serves {', '.join(sorted(engine.devices))}, not {device!r}, which is here"


_REGISTRY = make_registry(_BUILTINS)


def engine_class(name: str, *, device: str) -> type[SyncEngine]:
    """The engine called `name`, or the device's own for `auto`.

    Weights can be in host memory at both ends, so an engine for CPUs serves workers of any device.
    Raises SpecError that lists what is available, and why the rest is not.
    """
    wanted = _PREFERRED.get(device, _PREFERRED[CPU]) if name == AUTO else name
    found = _REGISTRY.get(wanted)
    if not _serves(found, device):
        devices = ", ".join(sorted(found.devices))
        usable = ", ".join(engine.name for engine in engines() if engine.available)
        problem = f"engine {wanted!r} serves {devices}, not {device!r}"
        raise SpecError(_FIELD, f"{problem}; available: {usable or 'none'}")
    return found


def create_engine(name: str, *, device: str) -> SyncEngine:
    """An engine of that class, not opened yet."""
    return engine_class(name, device=device)()


def engines() -> tuple[EngineInfo, ...]:
    """Every known engine and whether it can be used here; imports each, which takes seconds."""
    return tuple(_info(found) for found in _REGISTRY.survey())


def _info(known: Availability) -> EngineInfo:
    kind: EngineKind | None = None
    devices: tuple[str, ...] = ()
    library: str | None = None
    row, engine = _BUILTINS.get(known.name), known.found
    if engine is not None:
        kind, devices, library = engine.kind, tuple(sorted(engine.devices)), engine.library
    elif row is not None:
        kind, devices, library = row.kind, row.devices, row.library
    return EngineInfo(
        name=known.name,
        kind=kind,
        devices=devices,
        available=known.reason is None,
        reason=known.reason,
        version=library_version(library) if library else None,
        origin=known.origin,
    )


def library_version(module: str) -> str | None:
    """The version of the installed distribution that provides `module`; None without one.

    A library's distribution has another name for each kind of device (Mooncake's, NCCL's). Several
    may provide the module, where which one is imported is a matter of luck: all their versions.
    """
    folder = module.replace(".", "/") + "/"
    found = {
        distribution(name)
        for name in set(packages_distributions().get(module.partition(".")[0], ()))
    }
    if "." in module:  # such as nvidia.nccl: all of nvidia's distributions have files in nvidia
        found = {
            candidate
            for candidate in found
            if any(str(file).startswith(folder) for file in candidate.files or ())
        }
    return ", ".join(sorted({candidate.version for candidate in found})) or None
