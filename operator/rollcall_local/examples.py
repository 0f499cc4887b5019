"""The examples of a clone, by name."""

from pathlib import Path

from rollcall_local.errors import LocalError

_PLACE = Path(__file__).parents[2] / "examples"


class NoSuchExampleError(LocalError):
    """There is no file and no example of that name; the message lists the examples."""


def find(name: str) -> Path:
    """The file, or folder with a kustomization, of an example; NoSuchExampleError."""
    for path in (_PLACE / f"{name}.yaml", _PLACE / name):
        if path.is_file() or (path / "kustomization.yaml").is_file():
            return path
    raise NoSuchExampleError(
        f"{name}: there is no such file, and no such example; those of a clone are "
        f"{', '.join(names()) or 'not here'}"
    )


def names() -> list[str]:
    """Of all examples."""
    found = {path.stem for path in _PLACE.glob("*.yaml")}
    found |= {path.parent.name for path in _PLACE.glob("*/kustomization.yaml")}
    return sorted(found)
