"""Sphinx's settings for the site of the folder docs."""

project = "Rollcall"
extensions = ["myst_parser", "hack.docs.mermaid_pictures", "hack.docs.repository_links"]
source_suffix = {".md": "markdown"}
nitpicky = True
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = "Rollcall"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
