"""The options that name manifests, and the environments in place of images."""

import argparse
from pathlib import Path

from rollcall_local import examples


def add_manifest_options(command: argparse.ArgumentParser) -> None:
    """Files, folders, and `--image`."""
    command.add_argument(
        "what",
        nargs="*",
        metavar="FILE",
        help=f"manifests, or the name of an example: {', '.join(examples.names())}",
    )
    command.add_argument(
        "-k",
        "--kustomize",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="folder with a kustomization of resources and generators; may be repeated",
    )
    command.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME=VENV",
        help="the virtual environment that stands for an image (default: this one for each)",
    )


def given_manifests(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Files, and folders with a kustomization; NoSuchExampleError."""
    files: list[Path] = []
    folders: list[Path] = list(options.kustomize)
    for what in options.what:
        path = Path(what) if Path(what).is_file() else examples.find(what)
        (folders if path.is_dir() else files).append(path)
    return files, folders


def given_images(options: argparse.Namespace) -> dict[str, Path]:
    """The Python of each environment, by image name; ValueError."""
    return dict(_image(text) for text in options.image)


def _image(text: str) -> tuple[str, Path]:
    name, equals, folder = text.rpartition("=")
    if not equals or not name:
        raise ValueError(f"--image {text}: give NAME=VENV")
    return name, Path(folder).absolute() / "bin" / "python"
