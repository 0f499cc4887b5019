"""The pictures of imports in docs/architecture.md, made of the code: `--write` or `--check`.

An arrow that follows from a chain of others is left out: a package may import what its arrows lead
to, however far.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN = "<!-- imports: written by python -m hack.docs.import_graph -->"
END = "<!-- end of imports -->"
CLI, OPERATOR, PROTOCOL = "rollcall_cli", "rollcall_operator", "rollcall_protocol"
RUNTIME, PLUGINS = "rollcall_runtime", "rollcall_plugins"
LOCAL = "rollcall_local"

# `wire` imports these files, and others of the protocol import `wire`.
BELOW_WIRE = ("pod_contract", "sampling_config")
Edges = set[tuple[str, str]]


def box_of(module: str) -> str:
    """The box of a module: its folder; of files beside folders one for all, and for BELOW_WIRE."""
    root, _, rest = module.partition(".")
    folder = rest.partition(".")[0]
    if root == CLI or (root in {OPERATOR, LOCAL} and folder not in _folders(root)):
        return root
    if root == PROTOCOL and folder not in _folders(root):
        return f"{root}.{' and '.join(BELOW_WIRE) if folder in BELOW_WIRE else 'settings'}"
    return module if not folder else f"{root}.{folder}"


def _folders(root: str) -> set[str]:
    found = __import__(root).__path__
    return {each.parent.name for place in found for each in Path(place).glob("*/__init__.py")}


def imports(roots: Iterable[str]) -> Edges:
    """Which box imports which other one, over all modules of the `roots`."""
    graph = grimp.build_graph(*roots, cache_dir=None)
    edges = {
        (box_of(module), box_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    versions = {PROTOCOL, RUNTIME, PLUGINS}  # all that their __init__.py hold
    return {(a, b) for a, b in edges if a != b and b not in versions}


def without_shortcuts(edges: Edges) -> Edges:
    """The edges that no longer path replaces; ValueError if `edges` have a circle."""
    circle = next((edge for edge in sorted(edges) if _reaches(edges, edge[1], edge[0])), None)
    if circle:
        raise ValueError(f"{circle[0]} and {circle[1]} import each other")
    return {
        (a, b)
        for a, b in edges
        if not any(_reaches(edges, c, b) for a2, c in edges if a2 == a and c != b)
    }


def _reaches(edges: Edges, start: str, end: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        if here == end:
            return True
        new = {b for a, b in edges if a == here} - seen
        seen |= new
        waiting.extend(new)
    return False


def diagram(edges: Edges) -> str:
    """Mermaid: a frame for each package, an arrow from who imports to what is imported."""
    lines = ["```mermaid", "flowchart TB"]
    boxes = sorted({box for edge in edges for box in edge})
    for root in sorted({box.partition(".")[0] for box in boxes}):
        own = [box for box in boxes if box.partition(".")[0] == root]
        lines += [f"  subgraph {root}"]
        lines += [f'    {_id(box)}["{box.partition(".")[2] or "its files"}"]' for box in own]
        lines += ["  end"]
    lines += [f"  {_id(a)} --> {_id(b)}" for a, b in sorted(edges)]
    return "\n".join([*lines, "```"])


def _id(box: str) -> str:
    return box.replace(".", "_").replace(" ", "_") + ("" if "." in box else "_files")


def section() -> str:
    """The pictures: the operator's side, the workers', and a run on one machine."""
    pictures = ((CLI, OPERATOR, PROTOCOL), (PLUGINS, RUNTIME, PROTOCOL), (LOCAL, CLI, OPERATOR))
    diagrams = (diagram(without_shortcuts(imports(roots))) for roots in pictures)
    return "\n\n".join([BEGIN, *diagrams, END])


def main() -> int:
    """Writes or checks the pictures; returns 1 if they are out of date."""
    options = argparse.ArgumentParser(description=__doc__)
    how = options.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="write them")
    how.add_argument("--check", action="store_true", help="fail if they would change")
    given = options.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    head, _, rest = before.partition(BEGIN)
    after = head + section() + rest.partition(END)[2]
    if given.write:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print(f"{PAGE.name} is out of date: run {__package__}.import_graph --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
