"""Copies of the tree, to put faults into."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.mutants.mutant import Mutant


class PatchError(RuntimeError):
    """A patch does not apply; the message is git's."""


def copy_tree(root: Path, to: Path) -> Path:
    """Copy the files that git knows and those that it does not ignore, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in listing.stdout.split("\0"):
        if name and (root / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)
    return to


def apply(mutant: Mutant, tree: Path) -> None:
    """Put the fault into a tree. Raises PatchError."""
    command = ["git", "apply", "--whitespace=nowarn", str(mutant.path)]
    # The copy is no part of a repository.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PatchError(done.stderr.strip())
    for name in mutant.patched:
        # Compiled code goes by the source's time in whole seconds, and its size.
        for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
            compiled.unlink()
