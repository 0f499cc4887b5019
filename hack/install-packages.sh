#!/bin/sh
# Installs Debian packages that the Makefile needs, or says what to install.
set -eu
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing on this machine: $*. Install it (Debian, Ubuntu: sudo apt-get install $*) and run make again." >&2
    exit 1
fi
echo "missing on this machine, installing: $*" >&2
wait_s=${APT_LOCK_WAIT_S:-600}
deadline=$(($(date +%s) + wait_s))
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# Another package manager may be at work. DPkg::Lock::Timeout waits for dpkg's lock alone, and not
# for those of the lists and of the archives.
apt() {
    waits=
    until LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq -o "DPkg::Lock::Timeout=$wait_s" "$@" \
        >/dev/null 2>"$said"; do
        if ! grep -q 'Could not get lock' "$said"; then
            cat "$said" >&2
            exit 1
        fi
        if [ "$(date +%s)" -ge "$deadline" ]; then
            cat "$said" >&2
            echo "another process has held apt's lock for $wait_s s: wait until it ends, or stop it, and run make again." >&2
            exit 1
        fi
        test -n "$waits" || echo "another process holds apt's lock; waiting for it, for $wait_s s at most" >&2
        waits=yes
        sleep 5
    done
}
apt update
apt install -y --no-install-recommends "$@"
