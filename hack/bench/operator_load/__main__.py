"""What the operator costs with many jobs, beside a bare client that creates the same objects.

    python -m hack.bench.operator_load [--only jobs500x2]

Real etcd, API server, controller-manager and scheduler; kwok simulates nodes and pods. The last
line is JSON: scenario to figures.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load import hostile_jobs, many_jobs, restart, steady_jobs, storm
from hack.bench.operator_load.measured_operator import measured_operator
from hack.bench.operator_load.simulated_cluster import simulated_cluster
from hack.bench.run_record import finish, run_record

if TYPE_CHECKING:
    from collections.abc import Callable


def _all_at_once(jobs: int, rollouts: int) -> dict[str, Any]:
    with simulated_cluster() as cluster:
        bare = asyncio.run(many_jobs.bare_client_figures(cluster, jobs=jobs, rollouts=rollouts))
    with simulated_cluster() as cluster, measured_operator(cluster) as operator:
        figures = asyncio.run(
            many_jobs.operator_figures(cluster, operator, jobs=jobs, rollouts=rollouts)
        )
    ratio = round(figures["seconds"] / bare["bare_seconds"], 3)
    return {"ratio_to_bare": ratio, **bare, **figures}


def _idle(jobs: int) -> dict[str, Any]:
    with simulated_cluster() as cluster, measured_operator(cluster) as operator:
        return asyncio.run(steady_jobs.idle_figures(cluster, operator, jobs=jobs))


def _training(jobs: int) -> dict[str, Any]:
    with simulated_cluster() as cluster, measured_operator(cluster) as operator:
        return asyncio.run(steady_jobs.training_figures(cluster, operator, jobs=jobs))


def _restart(jobs: int) -> dict[str, Any]:
    with simulated_cluster() as cluster:
        return restart.restart_figures(cluster, jobs=jobs)


def _storm() -> dict[str, Any]:
    with simulated_cluster() as cluster, measured_operator(cluster) as operator:
        return asyncio.run(storm.storm_figures(cluster, operator))


def _hostile(jobs: int, hostile: int) -> dict[str, Any]:
    with simulated_cluster() as cluster, measured_operator(cluster) as operator:
        return asyncio.run(
            hostile_jobs.hostile_figures(cluster, operator, jobs=jobs, hostile=hostile)
        )


_SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "jobs500x2": lambda: _all_at_once(500, 1),
    "jobs50x10": lambda: _all_at_once(50, 9),
    "idle500": lambda: _idle(500),
    "training500": lambda: _training(500),
    "pods10000": lambda: _restart(5000),
    "storm": _storm,
    "hostile500": lambda: _hostile(500, 5),
    "hostile40": lambda: _hostile(40, 5),
}
_DEFAULT = [name for name in _SCENARIOS if name != "hostile40"]  # a short one


def main() -> int:
    """Measure the chosen scenarios and store their figures. Returns 0; a failure is raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(_SCENARIOS), default=_DEFAULT)
    options = parser.parse_args()
    run = run_record(vars(options))
    figures = {}
    for name in options.only:
        figures[name] = _SCENARIOS[name]()
        print(name, figures[name], file=sys.stderr)
    finish("operator-load", run, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
