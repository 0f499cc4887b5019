"""Copies of the tree, to put faults into."""

import shutil
import subprocess
from pathlib import Path

from tests.mutants.mutant import Mutant, edited


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
    """Put the fault into a tree. Raises EditError."""
    for name, text in edited(mutant, tree).items():
        (tree / name).write_text(text, encoding="utf-8")
        # Compiled code goes by the source's time in whole seconds, and its size.
        for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
            compiled.unlink()
