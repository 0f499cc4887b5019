"""The examples that come with the package, by name."""

from pathlib import Path

_PLACES = (Path(__file__).parent / "examples", Path(__file__).parents[2] / "examples")


class NoSuchExampleError(Exception):
    """There is no file and no example of that name; the message lists the examples."""


def find(name: str) -> Path:
    """The file, or folder with a kustomization, of an example; NoSuchExampleError."""
    for place in _PLACES:
        for path in (place / f"{name}.yaml", place / name):
            if path.is_file() or (path / "kustomization.yaml").is_file():
                return path
    raise NoSuchExampleError(
        f"{name}: there is no such file, and no such example; examples are {', '.join(names())}"
    )


def names() -> list[str]:
    """Of all examples."""
    found = {path.stem for place in _PLACES for path in place.glob("*.yaml")}
    found |= {path.parent.name for place in _PLACES for path in place.glob("*/kustomization.yaml")}
    return sorted(found)
