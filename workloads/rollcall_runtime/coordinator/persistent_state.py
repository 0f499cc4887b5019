"""The coordinator's state that outlives a restart of its container."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rollcall_protocol.wire.json_codec import CodecError, decode
from rollcall_protocol.wire.roster import Roster
from rollcall_runtime.coordinator.atomic_json import write_json
from rollcall_runtime.membership.published_versions import TrainerIncarnation

FILE = "coordinator.json"
MAX_INCARNATIONS = 8  # rollouts hold versions of the last one that published, few hold older ones


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Boot counter, roster and former incarnations; kept in the pod's emptyDir.

    A new pod starts without it: the operator gives a new coordinator pod a new epoch.
    """

    pod_uid: str
    boot: int = 0
    since_epoch: int | None = None
    roster: Roster | None = None
    incarnations: tuple[TrainerIncarnation, ...] = ()

    def with_incarnation(self, incarnation: TrainerIncarnation) -> "CoordinatorState":
        """The same with the newest incarnation; the oldest of MAX_INCARNATIONS is dropped."""
        return replace(self, incarnations=(*self.incarnations, incarnation)[-MAX_INCARNATIONS:])


def load_and_count_boot(folder: Path, pod_uid: str) -> CoordinatorState:
    """Load the state, count this boot and save; ValueError if the file cannot be read."""
    path = folder / FILE
    state = CoordinatorState(pod_uid)
    if path.exists():
        try:
            state = decode(CoordinatorState, json.loads(path.read_text(encoding="utf-8")))
        except (CodecError, ValueError) as error:
            raise ValueError(f"{path} cannot be read; delete the pod: {error}") from error
    if state.pod_uid != pod_uid:
        state = CoordinatorState(pod_uid)
    state = replace(state, boot=state.boot + 1)
    save(folder, state)
    return state


def save(folder: Path, state: CoordinatorState) -> None:
    """Write the state atomically."""
    write_json(folder / FILE, state)
