"""Kubeconfigs of API servers that tests play."""

import json
from pathlib import Path


def write_kubeconfig(folder: Path, server: str, **cluster: str) -> str:
    """The path of a kubeconfig in `folder`, whose user has a token; `cluster` are more settings."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig), encoding="utf-8")
    return str(path)
