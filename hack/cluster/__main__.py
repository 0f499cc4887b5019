"""The commands of the local cluster: progress on standard error, results on standard output."""

from __future__ import annotations

import argparse
import shlex
import sys

from hack.cluster import cache, go_build, images, installation, lifecycle, progress, sbom
from hack.cluster.errors import ClusterError, explain


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except (ClusterError, OSError) as error:
        print(explain(error, log=cache.keep_output(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "up":
            lifecycle.up()
        case "down":
            lifecycle.down()
        case "install":
            installation.ensure()
        case "kubeconfig":
            print(lifecycle.kubeconfig())
        case "env":
            for name, value in lifecycle.environment().items():
                print(f"export {name}={shlex.quote(value)}")
        case "bin":
            for name in arguments.name:
                print(lifecycle.program(name))
        case "images" | "sbom" | "push":
            _run_on_images(arguments)
        case "load":
            images.load(arguments.image)
        case "image-id":
            print(images.identity(arguments.image))


def _run_on_images(arguments: argparse.Namespace) -> None:
    names, prefix, tag = arguments.name or images.EVERY, arguments.prefix, arguments.tag
    match arguments.command:
        case "images":
            with progress.plan(images.steps(names, prefix=prefix, tag=tag)):
                built = images.build(names, prefix=prefix, tag=tag)
            print("\n".join(built))
        case "sbom":
            with progress.plan(sbom.steps(names, prefix=prefix, tag=tag)):
                written = sbom.write(names, prefix=prefix, tag=tag)
            print("\n".join(map(str, written)))
        case "push":
            images.push(names, prefix=prefix, tag=tag)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="make the cluster run")
    commands.add_parser("down", help="remove it and every trace of it but the cache")
    commands.add_parser("install", help="make it run, with the images and the operator in it")
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig")
    commands.add_parser("env", help="print shell commands that point docker and kubectl at it")
    program = commands.add_parser("bin", help="print a program's path, building it if absent")
    program.add_argument("name", nargs="+", choices=go_build.known())
    for command, text in (
        ("images", "build the project's images and print their names"),
        ("sbom", "write into results/sbom what is in them (CycloneDX), and print the files"),
        ("push", "push them to a registry"),
    ):
        sub = commands.add_parser(command, help=text)
        sub.add_argument("--prefix", default=images.PREFIX, help="what their names begin with")
        sub.add_argument("--tag", default=images.TAG)
        sub.add_argument("name", nargs="*", help=f"some of: {', '.join(images.EVERY)}")
    identity = commands.add_parser("image-id", help="print the id of a built image")
    identity.add_argument("image")
    load = commands.add_parser("load", help="put images into the cluster's nodes")
    load.add_argument("image", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(main())
