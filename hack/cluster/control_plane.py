"""A bare control plane for tests and benches: etcd, API server and controller-manager, all real.

There is no kubelet, and a scheduler only on request: pods are created and never run. Everything
listens on 127.0.0.1, keeps its data in memory, and ends with this process, however that ends.

    with ControlPlane() as control:
        client = make_client(control.kubeconfig)
"""

from __future__ import annotations

import http
import http.client
import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.cluster import go_build
from hack.cluster.errors import CommandError
from hack.cluster.subprocesses import run, tail_of, wait_for
from hack.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MEMORY = Path("/dev/shm")
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 10.0
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": list(_WRITES)},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class ControlPlane:
    """Owns its processes, their folder and a kubeconfig for them.

    All methods may be called from any thread, one at a time.

    Attributes:
        folder: everything of it, in memory if the machine has such a place; gone after `stop`.
        etcd: the address of the API server's etcd, `http://127.0.0.1:<port>`.
        server: the API server's address, `https://127.0.0.1:<port>`.
        token: a bearer token of the group `system:masters`.
        certificate: the file of the certificate to trust.
        kubeconfig: the file of an administrator's kubeconfig.
        audit_log: where each write is logged, and each request of a service account, one JSON
            object a line; see `writes` and `requests`.
    """

    def __init__(self) -> None:
        base = MEMORY if MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="rollcall-control-", dir=base))
        self.token = secrets.token_hex(16)
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self.etcd = f"http://127.0.0.1:{self._etcd_port}"
        self.server = f"https://127.0.0.1:{self._port}"
        self.certificate = self.folder / "certificates" / "apiserver.crt"
        self.kubeconfig = self.folder / "kubeconfig"
        self.audit_log = self.folder / "audit.log"
        self._programs: dict[str, Path] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # A child gets its signal when the thread that started it ends, not the process: so one
        # thread starts them all and lives as long as they do.
        self._launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="control-plane")

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts everything and waits until it answers; builds what is not built yet.

        Raises:
            CommandError: a part of it did not come up; quotes the end of its log.
        """
        names = ("etcd", "kube-apiserver", "kube-controller-manager")
        self._programs = go_build.programs(names)
        self._write_files()
        self._start_etcd()
        self.start_apiserver()
        self.start_controller_manager()

    def stop(self) -> None:
        """Ends every process and removes the folder; harmless if done already."""
        for name in list(self._running):
            self._kill(name)
        self._launcher.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_apiserver(self) -> None:
        """Starts the API server, on the same port and data as before if it ran before."""
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={self.etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            # As OpenShift does: who sets blockOwnerDeletion needs the owner's finalizers.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'account.key'}",
            f"--service-account-signing-key-file={self.folder / 'account.key'}",
            f"--audit-policy-file={self.folder / 'audit-policy.json'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",
            "--profiling=false",
            "--shutdown-delay-duration=0s",
        )
        self._wait("kube-apiserver", lambda: self._answers("/readyz"))

    def stop_apiserver(self) -> None:
        """Kills the API server at once, as a crash would; its data stay."""
        self._kill("kube-apiserver")

    def start_controller_manager(self) -> None:
        """Starts the controller-manager and waits until its controllers act."""
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.folder / 'manager-kubeconfig'}",
            f"--service-account-private-key-file={self.folder / 'account.key'}",
            f"--root-ca-file={self.certificate}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--profiling=false",
        )
        self._wait(
            "kube-controller-manager",
            lambda: self._answers("/api/v1/namespaces/default/serviceaccounts/default"),
        )

    def start_program(self, name: str, *arguments: str) -> int:
        """Starts another of the programs that `go_build` knows, which ends with the others.

        Returns:
            Its process id.
        """
        self._programs |= go_build.programs([name])
        self._spawn(name, *arguments)
        return self._running[name].pid

    def stop_program(self, name: str) -> None:
        """Kills one that `start_program` or `start_controller_manager` has started."""
        self._kill(name)

    def processes(self) -> dict[str, int]:
        """The process ids of all that run, by name."""
        return {name: process.pid for name, process in self._running.items()}

    def writes(self, *, user: str | None = None) -> list[dict[str, Any]]:
        """The writes that the API server has taken so far, as its audit events.

        Args:
            user: only those of this user, such as `system:serviceaccount:rollcall:operator`.
        """
        return [event for event in self._audited(user) if event["verb"] in _WRITES]

    def requests(self, *, user: str) -> list[dict[str, Any]]:
        """All requests of a service account that the API server has answered so far.

        Args:
            user: such as `system:serviceaccount:rollcall:operator`.
        """
        return self._audited(user)

    def _audited(self, user: str | None) -> list[dict[str, Any]]:
        try:
            lines = self.audit_log.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines if line.endswith("\n")]  # the rest comes
        return [event for event in events if user in (None, event["user"]["username"])]

    def _start_etcd(self) -> None:
        client = self.etcd
        peer = f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--log-level=warn",
        )
        self._wait("etcd", lambda: _fetch(self._etcd_port, "/health"))

    def _write_files(self) -> None:
        own = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(
            f"{self.token},admin,admin,system:masters\n"
            f"{own},system:kube-controller-manager,manager,system:masters\n"
        )
        (self.folder / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))
        run(["openssl", "genrsa", "-out", self.folder / "account.key", "2048"], timeout_s=60)
        self._write_kubeconfig(self.kubeconfig, token=self.token)
        self._write_kubeconfig(self.folder / "manager-kubeconfig", token=own)

    def _write_kubeconfig(self, path: Path, *, token: str) -> None:
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        context = {"cluster": "rollcall", "user": "user"}
        path.touch(mode=0o600)
        # A JSON text is YAML too.
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "rollcall", "cluster": cluster}],
                    "users": [{"name": "user", "user": {"token": token}}],
                    "contexts": [{"name": "rollcall", "context": context}],
                    "current-context": "rollcall",
                }
            )
        )

    def _spawn(self, name: str, *arguments: str) -> None:
        if name in self._running:
            raise CommandError(f"{name}: runs already", output="")
        log = self._log(name)

        def launch() -> subprocess.Popen[bytes]:
            with log.open("ab") as sink:
                return subprocess.Popen(
                    ["setpriv", "--pdeathsig=KILL", self._programs[name], *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self.folder,
                )

        self._running[name] = self._launcher.submit(launch).result()

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        log = self._log(name)

        def looks_ready() -> bool:
            status = self._running[name].poll()
            if status is not None:
                del self._running[name]
                raise CommandError(f"{name}: exit status {status}", output=tail_of(log))
            return ready()

        wait_for(name, looks_ready, timeout_s=READY_TIMEOUT_S, every_s=0.05, log=log)

    def _kill(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(timeout=STOP_TIMEOUT_S)

    def _answers(self, path: str) -> bool:
        if not self.certificate.exists():
            return False
        try:
            trust = ssl.create_default_context(cafile=str(self.certificate))
        except ssl.SSLError:  # the file is being written
            return False
        return _fetch(self._port, path, token=self.token, trust=trust)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _fetch(port: int, path: str, *, token: str = "", trust: ssl.SSLContext | None = None) -> bool:
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
        if trust
        else http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    """Runs a control plane until interrupted; prints its kubeconfig's path."""
    with ControlPlane() as control:
        print(control.kubeconfig, flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
