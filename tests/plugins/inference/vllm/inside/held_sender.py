"""Holds a trainer in the middle of a publication, until a test has looked: import it first.

HELD_AT says where: `stage`, when a part of the weights is sent, and `commit`, before the rollouts
get the word to serve what they have. There the trainer makes the file `held` in HELD_IN and waits
for the file `go`. After that it gives the word to the rollouts, and kills itself. A process without
the variables is left alone.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from rollcall_protocol.membership.coordinator_effects import SendMessage
from rollcall_protocol.wire.messages import Commit
from rollcall_runtime.coordinator.sync_group_driver import SyncGroup
from rollcall_runtime.sync.bucket_transfer import BucketTransfer

AT, FOLDER = "HELD_AT", "HELD_IN"
_PUBLICATION = 5  # that is held, of all
_OPERATION = 4  # of that publication: after its header, and a part of the weights
_WORD_SECONDS = 0.02  # for the word to reach the rollouts

_count = [0, 0]  # publications, and operations of the last one


def _hold() -> None:
    folder = Path(os.environ[FOLDER])
    (folder / "held").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


_send, _begin, _send_message = BucketTransfer.send, BucketTransfer._begin, SyncGroup._send


def _counted_send(self: BucketTransfer, *arguments: Any) -> None:
    _count[:] = [_count[0] + 1, 0]
    _send(self, *arguments)


def _held_begin(self: BucketTransfer, *arguments: Any) -> Any:
    _count[1] += 1
    if _count == [_PUBLICATION, _OPERATION]:
        _hold()
    return _begin(self, *arguments)


def _held_commit(self: SyncGroup, effect: SendMessage) -> None:
    held = isinstance(effect.message, Commit) and effect.message.version.number == _PUBLICATION
    if held:
        _hold()
    _send_message(self, effect)
    if held:
        loop = asyncio.get_running_loop()
        loop.call_later(_WORD_SECONDS, os.kill, os.getpid(), signal.SIGKILL)


if os.environ.get(AT) == "stage":
    setattr(BucketTransfer, "send", _counted_send)  # noqa: B010 - a method
    setattr(BucketTransfer, "_begin", _held_begin)  # noqa: B010 - a method
elif os.environ.get(AT) == "commit":
    setattr(SyncGroup, "_send", _held_commit)  # noqa: B010 - a method
