"""Writes the project's console scripts into an image, from pyproject.toml.

Usage: console_scripts.py PYPROJECT CODE INTERPRETER TARGET

CODE is the folder with the packages that this image has: scripts of others are left out.
"""  # noqa: INP001

import sys
import tomllib
from pathlib import Path

TEMPLATE = """#!{interpreter}
import sys

from {module} import {function}

sys.exit({function}())
"""


def main() -> None:
    """Writes one executable file for each script whose module is in the image."""
    pyproject, code, interpreter, target = sys.argv[1:]
    scripts = tomllib.loads(Path(pyproject).read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, function = entry.split(":")
        if Path(code, module.replace(".", "/")).with_suffix(".py").exists():
            path = Path(target, name)
            path.write_text(
                TEMPLATE.format(interpreter=interpreter, module=module, function=function)
            )
            path.chmod(0o755)


main()
# x
