"""`python -m rollcall_runtime.train` is `rollcall-train`."""

import sys

from rollcall_runtime.train.cli import main

if __name__ == "__main__":
    sys.exit(main())
