"""How long the survivors of a killed receiver are without the version that was being sent.

`kill`: a receiver dies by SIGKILL in mid-transfer; its stream's end is the signal; the others
abort, form a new session, and the same weights are sent again and committed. `naive_timeout`: the
same death, but everybody waits for the engine's own timeout first. `job`: rollouts of a whole job
in training are killed; from the kill to the survivors' session, and the longest step around it.
The last line is JSON, times are seconds.
Run it with `make bench-recovery`.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollcall_runtime.bench.member import Reply
from rollcall_runtime.bench.world import Remote, World, abort, done, join, settled
from rollcall_runtime.sync.engine import Role, SyncSettings
from tests.local.measure import kills, rounded

MIB = 1 << 20
GROUP = "job/default"
KILL_AFTER = 0.02  # seconds into the transfer
PATIENCE = 90.0


class TransferEndedError(Exception):
    """The victim had everything before it died: the round says nothing."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds of each step; `total` from the kill until all survivors have committed."""

    detect: float
    rebuild: float
    resend: float
    total: float


class Scene:
    """A sender and its receivers, one more of which is killed in each round."""

    def __init__(self, world: World, *, receivers: int, megabytes: int) -> None:
        self._world = world
        self._survivors = world.group(receivers - 1)
        self._manifest = self._survivors[0].do(
            "snapshot", seed=1, megabytes=megabytes, bucket_bytes=8 * MIB
        )
        self._number = 0
        self._play_undisturbed()  # faults the pages in, so that rounds are alike

    def play(self, *, naive: bool) -> Recovery:
        """One death and what follows."""
        victim = self._world.open(Role.RECEIVER)
        join([*self._survivors, victim])
        self._number += 1
        doomed = victim.start("receive", **self._kwargs())
        sending = self._start()
        time.sleep(KILL_AFTER)
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        victim.dead.wait(PATIENCE)
        if doomed.done():
            raise TransferEndedError
        if naive:
            for future in sending:
                future.result(PATIENCE)
        detected = time.monotonic()
        abort(self._survivors)
        join(self._survivors)
        rebuilt = time.monotonic()
        self._send_and_commit()
        committed = time.monotonic()
        abort(self._survivors)
        return Recovery(
            detect=detected - killed, rebuild=rebuilt - detected,
            resend=committed - rebuilt, total=committed - killed,
        )  # fmt: skip

    def rest(self) -> None:
        """Wait until nothing of earlier rounds is stuck."""
        for member in self._survivors:
            settled(member, "abandoned", 0, seconds=PATIENCE)

    def _play_undisturbed(self) -> None:
        join(self._survivors)
        for _ in range(2):
            self._number += 1
            self._send_and_commit()
        abort(self._survivors)

    def _send_and_commit(self) -> None:
        for future in self._start():
            done(future)
        receivers: list[Remote] = self._survivors[1:]
        for future in [
            member.start("commit", number=self._number, check=False) for member in receivers
        ]:
            done(future)

    def _start(self) -> list[Future[Reply]]:
        sender, *receivers = self._survivors
        receiving = [receiver.start("receive", **self._kwargs()) for receiver in receivers]
        return [*receiving, sender.start("publish", group=GROUP, timeout=PATIENCE)]

    def _kwargs(self) -> dict[str, Any]:
        return {
            "group": GROUP, "number": self._number, "manifest": self._manifest,
            "timeout": PATIENCE,
        }  # fmt: skip


def rounds(scene: Scene, *, count: int, naive: bool) -> list[Recovery]:
    """`count` rounds that count; at most as many again are thrown away.

    Pauses now and then: a kill in every blink is another question.
    """
    found: list[Recovery] = []
    for number in range(2 * count):
        if number and number % 5 == 0:
            scene.rest()
        try:
            found.append(scene.play(naive=naive))
        except TransferEndedError:
            continue
        print(f"{'naive' if naive else 'kill'}: {asdict(found[-1])}", flush=True)
        if len(found) == count:
            break
    return found


def summary(found: list[Recovery], **more: float) -> dict[str, Any]:
    """Medians of the steps and the worst total."""
    steps = [asdict(recovery) for recovery in found]
    medians = {
        f"{name}_seconds": round(statistics.median(step[name] for step in steps), 4)
        for name in steps[0]
    }
    worst = round(max(recovery.total for recovery in found), 4)
    return {"rounds": len(found), **medians, "worst_seconds": worst, **more}


def main() -> int:
    """Play all; 1 when survivors, or a step of a job, were held up for a second or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receivers", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job-kills", type=int, default=6)
    parser.add_argument("--engine-timeout", type=float, default=SyncSettings().operation_timeout)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        World(
            Path(folder), engine="gloo", config={"operationTimeout": args.engine_timeout}
        ) as world,
    ):
        scene = Scene(world, receivers=args.receivers, megabytes=args.size)
        kill = rounds(scene, count=args.rounds, naive=False)
        naive = rounds(scene, count=1, naive=True)
    if not kill or not naive:
        print("every transfer ended before its victim died; use a larger --size", file=sys.stderr)
        return 1
    job = rounded(asyncio.run(kills(args.job_kills)))
    result = {
        "kill": summary(kill),
        "naive_timeout": summary(naive, engine_timeout_seconds=args.engine_timeout),
        "job": job,
        "bytes": args.size * MIB,
        "receivers": args.receivers,
    }
    print(json.dumps(result))
    worst = max(recovery.total for recovery in kill)
    session = job["kill_to_session_seconds"]["max"]
    stall = job["step_with_a_kill_seconds"]["max"] - job["usual_step_seconds"]
    return 0 if max(worst, session, stall) < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
