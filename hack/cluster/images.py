"""The project's images: built with whichever engine is in use, put into the nodes, pushed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import base_image, cache, docker_engine, image_load, kind, lifecycle, progress
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.progress import Step, say
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hack.cluster.docker_engine import Engine

REPOSITORY_ROOT = Path(__file__).parents[2]
PREFIX = "rollcall"
TAG = "dev"
DEFAULT = ("operator", "worker-cpu")
"""What the local cluster always has."""
EVERY = (*DEFAULT, "worker-vllm")
"""What can be built on this machine, for users."""
FOLDERS = ("images", "tests/images", "examples/smollm")
BUILD_TIMEOUT_S = 1800.0
PUSH_TIMEOUT_S = 3600.0
_PASSED_ON = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "PIP_INDEX_URL",
)


def full_name(name: str, *, prefix: str, tag: str) -> str:
    """The reference of an image, such as `rollcall/operator:dev`."""
    return f"{prefix.rstrip('/')}/{name}:{tag}"


def steps(names: Sequence[str] = DEFAULT, *, prefix: str = PREFIX, tag: str = TAG) -> list[Step]:
    """What building these images and loading them shows."""
    full = [full_name(name, prefix=prefix, tag=tag) for name in names]
    return [*base_image.steps(), *map(_build_step, full), *map(_load_step, full)]


def build(names: Sequence[str], *, prefix: str = PREFIX, tag: str = TAG) -> list[str]:
    """Builds images, the default ones if none is named; returns their full names."""
    for name in names:
        _dockerfile(name)
    chosen = engine()
    on_debian = any(_on_standard_base(name) for name in names or DEFAULT)
    base = base_image.ensure(chosen) if on_debian else base_image.STANDARD
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = pool.map(
            lambda name: _build(
                chosen, name, base=base, full=full_name(name, prefix=prefix, tag=tag)
            ),
            names or DEFAULT,
        )
        return list(built)


def load(images: Iterable[str], *, most: int | None = None) -> list[str]:
    """Puts images of the engine into the nodes of the kind cluster that take ordinary pods.

    Args:
        images: their full names.
        most: into so many of the nodes at most; the same ones each time.

    Returns:
        The nodes that have them.

    Raises:
        ClusterError: the cluster is not ours, or the engine lacks an image.
    """
    if lifecycle.uses_existing():
        raise ClusterError(
            "images cannot be loaded into an existing cluster: push them to a registry that it "
            "can reach (`push --prefix REGISTRY/NAME`) and name them in the manifests"
        )
    chosen = engine()
    nodes = sorted(kind.schedulable_nodes(chosen))[:most]
    for image in images:
        _load(chosen, image, nodes)
    return nodes


def identity(image: str) -> str:
    """The id of an image of the engine; it changes when the image is rebuilt.

    Raises:
        ClusterError: the engine lacks it.
    """
    try:
        return engine().docker("inspect", "--format", "{{.Id}}", image).strip()
    except CommandError as error:
        raise ClusterError(f"{image}: no such image; build it first") from error


def push(names: Sequence[str], *, prefix: str, tag: str) -> None:
    """Pushes images to the registry that their prefix names.

    Raises:
        ClusterError: an image was built on a base made on this machine, which carries its
            addresses and certificates.
    """
    chosen = engine()
    for name in names or DEFAULT:
        full = full_name(name, prefix=prefix, tag=tag)
        said = chosen.docker("inspect", "--format", "{{json .Config.Labels}}", full)
        if base_image.LABEL in (json.loads(said) or {}):
            raise ClusterError(
                f"{full} must not be published: its base was made on this machine and carries the "
                f"addresses and certificates of its network; build it where {base_image.STANDARD} "
                f"can be pulled"
            )
        say(f"pushing {full}")
        chosen.docker("push", "--quiet", full, timeout_s=PUSH_TIMEOUT_S)


def _load(chosen: Engine, image: str, nodes: Sequence[str]) -> None:
    built = identity(image)
    missing = [
        node for node in nodes if not image_load.is_there(chosen, node, image=image, identity=built)
    ]
    if not missing:
        return
    with (
        progress.step(_load_step(image)),
        cache.scratch() as folder,
        ThreadPoolExecutor(max_workers=len(missing)) as pool,
    ):
        saved = folder / "image.tar"
        chosen.docker("save", "--output", saved, image, timeout_s=600)
        list(
            pool.map(
                lambda node: image_load.load_into_node(chosen, node, saved=saved, identity=built),
                missing,
            )
        )


def _build(chosen: Engine, name: str, *, base: str, full: str) -> str:
    arguments = [f"{key}={os.environ[key]}" for key in _PASSED_ON if os.environ.get(key)]
    if base != base_image.STANDARD and _on_standard_base(name):
        arguments.append(f"BASE={base}")
    before = chosen.docker("images", "--quiet", full).strip()
    # --force-rm: no container is left of a build that fails or is killed.
    words: list[str | Path] = ["docker", "build", "--force-rm", "--tag", full]
    words += ["--file", _dockerfile(name)]
    words += [word for argument in arguments for word in ("--build-arg", argument)]
    log = cache.log(f"image-{name}")
    with progress.step(_build_step(full), log=log):
        run(
            [*words, *chosen.build_options(), REPOSITORY_ROOT],
            timeout_s=BUILD_TIMEOUT_S,
            env=chosen.env,
            log=log,
        )
    if before and chosen.docker("images", "--quiet", full).strip() != before:
        # Its lower layers stay, as those of the new one; a container may still need the rest.
        with suppress(CommandError):
            chosen.docker("rmi", before)
    return full


def _build_step(full: str) -> Step:
    return Step(f"building the image {full}", 90 if "worker" in full else 30)


def _load_step(full: str) -> Step:
    return Step(f"loading {full} into the nodes", 25 if "worker" in full else 5)


def _dockerfile(name: str) -> Path:
    paths = [path for folder in FOLDERS for path in (REPOSITORY_ROOT / folder).glob("*/Dockerfile")]
    known = {path.parent.name: path for path in paths}
    if name not in known:
        raise ClusterError(f"no image {name!r}; those known are: {', '.join(sorted(known))}")
    return known[name]


def _on_standard_base(name: str) -> bool:
    lines = _dockerfile(name).read_text(encoding="utf-8").splitlines()
    return f"ARG BASE={base_image.STANDARD}" in lines


def engine() -> Engine:
    """The Docker engine that builds them. ClusterError if there is none."""
    chosen = docker_engine.select()
    if chosen is None:
        raise ClusterError("no Docker engine")
    return chosen
