"""Worker processes as pods: an address, a uid, a folder, and a log each."""

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from rollcall_local.kubelet.processes import ContainerProcess
from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import JobConfig, PoolConfig, ReferencePodConfig
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from tests.certificates import authority, believe, show
from tests.process import runtimes
from tests.token_issuer import TokenIssuer

ROOT = Path(__file__).parents[2]
ISSUER = TokenIssuer()
"""The API server of all local jobs of this process."""
AT_IMPORT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "workloads"), str(ROOT)]),
    "OMP_NUM_THREADS": "1",
}
END_SECONDS = 5.0
LEFT_SECONDS = 15.0  # for what it has left, which the runtime ends; it takes 10 s at most


@dataclass(slots=True)
class Pod:
    """One worker. `start` again after its end is a container restart in the same pod.

    The process first imports the module `imports`, if one is named. `command` is what it runs,
    by default the worker of its role.
    """

    name: str
    uid: str
    address: str
    role: str  # trainer, rollout, reference or front
    folder: Path
    variables: dict[str, str]
    group: str = DEFAULT_GROUP
    process: ContainerProcess | None = None
    logs: list[Path] = field(default_factory=list)
    imports: str = ""
    command: list[str] = field(default_factory=list)

    async def start(self) -> None:
        log = self.folder / f"{self.name}.{len(self.logs)}.log"
        self.logs.append(log)
        log.write_bytes(b"")
        runtime = runtimes.current().of(Path(sys.executable), self.variables)
        await runtime.ready()
        self.process = await runtime.run(
            container=f"{self.uid}/{self.role}",
            argv=self.command or [f"rollcall-{self.role}"],
            environment=self._environment(),
            folder=ROOT,
            log_file=log,
        )

    def _environment(self) -> dict[str, str]:
        if not self.imports:
            return self.variables
        site = self.folder / f"{self.name}-site"  # Python imports it first (site)
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(f"import {self.imports}\n")
        path = os.pathsep.join([str(site), self.variables["PYTHONPATH"]])
        return {**self.variables, "PYTHONPATH": path}

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.ended.done()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send(number)

    async def exited(self, *, seconds: float) -> int:
        """Its exit code, once it has ended."""
        assert self.process is not None
        return await asyncio.wait_for(asyncio.shield(self.process.ended), seconds)

    async def close(self) -> None:
        """End it, whatever it does."""
        if self.process is None:
            return
        self.send(signal.SIGTERM)
        await asyncio.wait({self.process.ended}, timeout=END_SECONDS)
        self.send(signal.SIGKILL)
        await self.exited(seconds=LEFT_SECONDS)

    def log(self) -> str:
        """What its latest run wrote."""
        return self.logs[-1].read_text(errors="replace") if self.logs else ""

    async def logs_line(self, text: str, *, seconds: float) -> None:
        """Wait until its latest run has written `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < deadline, f"{self.name} has not said {text!r}"
            await asyncio.sleep(0.1)

    def token(self, job_uid: str) -> str:
        """The token that it shows to its coordinator."""
        return ISSUER.pod_token(job_uid=job_uid, pod=self.name, pod_uid=self.uid)

    async def metrics(self) -> dict[str, float]:
        """Metrics by name, without the prefix; those with a cause, outcome or kind as name{it}."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.address}:{pod_contract.METRICS_PORT}/metrics") as answer,
        ):
            text = await answer.text()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                kinds = [v for k, v in sample.labels.items() if k not in _COORDINATES]
                name = sample.name.removeprefix("rollcall_") + "".join(f"{{{v}}}" for v in kinds)
                found[name] = sample.value
        return found

    async def reaches(self, name: str, value: float, *, seconds: float) -> dict[str, float]:
        """Ask for the metrics until `name` is at least `value`."""
        deadline, found = time.monotonic() + seconds, dict[str, float]()
        while time.monotonic() < deadline:
            assert self.running, f"{self.name} ended: {self.log()[-2000:]}"
            try:
                found = await self.metrics()
            except aiohttp.ClientError:
                found = {}
            if found.get(name, float("-inf")) >= value:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self.name}: {name} is {found.get(name)}, not {value}")


_COORDINATES = {"namespace", "job", "pool", "group"}


def variables(
    config: JobConfig,
    *,
    pod: str,
    uid: str,
    address: str,
    coordinator: str,
    folder: Path,
    pool: PoolConfig | None = None,
) -> dict[str, str]:
    """What the operator would write into the container of `pod`."""
    state = folder / "state" / pod
    state.mkdir(parents=True, exist_ok=True)
    mounted = ISSUER.mount(
        folder / "mounted" / uid,
        job_uid=config.uid,
        pod=pod,
        pod_uid=uid,
        namespace=config.namespace,
    )
    if config.tls:
        believe(folder / "mounted" / uid, authority())
        mounted[pod_contract.TLS_DIR] = str(show(folder / "mounted" / uid / "tls", address))
    values = {
        pod_contract.CONFIG: json.dumps(encode(config)),
        pod_contract.REFERENCE_CONFIG: json.dumps(encode(ReferencePodConfig(device="cpu"))),
        pod_contract.COORDINATOR: coordinator,
        pod_contract.POD_NAME: pod,
        pod_contract.POD_UID: uid,
        pod_contract.POD_IP: address,
        **mounted,
        pod_contract.STATE_DIR: str(state),
        "PATH": os.environ["PATH"],
        **AT_IMPORT,
    }
    if pool is not None:
        values[pod_contract.POOL_CONFIG] = json.dumps(encode(pool))
    return values
