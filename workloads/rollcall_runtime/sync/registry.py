"""Weight-sync engines by name and device."""

from collections.abc import Mapping

from rollcall_runtime.errors import SpecError
from rollcall_runtime.registry import Availability, Registry
from rollcall_runtime.sync.engine import SyncEngine

AUTO = "auto"
_FIELD = "spec.weightSync.engine"

# What `auto` means on each torch device type.
_PREFERRED = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}

_BUILTINS = {"gloo": "rollcall_runtime.sync.gloo:GlooEngine"}


def make_registry(builtins: Mapping[str, str]) -> Registry[SyncEngine]:
    """The registry of `builtins` ("module:Class" by name) and what other packages register."""
    return Registry(
        kind="weight-sync engine",
        group="rollcall.sync_engines",
        field=_FIELD,
        base=SyncEngine,  # type: ignore[type-abstract]  # engines are found as classes
        builtins=builtins,
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
        raise SpecError(_FIELD, f"engine {wanted!r} serves {devices}, not {device!r}")
    return found()


def engines() -> tuple[Availability, ...]:
    """Every known engine and whether it can be used here; imports each."""
    return _REGISTRY.survey()
