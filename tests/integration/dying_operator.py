"""The operator, made to die: SIGKILL just before or just after its n-th write.

python -m tests.integration.dying_operator before 3 --kubeconfig ... --namespace ...
"""

import os
import signal
import sys
from typing import Any

from rollcall_operator import app
from rollcall_operator.kube.transport import Transport

_UNCOUNTED = {"leases", "events"}


def die_at(number: int, *, after: bool) -> None:
    """Have this process killed at its `number`-th write, counted from 1."""
    count = 0
    send = Transport._once

    async def once(self: Transport, method: str, url: str, **rest: Any) -> dict[str, Any]:
        nonlocal count
        if method == "GET" or rest["plural"] in _UNCOUNTED:
            return await send(self, method, url, **rest)
        count += 1
        last = count == number
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await send(self, method, url, **rest)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Transport._once = once  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(int(sys.argv[2]), after=sys.argv[1] == "after")
    sys.exit(app.main(sys.argv[3:]))
