"""How long a job in training is held up when its rollouts are killed.

From the kill to the survivors' session, and the longest step around it. The last line is JSON,
times are seconds. What a killed receiver costs an engine alone: `rollcall-sync bench
--kill-member`. Run both with `make bench-recovery`.
"""

import argparse
import asyncio
import json
import sys

from tests.local.measure import kills, rounded


def main() -> int:
    """Play all; 1 when a session or a step was held up for a second or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    job = rounded(asyncio.run(kills(parser.parse_args().kills)))
    print(json.dumps(job))
    session = job["kill_to_session_seconds"]["max"]
    stall = job["step_with_a_kill_seconds"]["max"] - job["usual_step_seconds"]
    return 0 if max(session, stall) < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
