"""SGLang's server on a port of this machine, for those who have its key."""

from __future__ import annotations

import json
import secrets
import socket
import sys
from typing import TYPE_CHECKING

from rollcall_runtime.rollout.engines.server.client import ServerClient
from rollcall_runtime.rollout.engines.server.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def sglang_server(
    arguments: Sequence[str], *, folder: Path, variables: Mapping[str, str], silent_seconds: float
) -> ServerProcess:
    """A server that is not started yet. Its key lies in `folder`, out of the command line."""
    key, port = secrets.token_hex(32), _free_port()
    config = folder / "sglang.yaml"
    config.touch(mode=0o600)
    config.write_text(json.dumps({"api-key": key}))  # which is YAML, too
    command = [sys.executable, "-m", "sglang.launch_server", "--config", str(config)]
    return ServerProcess(
        "SGLang",
        [*command, "--host=127.0.0.1", f"--port={port}", *arguments],
        folder=folder,
        connect=lambda: ServerClient(port=port, key=key),
        alive="/server_info",  # it asks the process that generates; /health fails during a pause
        variables=variables,
        silent_seconds=silent_seconds,
    )


def _free_port() -> int:
    """SGLang has no Unix socket. If another process takes the port meanwhile, the start fails."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
