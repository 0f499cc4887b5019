"""Finds links that lead nowhere: `python -m hack.docs.links`, a part of `make lint`.

Of every Markdown file in git: files, folders and headings that its links name must be there, and
other addresses must be well formed; no network is asked. Of every other text file, and of text
beside links: what reads `docs/<page>.md` or `docs/<page>.md#<heading>` must be there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
NOT_READ = {".jsonl"}  # records of runs

_MARKDOWN = MarkdownIt("commonmark").enable("table").use(anchors_plugin, max_level=6)
_MENTION = re.compile(r"(?<![\w./:-])docs/[\w/.-]+\.md(?:#[\w-]+)?")
_HTML_LINK = re.compile(r"""<(?:a|img)\s[^>]*?(?:href|src)=["']([^"']+)["']""")


def broken_links(root: Path = ROOT) -> list[str]:
    """A line for each link that leads nowhere: `file:line: what is wrong`."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [root / name for name in names.stdout.split("\0") if name]
    return [problem for path in sorted(paths) for problem in _problems(root, path)]


def _problems(root: Path, path: Path) -> Iterator[str]:
    if path.suffix in NOT_READ or not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    name = path.relative_to(root)
    if path.suffix == ".md":
        for line, target in _links(text):
            problem = _problem(root, path, target)
            if problem:
                yield f"{name}:{line}: {target}: {problem}"
        for line, label in _labels_without_a_link(text):
            yield f"{name}:{line}: {label}: no link has this label"
    for line, text_of_line in enumerate(text.splitlines(), 1):
        for found in _MENTION.finditer(text_of_line):
            problem = _problem(root, root / "README.md", found[0])
            if problem:
                yield f"{name}:{line}: {found[0]}: {problem}"


def _problem(root: Path, path: Path, target: str) -> str:
    """What is wrong with a link in the file `path`; empty if nothing is."""
    address = urlsplit(target)
    if address.scheme:
        usable = address.scheme in {"http", "https"} and address.netloc and " " not in target
        return "" if usable or address.scheme == "mailto" else "not an address"
    found = (path.parent / unquote(address.path)).resolve() if address.path else path
    if not found.is_relative_to(root.resolve()):
        return "leads out of the repository"
    if not found.exists():
        return "there is no such file"
    if address.fragment and address.fragment not in _headings(found):
        return f"{found.name} has no such heading"
    return ""


def _links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of each link and picture."""
    for line, token in _tokens(text):
        target = token.attrGet("href") or token.attrGet("src")
        if target and token.type in {"link_open", "image"}:
            yield line, str(target)
        if token.type in {"html_block", "html_inline"}:
            yield from ((line, found) for found in _HTML_LINK.findall(token.content))


def _labels_without_a_link(text: str) -> Iterator[tuple[int, str]]:
    """`[words][label]` stays text where the label is defined nowhere."""
    for line, token in _tokens(text):
        if token.type == "text":
            yield from ((line, found) for found in re.findall(r"\]\[[^\]]+\]", token.content))


def _tokens(text: str) -> Iterator[tuple[int, Token]]:
    """All tokens, each with the number of the line at which its block begins."""
    line = 1
    for block in _MARKDOWN.parse(text):
        line = block.map[0] + 1 if block.map else line
        yield from ((line, token) for token in (block, *(block.children or ())))


@cache
def _headings(path: Path) -> frozenset[str]:
    """The anchors of a Markdown file, as GitHub and the site name them."""
    if path.suffix != ".md":
        return frozenset()
    text = path.read_text(encoding="utf-8")
    return frozenset(
        str(t.attrGet("id")) for t in _MARKDOWN.parse(text) if t.type == "heading_open"
    )


def main() -> int:
    """Prints what is wrong; returns 1 if anything is."""
    problems = broken_links()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
