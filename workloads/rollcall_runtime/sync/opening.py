"""Opening the engines that a job's sync groups ask for."""

from dataclasses import dataclass

from rollcall_protocol.config import GroupConfig
from rollcall_protocol.ids import MemberId
from rollcall_runtime.settings import read_settings
from rollcall_runtime.sync.engine import Role, SyncEngine, descriptor_text
from rollcall_runtime.sync.registry import create_engine

DEVICE = "cpu"  # versions are snapshots and stages in host memory
_FIELD = "spec.weightSync"


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """The engine of group `name`, open, and the descriptor (base64) of this process."""

    name: str
    engine: SyncEngine
    descriptor: str


def open_engine(group: GroupConfig, *, member: MemberId, address: str, role: Role) -> OpenEngine:
    """Make and open the engine of one group. SpecError names the setting that is wrong."""
    engine = create_engine(group.engine.name, device=DEVICE)
    settings = read_settings(
        engine.settings_type, group.engine.config, field=f"{_FIELD}.config (group {group.name})"
    )
    told = engine.open(member=member, address=address, role=role, settings=settings)
    return OpenEngine(group.name, engine, descriptor_text(told))
