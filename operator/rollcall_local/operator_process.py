"""The operator as a process of its own, which ends with the one that has started it.

`python -m rollcall_local.operator_process PARENT ...`, where PARENT is the pid of that process.
"""

import os
import sys

from rollcall_runtime.worker.parent_process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    if os.getppid() != int(sys.argv.pop(1)):  # it has ended before it could take this one along
        sys.exit(1)
    from rollcall_operator.cli import main  # seconds, in which the parent may end

    sys.exit(main())
