"""What a Dockerfile copies is there, and .dockerignore lets it into the build context."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted([*ROOT.glob("images/*/Dockerfile"), *ROOT.glob("tests/images/*/Dockerfile")])
LET_IN = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]


def copied(dockerfile: Path) -> list[str]:
    """Sources of each COPY from the build context, as the Dockerfile writes them."""
    text = dockerfile.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.startswith("COPY ")]
    flags_and_sources = [words[1:-1] for words in lines if not any("--from" in w for w in words)]
    return [word for words in flags_and_sources for word in words if not word.startswith("--")]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_is_copied_is_in_the_build_context(dockerfile: Path) -> None:
    sources = copied(dockerfile)
    assert sources
    for source in sources:
        assert list(ROOT.glob(source)), f"{source} does not exist"
        assert any(f"{source}/".startswith(f"{each}/") for each in LET_IN), source
