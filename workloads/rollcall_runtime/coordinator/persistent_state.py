"""What a coordinator keeps over a restart of its container: boot counter, roster, and which steps
its last lives began with.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_protocol.wire.roster import Roster
from rollcall_runtime.membership.incarnation import Life

FILE = "coordinator.json"
MAX_LIVES = 8  # rollouts hold versions of the last one that published, few are older


@dataclass(frozen=True, slots=True)
class Memory:
    """Kept in the pod's emptyDir, so it is gone with the pod: a new pod is a new epoch."""

    pod_uid: str
    boot: int = 0
    since_epoch: int | None = None
    roster: Roster | None = None
    lives: tuple[Life, ...] = ()


def boot(folder: Path, pod_uid: str) -> Memory:
    """Load the memory, count this boot and save. Raises ValueError for a file that is not ours."""
    path = folder / FILE
    memory = Memory(pod_uid)
    if path.exists():
        try:
            memory = decode(Memory, json.loads(path.read_text(encoding="utf-8")))
        except (CodecError, ValueError) as error:
            raise ValueError(f"{path} cannot be read; delete the pod: {error}") from error
    if memory.pod_uid != pod_uid:
        memory = Memory(pod_uid)
    memory = replace(memory, boot=memory.boot + 1)
    save(folder, memory)
    return memory


def begin(memory: Memory, life: Life) -> Memory:
    """Add a life, the newest."""
    return replace(memory, lives=(*memory.lives, life)[-MAX_LIVES:])


def save(folder: Path, memory: Memory) -> None:
    """Write whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(encode(memory)), encoding="utf-8")
    draft.replace(path)
