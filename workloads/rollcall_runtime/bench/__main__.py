"""`python -m rollcall_runtime.bench` is `rollcall-sync`."""

import sys

from rollcall_runtime.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
