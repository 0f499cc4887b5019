"""A link in the repository leads somewhere, and the check of that finds one that does not."""

import subprocess
from pathlib import Path

import pytest

from hack.docs.links import broken_links

HERE = "docs"  # beside a page's name it would be a mention of a page of this repository
PAGE = """\
# Title

## Two `words`, and more

## Two words

[a file](other.md) and [a heading](other.md#two-words), [here](#two-words-and-more)
![a picture](pictures/one.svg) [outside](https://example.com/x#y) [a folder](pictures)
[by label][label]

```
[code](is-no-link.md)
```

[label]: other.md#two-words
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Of two pages and a picture, all of whose links lead somewhere."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    for name in ("page", "other"):
        (tmp_path / "docs" / f"{name}.md").write_text(PAGE)
    (tmp_path / "docs" / "pictures" / "one.svg").write_text("<svg/>")
    (tmp_path / "code.py").write_text(f"# {HERE}/page.md#two-words says why\n")
    return tmp_path


def test_every_link_of_the_repository_leads_somewhere() -> None:
    assert broken_links() == []


def test_links_to_files_folders_headings_and_addresses_are_fine(repository: Path) -> None:
    assert broken_links(repository) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[x](gone.md)", "gone.md: there is no such file"),
        ("[x](other.md#gone)", "other.md#gone: other.md has no such heading"),
        ("[x](#gone)", "#gone: page.md has no such heading"),
        ("![x](pictures/two.svg)", "pictures/two.svg: there is no such file"),
        ("| a |\n|---|\n| [x](gone.md) |", "gone.md: there is no such file"),
        ("[x](../../other)", "../../other: leads out of the repository"),
        ("[x](htps://example.com)", "htps://example.com: not an address"),
        ("[x](https:/example.com)", "https:/example.com: not an address"),
        ('<img src="gone.png">', "gone.png: there is no such file"),
        ("[x][nowhere]", "][nowhere]: no link has this label"),
        (f"see {HERE}/gone.md", "gone.md: there is no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_named_with_its_place(
    repository: Path, text: str, says: str
) -> None:
    (repository / "docs" / "page.md").write_text(f"# Title\n\n{text}\n")
    (repository / "code.py").unlink()
    (problem,) = broken_links(repository)
    assert problem.startswith(f"{HERE}/page.md:")
    assert problem.endswith(says)


def test_a_page_that_code_names_must_have_the_heading(repository: Path) -> None:
    (repository / "code.py").write_text(f'"""A module.\n\nSee {HERE}/page.md#gone.\n"""\n')
    (problem,) = broken_links(repository)
    assert problem == f"code.py:3: {HERE}/page.md#gone: page.md has no such heading"
