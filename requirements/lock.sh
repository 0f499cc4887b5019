#!/bin/sh
# Writes the hashed requirement files; nothing in them records a registry's address.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
compile() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-annotate --no-header "$@" -o "requirements/$out" pyproject.toml
}
compile dev.txt --extra operator --extra runtime --extra torch --group dev
compile operator.txt --extra operator -c requirements/dev.txt
compile worker.txt --extra runtime -c requirements/dev.txt
printf 'uv\n' | "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-annotate --no-header -c requirements/dev.txt -o requirements/bootstrap.txt -
