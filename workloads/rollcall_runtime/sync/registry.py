"""Weight-sync engines by name and device.

Gloo is built in; every other engine is a plug-in, an entry point of the group rollcall.sync_engines
whose class derives from SyncEngine (see `engines.common.threaded_engine`).
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


_BUILTINS = {"gloo": "rollcall_runtime.sync.engines.gloo:GlooEngine"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as `rollcall-sync engines` lists it.

    `reason` says why it cannot be used here, None if it can. `kind`, None, and `devices`, none, are
    unknown for an engine whose module cannot be imported. `version` is its library's, None where
    that is not installed; several, where several distributions have it. `origin` is "built in", or
    the distribution that registered the engine.
    """

    name: str
    kind: EngineKind | None
    devices: tuple[str, ...]
    available: bool
    reason: str | None
    version: str | None
    origin: str


def make_registry(builtins: Mapping[str, str]) -> Registry[SyncEngine]:
    """The registry of `builtins` ("module:Class") by name and what packages register."""
    return Registry(
        kind="weight-sync engine",
        group="rollcall.sync_engines",
        field=_FIELD,
        base=SyncEngine,  # type: ignore[type-abstract]  # engines are found as classes
        builtins=builtins,
        require=lambda engine: engine.require_library(),
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
    engine = known.found
    if engine is not None:
        kind, devices, library = engine.kind, tuple(sorted(engine.devices)), engine.library
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
