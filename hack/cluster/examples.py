"""The manifests of examples/, with the images that were built."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
# On a cluster of one's own (ROLLCALL_USE_KUBECONFIG=1) images come from where `make push` put them.
PREFIX = os.environ.get("IMAGE_PREFIX", "rollcall")
TAG = os.environ.get("IMAGE_TAG", "dev")
OPERATOR_IMAGE = f"{PREFIX}/operator:{TAG}"
WORKER_IMAGE = f"{PREFIX}/worker-cpu:{TAG}"


def with_images(text: str) -> str:
    """A manifest of examples/ with the images that IMAGE_PREFIX and IMAGE_TAG name."""
    return re.sub(r"\brollcall/([-a-z0-9]+):dev\b", rf"{PREFIX}/\1:{TAG}", text)


def example(name: str, /, **changes: Any) -> dict[str, Any]:
    """An object of examples/, with some of its metadata or spec.algorithm changed by keyword."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.safe_load(with_images(text))
    if "name" in changes:
        manifest["metadata"]["name"] = changes.pop("name")
    if changes:
        manifest["spec"].setdefault("algorithm", {}).update(changes)
    return manifest
