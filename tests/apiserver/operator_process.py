"""The operator as users run it: its own process, with the rights that the chart gives it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class OperatorProcess:
    """One `rollcall-operator run`; ends with the context."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        log: Path,
        flags: tuple[str, ...] = (),
        command: tuple[str, ...] = ("-m", "rollcall_operator.cli", "run"),
    ) -> None:
        self.log = log
        self._sink = log.open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable,
                *command,
                "--kubeconfig",
                str(kubeconfig),
                "--http-host",
                "127.0.0.1",
                "--http-port",
                "0",
                *flags,
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'workloads'}:{ROOT}"},
            stdin=subprocess.DEVNULL,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> "OperatorProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self._sink.close()

    def wait_for_log(self, text: str, *, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Wait for a line whose message contains `text`; raises AssertionError with the log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.lines():
                if text in line["message"]:
                    return line
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(
            f"no {text!r} (exit status {self.process.poll()}):\n{self.log.read_text()}"
        )

    def wait_until_watching(self) -> "OperatorProcess":
        """Wait until it serves."""
        self.wait_for_log("Watching")
        return self

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"level": "raw", "message": line})
        return found

    def fetch(self, path: str) -> tuple[int, str]:
        """Ask its HTTP port."""
        port = self.wait_for_log("Probes and metrics on port")["message"].rsplit(" ", 1)[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self, *names: str) -> dict[str, float]:
        """Its metrics, or those with series of these names alone: series with labels to value."""
        query = f"?{urlencode([('name[]', name) for name in names])}" if names else ""
        values = {}
        for line in self.fetch(f"/metrics{query}")[1].splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                values[series] = float(value)
        return values

    def reconciles(self) -> int:
        """How many reconciles have gone well."""
        name = "rollcall_reconcile_seconds_count"
        return int(self.metrics(name).get(f'{name}{{result="ok"}}', 0))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def assert_healthy(self) -> None:
        """It runs, its rights suffice, and no reconcile ended in an error."""
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        lacking = [
            line["message"] for line in self.lines() if "is forbidden: User" in line["message"]
        ]
        assert not lacking
        errors = [line for line in self.lines() if line["level"] in {"error", "critical", "raw"}]
        assert not errors, errors[:3]
        assert not self.metrics().get('rollcall_reconcile_seconds_count{result="error"}')
