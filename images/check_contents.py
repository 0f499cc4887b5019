"""Whether all that an image holds can be imported and loaded: a report of what cannot, as JSON.

It is run by the Python of the image, as `python check_contents.py [DRIVER-LIBRARY ...]`, and needs
the standard library alone. Each distribution is tried in a process of its own. A library that lacks
nothing but one of the driver's, which the node brings, counts as loaded as far as can be seen.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, distributions
from pathlib import Path
from subprocess import TimeoutExpired, run

SECONDS = 300.0  # for one distribution
_FIRST = ("torch",)  # whose libraries those of others need, by names that are not on any path


def main() -> None:
    driver = sys.argv[1:]
    if driver[:1] == ["--one"]:
        print(json.dumps(_one(driver[1], driver[2:])))
        return
    began = time.monotonic()
    names = sorted({_name(found) for found in distributions()})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(names, pool.map(lambda name: _child(name, driver), names), strict=True))
    problems = {name: one["problems"] for name, one in found.items() if one["problems"]}
    report = {
        "python": sys.version.split()[0],
        "distributions": len(found),
        "modules": sum(one["modules"] for one in found.values()),
        "libraries": sum(one["libraries"] for one in found.values()),
        "libraries_that_need_the_driver": sum(one["driver"] for one in found.values()),
        "seconds": round(time.monotonic() - began),
        "problems": problems,
    }
    print(json.dumps(report, indent=1))


def _child(name: str, driver: list[str]) -> dict:
    command = [sys.executable, __file__, "--one", name, *driver]
    empty = {"modules": 0, "libraries": 0, "driver": 0}
    try:
        ended = run(command, capture_output=True, timeout=SECONDS, check=False)
    except TimeoutExpired:
        return {**empty, "problems": [f"not done within {SECONDS:.0f} s"]}
    lines = ended.stdout.decode(errors="replace").splitlines()
    if ended.returncode or not lines:
        said = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {**empty, "problems": [f"ended with code {ended.returncode}: {said}"]}
    return json.loads(lines[-1])


def _one(name: str, driver: list[str]) -> dict:
    found = next(each for each in distributions() if _name(each) == name)
    problems: list[str] = []
    modules = _modules(found)
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - it is reported
            problems.append(f"import {module}: {type(error).__name__}: {str(error)[:300]}")
    libraries = [path for path in _files(found) if ".so" in path.name and _is_library(path)]
    waiting = 0
    if libraries:
        for module in _FIRST:
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
    for path in libraries:
        problem = _load(path)
        if any(f"{library}: cannot open" in problem for library in driver):
            waiting += 1
        elif problem:
            problems.append(f"load {problem[:300]}")
    counts = {"modules": len(modules), "libraries": len(libraries), "driver": waiting}
    return {**counts, "problems": problems}


def _load(path: Path) -> str:
    """What keeps a library from being loaded, empty if nothing does. In a fork: it may crash."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
        except OSError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as said:  # noqa: PTH123 - a descriptor
        problem = said.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return problem or (f"{path}: ended with code {code}" if code else "")


def _name(found: Distribution) -> str:
    return found.metadata["Name"].lower().replace("_", "-")


def _files(found: Distribution) -> list[Path]:
    return [Path(str(found.locate_file(file))) for file in found.files or ()]


def _modules(found: Distribution) -> list[str]:
    """What it installs at the top, and all modules of Rollcall."""
    paths = [str(file) for file in found.files or () if str(file).endswith((".py", ".so"))]
    packages = {path.removesuffix("/__init__.py") for path in paths}
    top = {path.split(".")[0] if "/" not in path else "" for path in packages}
    named = {name for name in top if name.isidentifier() and not name.startswith("_")}
    own = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in paths
        if path.startswith(("rollcall_", "rollcall/")) and path.endswith(".py")
    }
    return sorted(named | own)


def _is_library(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


if __name__ == "__main__":
    main()
