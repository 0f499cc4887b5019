"""Good manifests, each with a few random changes: the same for a seed, as long as they are."""

import copy
import random
from pathlib import Path
from typing import Any

import yaml

from rollcall_operator.api import labels
from tests.apiserver.bad_manifests.manifests import (
    FRONT,
    OWN_REFERENCE,
    Manifest,
    changed,
    external_job,
    job,
    pool,
    supervised_job,
)

_EXAMPLES = Path(__file__).parents[2] / "examples"
_KINDS = {"RLJob", "RolloutPool"}

_STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    0.5,
    "",
    " ",
    "\n",
    "\x00",
    "0",
    "-1",
    "1e9",
    "1e400",
    "NaN",
    "3Gi",
    "true",
    "builtin:nothing",
    "no.such:module",
    "../../etc/passwd",
    "$(HOME)",
    "{{ .Values }}",
    "Ünicode ✓",
    "x" * 64,
    "x" * 300,
    "x" * 70_000,
    "https://[::1",
    "s3://",
    [],
    [None],
    ["x"] * 1_000,
    {},
    {"": ""},
    {"a": {"b": {"c": []}}},
)
_ANNOTATIONS = (
    labels.JOB,
    labels.JOB_REPLICAS,
    labels.WORKER_CONTAINER,
    labels.RESTART_TRAINER,
    labels.ADOPT_CHILDREN,
    "rollcall.dev/unknown",
)
_NAMES = ("{}",) * 20 + ("{}.a.b", "{}-" + "x" * 38, "{}-" + "x" * 200, "{}--b")

_Place = tuple[dict[str, Any] | list[Any], Any]
"""A map or list of a manifest, and a key or index of it."""


def manifest(seed: int) -> Manifest:
    """The mutated RLJob or RolloutPool of this seed; its name contains it, so none is alike."""
    chance = random.Random(seed)
    made = copy.deepcopy(chance.choice(_GOOD))
    made["metadata"] = {"name": chance.choice(_NAMES).format(f"m{seed}")}
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        _mutate(made, chance)
    return made


def _mutate(made: Manifest, chance: random.Random) -> None:
    places = _places(made["spec"]) if isinstance(made.get("spec"), dict) else []
    if not places or chance.random() < 0.08:
        key = chance.choice(_ANNOTATIONS)
        kind = chance.choice(("annotations", "labels"))
        made["metadata"].setdefault(kind, {})[key] = chance.choice(_STRANGE)
        return
    where, key = chance.choice(places)
    match chance.choice(("replace", "replace", "replace", "delete", "repeat", "add", "swap")):
        case "replace":
            where[key] = copy.deepcopy(chance.choice(_STRANGE))
        case "delete":
            del where[key]
        case "repeat" if isinstance(where, list):
            where.append(copy.deepcopy(where[key]))
        case "add" if isinstance(where, dict):
            where[chance.choice(("extra", "", "replicas"))] = copy.deepcopy(chance.choice(_STRANGE))
        case _:
            other, name = chance.choice(places)
            where[key] = copy.deepcopy(other[name])


def _places(value: Any) -> list[_Place]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [place for key, inner in items for place in ((value, key), *_places(inner))]


def _examples() -> list[Manifest]:
    files = sorted(_EXAMPLES.rglob("*.yaml"))
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]
    return [each for each in documents if each.get("kind") in _KINDS]


_GOOD = (
    *_examples(),
    job(),
    changed(job(), OWN_REFERENCE),
    changed(job(), FRONT),
    supervised_job(),
    external_job(),
    pool(),
)
