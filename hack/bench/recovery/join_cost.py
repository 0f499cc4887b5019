"""What four newcomers cost the two rollouts that serve: tokens a second before and meanwhile.

Starting processes takes these two cores for seconds whatever joins, so it is kept out: the
newcomers' way to the trainer is closed until their processes are up, then opened.
"""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterable

from hack.bench.recovery.bench_job import POOL, BenchJob
from hack.bench.recovery.pod_processes import WorkerProcess, connect, workers
from hack.bench.recovery.scale_up import FEW, MANY, SCALE_SECONDS, drained
from hack.bench.recovery.trial_statistics import TrialResult, total_at
from hack.bench.recovery.worker_log import WorkerLog
from hack.soak import host_inspection
from rollcall_protocol import pod_contract

BEFORE_SECONDS, REST_SECONDS, LOOK_SECONDS = 5.0, 3.0, 0.05
COUNTER = "rollcall_tokens_total"


def cost(job: BenchJob) -> list[TrialResult]:
    """Tokens that serving rollouts sample while newcomers catch up, and a second before that."""
    old = job.rollouts()
    addresses = job.pods()
    trainer = job.stream.address
    job.kubectl.run("scale", f"rolloutpool/{POOL}", f"--replicas={MANY}")
    newcomers = _close_ways(job, set(old), trainer)
    logs = [WorkerLog(process.pod_uid) for process in newcomers]
    for log in logs:
        log.wait_for("no stream to the coordinator", seconds=SCALE_SECONDS)
    with TokenCounters((old[uid], addresses[uid]) for uid in old) as tokens:
        time.sleep(REST_SECONDS + BEFORE_SECONDS)
        opened = time.time()
        for process in newcomers:
            _route(process, "del", trainer)
        seen = job.serving(MANY, seconds=SCALE_SECONDS)
    streams = [j.first("stream to the coordinator is open", after=opened) for j in logs]
    began = min(at for at in streams if at is not None)
    # From then on newcomers sample too, and the trainer needs no more tokens than before.
    end = min(s.at for s in job.stream.history if s.at > began and s.in_sync - set(old))
    before = tokens.sampled(opened - BEFORE_SECONDS, opened) / BEFORE_SECONDS
    if not before:
        raise ValueError("no tokens were sampled before the newcomers came")
    job.kubectl.run("scale", f"rolloutpool/{POOL}", f"--replicas={FEW}")
    job.serving(FEW, seconds=SCALE_SECONDS)
    drained({process.pod_uid for process in newcomers} | set(old), still=FEW)
    details = {"before": before, "seconds": end - began, "drawn": tokens.sampled(began, end)}
    return [TrialResult("join_cost", seen.at - began, details)]


class TokenCounters:
    """Asks the rollouts for their counters, many times a second, until left."""

    def __init__(self, rollouts: Iterable[tuple[WorkerProcess, str]]) -> None:
        self._samples: list[list[tuple[float, float]]] = []
        self._over = threading.Event()
        self._threads = []
        for process, address in rollouts:
            samples: list[tuple[float, float]] = []
            self._samples.append(samples)
            asked = threading.Thread(target=self._ask, args=(process, address, samples))
            self._threads.append(asked)

    def __enter__(self) -> "TokenCounters":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def sampled(self, since: float, until: float) -> float:
        """Tokens that all of them together sampled between two times."""
        return sum(total_at(s, until) - total_at(s, since) for s in self._samples)

    def _ask(
        self, process: WorkerProcess, address: str, samples: list[tuple[float, float]]
    ) -> None:
        connection = http.client.HTTPConnection(address, pod_contract.METRICS_PORT, timeout=10)
        connection.sock = connect(process, address=address, port=pod_contract.METRICS_PORT)
        with contextlib.closing(connection):
            over = False
            while not over:  # the last time after it was left
                over = self._over.wait(LOOK_SECONDS)
                connection.request("GET", "/metrics")
                lines = connection.getresponse().read().decode().splitlines()
                values = [float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(COUNTER)]
                samples.append((time.time(), sum(values)))


def _close_ways(job: BenchJob, old: set[str], trainer: str) -> list[WorkerProcess]:
    """Find the newcomers as they start, and keep each of them from the trainer."""
    closed: dict[str, WorkerProcess] = {}
    deadline = time.monotonic() + SCALE_SECONDS
    while len(closed) < MANY - FEW:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(closed)} newcomers within {SCALE_SECONDS:.0f} s")
        for uid, process in workers(set(job.pods()) - old - set(closed)).items():
            _route(process, "add", trainer)
            closed[uid] = process
    return list(closed.values())


def _route(process: WorkerProcess, verb: str, address: str) -> None:
    node = host_inspection.node_pid(host_inspection.WORKER_NODES[0])
    host_inspection.in_network_of(
        process.pid, "ip", "route", verb, "blackhole", address, tools_of=node
    )
