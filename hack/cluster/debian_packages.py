"""Debian packages and root file systems, from the mirrors that this machine's apt uses."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, progress
from hack.cluster.errors import ClusterError
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

APT = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")
CODENAMES = ("bookworm", "trixie", "forky", "sid")
_APT_OPTION = re.compile(
    r'^(Acquire::(?:https?::\S+|ftp::\S+|Retries|Check-Valid-Until|Check-Date)) "(.+)";$',
    re.MULTILINE,
)
_POCKETS = ("", "-updates", "-security")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One archive of a machine's apt configuration.

    Attributes:
        uri: the archive's address.
        suites: releases and pockets taken from it.
        components: such as `main`.
        options: the options of the one-line style, such as `signed-by=/path`.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[str, ...] = ()


def parse_deb822(text: str) -> list[Source]:
    """The binary archives in a `.sources` file; disabled stanzas are left out."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0].isspace():
                fields[name] += "\n" + line.strip()
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        options = []
        if fields.get("signed-by", "").startswith("/") and "\n" not in fields["signed-by"]:
            options.append(f"signed-by={fields['signed-by']}")
        if fields.get("trusted", "").lower() == "yes":
            options.append("trusted=yes")
        found += [
            Source(
                uri=uri,
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                options=tuple(options),
            )
            for uri in fields.get("uris", "").split()
        ]
    return found


def parse_one_line(text: str) -> list[Source]:
    """The binary archives in a `sources.list` file."""
    found = []
    for line in text.splitlines():
        match = re.match(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
        if match:
            options = [
                option
                for option in (match[1] or "").split()
                if option.startswith(("signed-by=", "trusted="))
            ]
            found.append(
                Source(
                    uri=match[2],
                    suites=(match[3],),
                    components=tuple(match[4].split()),
                    options=tuple(options),
                )
            )
    return found


def retarget(sources: Iterable[Source], *, host: str, suite: str) -> list[str]:
    """One-line sources of release `suite`, from those that give this machine its release `host`.

    Only the distribution's own archives are taken: those with `host` or one of its usual pockets.
    """
    lines = []
    for source in sources:
        if "main" not in source.components:
            continue
        option = f"[{' '.join(source.options)}] " if source.options else ""
        for pocket in _POCKETS:
            line = f"deb {option}{source.uri} {suite}{pocket} main"
            if f"{host}{pocket}" in source.suites and line not in lines:
                lines.append(line)
    return lines


def host_release() -> tuple[str, str]:
    """The machine's distribution and release, such as `("debian", "bookworm")`."""
    fields = dict(line.split("=", 1) for line in OS_RELEASE.read_text().splitlines() if "=" in line)
    return fields.get("ID", "").strip('"'), fields.get("VERSION_CODENAME", "").strip('"')


def sources(suite: str) -> list[str]:
    """One-line sources of a Debian release, derived from this machine's own mirrors.

    Raises:
        ClusterError: this machine is no Debian, or its apt names no archive of its release.
    """
    distribution, host = host_release()
    if distribution != "debian" or host not in CODENAMES:
        raise ClusterError(
            f"without a Docker registry the images are made from Debian packages, and this is "
            f"{distribution or 'an unknown system'} {host}: use Debian 12 or newer, or a Docker "
            f"engine that can pull images"
        )
    known: list[Source] = []
    for path in sorted([APT / "sources.list", *APT.glob("sources.list.d/*")]):
        if path.suffix == ".sources":
            known += parse_deb822(path.read_text())
        elif path.suffix == ".list" and path.exists():
            known += parse_one_line(path.read_text())
    lines = retarget(known, host=host, suite=suite)
    if not lines:
        raise ClusterError(f"no archive of {host} main in {APT}/sources.list or sources.list.d")
    return lines


def apt_options() -> list[str]:
    """The machine's proxies and other ways to reach archives, as `Name "value";` lines."""
    said = run(["apt-config", "dump", "Acquire"], timeout_s=30)
    return [f'{name} "{value}";' for name, value in _APT_OPTION.findall(said)]


def unpack(packages: Sequence[str], *, suite: str, target: Path) -> None:
    """Unpacks packages, without what they depend on, under `target`; nothing is installed.

    Args:
        packages: their names.
        suite: the release to take them from; the machine's own release works on any Debian or
            Ubuntu.
        target: a folder, made if absent.
    """
    with cache.scratch() as folder:
        for name in ("state/lists/partial", "cache/archives/partial", "debs"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        options = [
            f"Dir::State={folder}/state",
            f"Dir::State::status={folder}/status",
            f"Dir::Cache={folder}/cache",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
        ]
        if suite != host_release()[1]:
            (folder / "sources.list").write_text("\n".join(sources(suite)) + "\n")
            options += [
                f"Dir::Etc::sourcelist={folder}/sources.list",
                "Dir::Etc::sourceparts=/dev/null",
                "Dir::Etc::preferencesparts=/dev/null",
                "Dir::Etc::preferences=/dev/null",
            ]
        apt = ["apt-get", *(word for option in options for word in ("-o", option))]
        run([*apt, "update"], timeout_s=300)
        run([*apt, "download", *packages], timeout_s=600, cwd=folder / "debs")
        target.mkdir(parents=True, exist_ok=True)
        for deb in sorted((folder / "debs").glob("*.deb")):
            run(["dpkg", "-x", deb, target], timeout_s=120)


def root_step(suite: str, *, name: str) -> Step:
    """What making such an archive shows."""
    return Step(f"unpacking Debian {suite} packages for {name}", 60)


def root_file_system(
    suite: str, packages: Sequence[str], *, name: str, variant: str = "minbase"
) -> Path:
    """A tar archive of a Debian with some packages, from the cache or made now.

    Args:
        suite: the release.
        packages: what it holds on top of the variant.
        name: what to call it in the cache.
        variant: mmdebstrap's: `minbase`, or `extract` for the packages alone, not set up.
    """
    key = cache.digest(suite, variant, *packages, architecture())
    archive = cache.root() / "rootfs" / f"{name}-{suite}-{key}.tar"
    with cache.lock(f"rootfs-{name}"):
        if archive.exists():
            return archive
        if os.geteuid() != 0:
            raise ClusterError(
                "no Docker registry answers, and making images from Debian packages takes root: "
                "run this as root, or give Docker access to a registry"
            )
        log = cache.log(f"rootfs-{name}")
        with progress.step(root_step(suite, name=name), log=log), cache.fresh(archive) as made:
            programs = program_folder("mmdebstrap")
            words: list[str | Path] = [
                programs / "mmdebstrap",
                f"--variant={variant}",
                "--mode=root",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
            ]
            words += [f"--aptopt={option.rstrip(';')}" for option in apt_options()]
            if packages:
                words.append(f"--include={','.join(packages)}")
            run(
                [*words, suite, made, *sources(suite)],
                timeout_s=900,
                env={
                    "TMPDIR": str(made.parent),
                    # mmdebstrap runs programs of its own package, such as mmtarfilter, by name.
                    "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                },
                log=log,
            )
        return archive


def architecture() -> str:
    """Debian's name for this machine's architecture, such as `amd64`."""
    return run(["dpkg", "--print-architecture"], timeout_s=30).strip()


def program_folder(package: str) -> Path:
    """The folder of the programs of a package that is called as one of them: the machine's.

    If the machine has none the package is unpacked, without what it depends on; nothing is
    installed.
    """
    found = shutil.which(package)
    if found:
        return Path(found).parent
    home = cache.root() / "host-tools" / package
    with cache.lock(package):
        if not home.exists():
            with cache.fresh(home) as made:
                unpack([package], suite=host_release()[1], target=made)
    return home / "usr" / "bin"
