"""The operator as a process of its own, which ends with the one that has started it."""

import sys

from rollcall_operator.cli import main
from rollcall_runtime.worker.parent_process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
