#!/bin/sh
# Installs Debian packages that the Makefile needs, or says what to install.
set -eu
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing on this machine: $*. Install it (Debian, Ubuntu: sudo apt-get install $*) and run make again." >&2
    exit 1
fi
echo "missing on this machine, installing: $*" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
