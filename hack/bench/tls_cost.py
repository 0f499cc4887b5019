"""What TLS costs a job: steps a second, CPU of a step, and a kill, with it and without in turn.

`python -m hack.bench.tls_cost [--rounds N] [--steps N] [--kills N]`; nothing else should run
meanwhile. The last line is JSON; ratios are TLS divided by plain, medians of rounds.
"""

import argparse
import asyncio
import statistics
from typing import Any

from hack.bench.local_job import kills, rounded, throughput
from hack.bench.run_record import finish, run_record

ROLLOUTS = 2
FIGURES = ("steps_per_second", "trainer_cpu_seconds_per_step", "rollouts_cpu_seconds_per_step")


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one job without TLS and one with it, whose order changes."""
    steps: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    sessions: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds):
        for tls in (False, True) if number % 2 else (True, False):
            steps[tls].append(await throughput(ROLLOUTS, arguments.steps, tls=tls))
            found = await kills(arguments.kills, tls=tls)
            sessions[tls].append(found["kill_to_session_seconds"]["median"])
    ratios = [
        {name: tls[name] / plain[name] for name in FIGURES}
        for plain, tls in zip(steps[False], steps[True], strict=True)
    ]
    return {
        "ratio": {name: statistics.median(each[name] for each in ratios) for name in FIGURES},
        "ratios": ratios,
        "plain": steps[False][-1],
        "kill_to_session_seconds": {
            "plain": statistics.median(sessions[False]),
            "tls": statistics.median(sessions[True]),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    finish("tls-cost", run, rounded(asyncio.run(measure(arguments))))


if __name__ == "__main__":
    main()
