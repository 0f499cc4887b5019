"""python -m tests.golden [--check]: write the golden files, or say which are out of date."""

import argparse
import sys

from tests.golden.rendered_outputs import FOLDER, rendered


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if any differs")
    check = parser.parse_args().check
    stale = []
    for name, text in rendered().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'written'}: {', '.join(stale)}")
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main())
