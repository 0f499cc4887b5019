"""A page of the site needs no network, and a diagram is a picture in it."""

from pathlib import Path

import pytest
from sphinx.cmd.build import build_main

from hack.docs import __main__ as site

LIBRARIES = pytest.mark.filterwarnings("ignore:.*deprecated")  # MyST-Parser of Sphinx
SETTINGS = Path(site.__file__).parent
DIAGRAM = "```mermaid\nflowchart LR\n  trainer --> rollout\n```\n"


def build(folder: Path, page: str) -> tuple[int, str]:
    """The exit status, and the page as HTML."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# Page\n\n{page}")
    options = ["-b", "html", "-q", "-W", "-d", str(folder / "parsed"), "-c", str(SETTINGS)]
    status = build_main([*options, str(folder / "docs"), str(folder / "site")])
    found = folder / "site" / "index.html"
    return status, found.read_text() if found.exists() else ""


@LIBRARIES
def test_a_diagram_is_a_picture_and_nothing_comes_from_a_network(tmp_path: Path) -> None:
    status, html = build(tmp_path, f"{DIAGRAM}\n[examples](../examples)\n")
    assert status == 0
    assert "trainer" in html
    assert html.count("<svg id=") == 1
    assert '<abbr title="examples">' in html
    assert site.network_loads(tmp_path / "site") == []


@LIBRARIES
@pytest.mark.parametrize(
    "page", ["```mermaid\nflowchart LR\n  a --\n```\n", "[x](gone.md)\n", "[x](#gone)\n"]
)
def test_a_broken_diagram_or_link_ends_the_build(
    tmp_path: Path, page: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _ = build(tmp_path, page)
    assert status != 0
    assert "index.md" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script async src="https://example.com/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//example.com/x.css">'),
        ("a.html", "<style>@import 'https://example.com/x.css'</style>"),
        ("a.css", "src: url(https://example.com/font.woff2)"),
    ],
)
def test_what_a_page_would_load_from_a_network_is_found(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert len(site.network_loads(tmp_path)) == 1
