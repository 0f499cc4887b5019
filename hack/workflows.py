"""Checks the workflows in `.github/workflows` with actionlint, which is built if it is absent.

Programs that actionlint would run if the machine has them (shellcheck, pyflakes) are left out, so
that every machine finds the same.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hack.cluster import cache, go_build
from hack.cluster.errors import ClusterError, explain

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120.0


def main() -> int:
    """Prints what is wrong; returns 0 if nothing is."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
    if not workflows:
        print("error: there is no workflow in .github/workflows", file=sys.stderr)
        return 1
    try:
        program = go_build.program("actionlint")
    except (ClusterError, OSError) as error:
        print(explain(error, log=cache.keep_output(error)), file=sys.stderr)
        return 1
    words: list[str | Path] = [program, "-shellcheck=", "-pyflakes=", *workflows]
    return subprocess.run(words, cwd=ROOT, check=False, timeout=TIMEOUT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
