"""The examples, by name: those of a clone, or of the package that is installed."""

from pathlib import Path

from rollcall_local.errors import LocalError

_CLONE, _PACKAGE = Path(__file__).parents[2] / "examples", Path(__file__).with_name("example_files")
_PLACE = _PACKAGE if _PACKAGE.is_dir() else _CLONE


class NoSuchExampleError(LocalError):
    """There is no file and no example of that name; the message lists the examples."""


def find(name: str) -> Path:
    """The file, or folder with a kustomization, of an example; NoSuchExampleError."""
    for path in (_PLACE / f"{name}.yaml", _PLACE / name):
        if path.is_file() or (path / "kustomization.yaml").is_file():
            return path
    raise NoSuchExampleError(
        f"{name}: there is no such file, and no such example; there are "
        f"{', '.join(names()) or 'none in this installation'}"
    )


def names() -> list[str]:
    """Of all examples."""
    found = {path.stem for path in _PLACE.glob("*.yaml")}
    found |= {path.parent.name for path in _PLACE.glob("*/kustomization.yaml")}
    return sorted(found)
