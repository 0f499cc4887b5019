"""What a coordinator keeps over a restart of its container: boot counter, roster, and which steps
its last incarnations began with.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_protocol.wire.roster import Roster
from rollcall_runtime.membership.incarnation import TrainerIncarnation

FILE = "coordinator.json"
MAX_INCARNATIONS = 8  # rollouts hold versions of the last one that published, few are older


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Kept in the pod's emptyDir, so it is gone with the pod: a new pod is a new epoch."""

    pod_uid: str
    boot: int = 0
    since_epoch: int | None = None
    roster: Roster | None = None
    incarnations: tuple[TrainerIncarnation, ...] = ()


def boot(folder: Path, pod_uid: str) -> CoordinatorState:
    """Load the state, count this boot and save. Raises ValueError for a file that is not ours."""
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


def begin(state: CoordinatorState, incarnation: TrainerIncarnation) -> CoordinatorState:
    """Add the newest incarnation."""
    return replace(state, incarnations=(*state.incarnations, incarnation)[-MAX_INCARNATIONS:])


def save(folder: Path, state: CoordinatorState) -> None:
    """Write whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(encode(state)), encoding="utf-8")
    draft.replace(path)
