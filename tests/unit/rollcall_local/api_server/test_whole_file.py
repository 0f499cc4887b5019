"""Files are whole whenever a run is killed, and this user alone can read them."""

from pathlib import Path

import pytest

from rollcall_local.api_server.whole_file import write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_whole(file, b"first")
    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "nowhere" / "f", b"second")
    file.chmod(0o400)
    write_whole(file, b"second")
    assert file.read_bytes() == b"second"
    assert file.stat().st_mode & 0o777 == 0o600
