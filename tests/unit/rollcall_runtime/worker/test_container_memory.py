"""How much memory a container has left, by its control group."""

from pathlib import Path

from rollcall_runtime.worker.container_memory import free_memory


def cgroup(folder: Path, *, limit: str, used: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text("anon 700\ninactive_file 100\nactive_file 50\n")
    return folder


def test_it_is_what_the_limit_leaves_with_files_that_the_kernel_would_drop(tmp_path: Path) -> None:
    assert free_memory(cgroup(tmp_path, limit="1000", used=800)) == 300
    assert free_memory(cgroup(tmp_path, limit="500", used=800)) == 0


def test_without_a_limit_it_is_not_known(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    assert free_memory(cgroup(tmp_path, limit="max", used=800)) is None
