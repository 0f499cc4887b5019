"""The folder of one local run: its objects, checkpoints, logs, and how to reach it."""

import base64
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from rollcall_local.api_server.whole_file import write_whole
from rollcall_local.errors import LocalError

FORMAT = 1
_HOME = "ROLLCALL_LOCAL_HOME"


class StateFolderError(LocalError):
    """The folder cannot be used; the message says why, and what to do."""


def home() -> Path:
    """Where the folders of all runs are."""
    named = os.environ.get(_HOME)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "rollcall" / "local"


@dataclass(slots=True)
class StateFolder:
    """The folder `path`; `hold` it before anything is written."""

    path: Path
    _lock: int = -1

    @property
    def kubeconfig(self) -> Path:
        """Leads to the API server of the run, while there is one."""
        return self.path / "kubeconfig"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def key(self) -> Path:
        """Signs the tokens of service accounts."""
        return self.path / "key.pem"

    @property
    def certificate(self) -> Path:
        """Of the API server, with its key."""
        return self.path / "server.pem"

    @property
    def operator_log(self) -> Path:
        return self.path / "operator.log"

    def has_job(self, name: str) -> bool:
        """Whether an RLJob of this name is or was in it."""
        return any(file.stem == name for file in self.objects.glob("rljobs/*/*.json"))

    def samples(self, job: str) -> Path:
        """The responses of a job whose run has ended."""
        return self.path / f"{job}-samples.jsonl"

    def hold(self) -> None:
        """Make it this process's alone until it ends; StateFolderError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateFolderError(f"{self.path}: {error.strerror}; see {_HOME}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateFolderError(
                f"{self.path.name} runs already (process {self.holder()}); look at it with "
                f"`rollcall local status {self.path.name}`, or give another --name"
            ) from error
        try:
            os.ftruncate(self._lock, 0)
            os.write(self._lock, str(os.getpid()).encode())
            self._check_format()
        except OSError as error:
            raise StateFolderError(f"{self.path}: {error.strerror}; see {_HOME}") from error

    def release(self) -> None:
        """Leave it to other processes, as the end of this one does."""
        os.close(self._lock)
        self._lock = -1

    def holder(self) -> int | None:
        """The process that holds it; None: there is none."""
        try:
            with (self.path / "lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read() or b"0")
        except (FileNotFoundError, ValueError):
            pass
        return None

    def write_kubeconfig(self, *, server: str, token: str, authority: str) -> None:
        """For the operator, `rollcall local` and kubectl; `authority` (PEM) is to be believed."""
        believed = base64.b64encode(authority.encode()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {"server": server, "certificate-authority-data": believed},
                }
            ],
            "users": [{"name": "local", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "local",
                    "context": {"cluster": "local", "user": "local", "namespace": "default"},
                }
            ],
            "current-context": "local",
        }
        write_whole(self.kubeconfig, yaml.safe_dump(content).encode())

    def _check_format(self) -> None:
        file = self.path / "format.json"
        if not file.exists():
            write_whole(file, json.dumps({"format": FORMAT}).encode())
            return
        try:
            found = json.loads(file.read_text())["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateFolderError(f"{file} cannot be read: {error}; move {self.path}") from error
        if found != FORMAT:
            raise StateFolderError(
                f"{self.path} is of format {found}, and this version of rollcall knows {FORMAT}; "
                f"use the version that wrote it, or move the folder"
            )
