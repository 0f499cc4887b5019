"""A Sphinx extension: a Mermaid diagram becomes a picture when the site is built.

A browser needs no script for it, and the build needs neither a browser nor a network.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import mermaidx
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sphinx.application import Sphinx

STYLE = (
    "background: #fff; padding: .5rem; overflow-x: auto"  # its lines are dark in dark themes too
)


class MermaidPicture(SphinxDirective):
    """What stands in a fence called `mermaid`, as SVG within the page."""

    has_content = True

    def run(self) -> Sequence[nodes.Node]:
        """The picture. A diagram that Mermaid cannot read is an error of the build, at its line."""
        source = "\n".join(self.content)
        try:
            picture = str(mermaidx.render(source).svg())
        except RuntimeError as error:
            raise self.severe(str(error)) from error
        name = "m" + hashlib.sha256(source.encode()).hexdigest()[:12]  # pages may have several
        picture = picture.replace("my-svg", name)
        return [nodes.raw("", f'<div style="{STYLE}">{picture}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls it: adds the directive `mermaid`."""
    app.add_directive("mermaid", MermaidPicture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
