"""A Sphinx extension: links from the docs to other files of the repository.

The site has pages of the folder docs alone. With ROLLCALL_REPOSITORY, such as
https://example.com/rollcall/tree/main, links to other files lead there; without it they are text
that shows the file's path under the pointer. `hack.docs.links` finds files that do not exist.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

BASE = os.environ.get("ROLLCALL_REPOSITORY", "").rstrip("/")


class RepositoryLinks(SphinxTransform):
    """Replaces the links that lead out of the folder docs, before Sphinx looks for their pages."""

    default_priority = 210

    def apply(self) -> None:
        """Change the document in place."""
        for link in list(self._links()):
            path = self._path(link)
            if path is not None:
                link.replace_self(_shown(path, link.children))

    def _links(self) -> Iterator[nodes.Element]:
        for kind in (addnodes.pending_xref, addnodes.download_reference):
            yield from self.document.findall(kind)

    def _path(self, link: nodes.Element) -> str | None:
        """Where it leads, from the repository's root; None if that is within docs."""
        docs = Path(self.env.srcdir)
        target, _, anchor = link["reftarget"].partition("#")
        path = Path(target)
        if path.is_absolute():  # a Markdown file, by its name without the suffix
            path, anchor = path.with_suffix(".md"), link.get("reftargetid") or ""
        elif target.startswith(".."):
            path = Path(self.env.relfn2path(target, self.env.docname)[1])
        if not path.is_absolute() or path.is_relative_to(docs):
            return None
        return f"{path.relative_to(docs.parent)}{'#' if anchor else ''}{anchor}"


def _shown(path: str, children: list[nodes.Node]) -> nodes.Element:
    if BASE:
        return nodes.reference("", "", *children, refuri=f"{BASE}/{path}", internal=False)
    return nodes.abbreviation("", "", *children, explanation=path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls it: adds the transform of links."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
