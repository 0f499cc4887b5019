"""Files of a worker are found below its root, as the worker itself sees them."""

from typing import TYPE_CHECKING

from hack.bench.recovery.pod_processes import as_seen_below

if TYPE_CHECKING:
    from pathlib import Path


def test_links_of_an_image_lead_into_its_own_root(tmp_path: "Path") -> None:
    root = tmp_path / "root"
    (root / "run/rollcall").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "run/rollcall/keys").symlink_to("..data/keys")
    found = as_seen_below(root, "/var/run/rollcall/keys")
    assert found == root / "run/rollcall/keys", "a link that is not absolute needs no care"
    (root / "lock").symlink_to("/var/run")
    assert as_seen_below(root, "/lock/rollcall") == root / "run/rollcall"
