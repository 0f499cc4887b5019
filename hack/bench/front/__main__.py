"""What the front adds to the times of tokens, at many streams.

`python -m hack.bench.front [--streams N] [--rounds N] [--burst-rounds N]`; nothing else should run
meanwhile. Local jobs, whose front and rollouts are real processes; the same requests go to the
front and, in turn, directly to the rollouts' endpoints. The last line is JSON; times are in
milliseconds.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hack.bench.front.burst import burst
from hack.bench.front.steady import steady
from hack.bench.run_record import finish, run_record


async def measure(
    folder: Path, *, streams: int, rounds: int, burst_rounds: int, tokens: int
) -> dict[str, Any]:
    """Streams that are open for long, and requests that come at once; `folder` is made."""
    found = await steady(folder / "steady", streams=streams, rounds=rounds)
    return found | await burst(
        folder / "burst", streams=streams, rounds=burst_rounds, tokens=tokens
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.front", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst-rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of a request that comes at once")
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), **vars(arguments)))
    finish("front", run, found)


if __name__ == "__main__":
    main()
