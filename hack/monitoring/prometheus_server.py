"""A Prometheus process on this machine that scrapes and judges as a rendered chart says."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from hack.cluster.debian_packages import program_folder
from hack.free_ports import free_port
from hack.monitoring.scrape_config import scrape_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hack.monitoring.scrape_config import Object, Target

START_SECONDS = 30.0
ANSWER_SECONDS = 10.0
MONITORS = ("ServiceMonitor", "PodMonitor")


class Line(NamedTuple):
    """A series over time: its labels, and (Unix seconds, value) in order."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class PrometheusError(Exception):
    """Prometheus has refused a query, or has not started."""


class PrometheusServer:
    """Use as a context; `discover` sets the targets from which monitors choose.

    `objects` are the chart's, rendered: each monitor becomes a scrape job, each PrometheusRule a
    file of rules. `prefix` is put before the command, to run it in another network.
    """

    def __init__(
        self,
        folder: Path,
        objects: Iterable[Mapping[str, Any]],
        *,
        rules_every: str = "1s",
        prefix: tuple[str, ...] = (),
        address: str = "127.0.0.1",
    ) -> None:
        self._folder = folder
        self._address, self._port = address, free_port()
        self._prefix = prefix
        self._rules_every = rules_every
        self._monitors = [body for body in objects if body["kind"] in MONITORS]
        self._rules = [body for body in objects if body["kind"] == "PrometheusRule"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrometheusServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        for kind in MONITORS:
            self.discover(kind, ())
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(self._configuration()))
        program = program_folder("prometheus") / "prometheus"
        command = [
            *(*self._prefix, str(program)),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}:{self._port}",
            "--query.lookback-delta=10s",  # scrapes come every second
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)

    def discover(self, kind: str, targets: Iterable[Target]) -> None:
        """What the monitors of this kind choose from, from now on."""
        path = self._targets(kind)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(list(targets)))
        new.replace(path)

    def now(self, expression: str) -> list[Line]:
        """The value of an expression now: one point a line. PrometheusError if it is refused."""
        found = self._ask("query", query=expression)
        return [Line(each["metric"], _points([each["value"]])) for each in found["result"]]

    def over_time(self, expression: str, *, begin: float, end: float, step: float) -> list[Line]:
        """The values between two Unix times. PrometheusError if the expression is refused."""
        found = self._ask("query_range", query=expression, start=begin, end=end, step=step)
        return [Line(each["metric"], _points(each["values"])) for each in found["result"]]

    def active_targets(self) -> list[dict[str, Any]]:
        """What is scraped, with `labels`, `health` and `lastError`."""
        targets: list[dict[str, Any]] = self._ask("targets", state="active")["activeTargets"]
        return targets

    def rules(self) -> list[dict[str, Any]]:
        """All rules as they were evaluated last, with `health` and `lastError`."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _configuration(self) -> Object:
        rules = self._folder / "rules"
        rules.mkdir(exist_ok=True)
        for body in self._rules:
            path = rules / f"{body['metadata']['name']}.yaml"
            path.write_text(yaml.safe_dump(body["spec"]))
        return {
            "global": {"evaluation_interval": self._rules_every},
            "rule_files": [str(rules / "*.yaml")],
            "scrape_configs": [
                scrape_config(body, targets=str(self._targets(body["kind"])))
                for body in self._monitors
            ],
        }

    def _targets(self, kind: str) -> Path:
        return self._folder / f"targets-{kind}.json"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                self._ask("targets", state="active")
            except PrometheusError:
                if self._process is None or self._process.poll() is not None:
                    break
                time.sleep(0.1)
            else:
                return
        raise PrometheusError(f"it did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def _ask(self, route: str, **values: Any) -> dict[str, Any]:
        url = f"http://{self._address}:{self._port}/api/v1/{route}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(f"{route} {values}: {error.read().decode()}") from error
        except OSError as error:
            raise PrometheusError(f"{route}: {error}") from error


def _points(values: Iterable[tuple[float, str]]) -> list[tuple[float, float]]:
    return [(at, float(value)) for at, value in values]
