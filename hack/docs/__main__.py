"""`make docs`: the pages of the folder docs as a site that needs no network, into results/docs."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
SITE = ROOT / "results" / "docs"
_LOADS = re.compile(r"""<(?:script|img|iframe|source)\s[^>]*src=["'](?:https?:)?//[^"']*""")
_STYLES = re.compile(r"""<link\s[^>]*href=["'](?:https?:)?//[^"']*""")
_IN_STYLES = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')]*""")


def network_loads(site: Path) -> list[str]:
    """A line for each script, picture, font or style that a page would load from a network."""
    patterns = {".html": (_LOADS, _STYLES, _IN_STYLES), ".css": (_IN_STYLES,)}
    return [
        f"{path.relative_to(site)}: {found[0]}"
        for path in sorted(site.rglob("*"))
        for pattern in patterns.get(path.suffix, ())
        for found in pattern.finditer(path.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Builds the site anew and prints where it is; returns 1 if anything is wrong with it."""
    shutil.rmtree(SITE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as parsed:
        options = ["-b", "html", "--quiet", "--fail-on-warning", "--keep-going", "-d", parsed]
        settings = ["-c", str(Path(__file__).parent)]
        status = build_main([*options, *settings, str(ROOT / "docs"), str(SITE)])
    problems = [] if status else network_loads(SITE)
    for problem in problems:
        print(f"a page needs the network: {problem}", file=sys.stderr)
    if status or problems:
        return 1
    print(SITE / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
