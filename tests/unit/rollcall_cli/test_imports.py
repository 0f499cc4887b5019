"""What a command imports: a user waits for that before anything else."""

import subprocess
import sys

import pytest

CHECK = """
import sys
from rollcall_local.check_command import main
print(main(sys.argv[1:]), *sys.modules)
"""
HEAVY = {
    "cryptography",
    "jinja2",
    "kopf",
    "kubernetes.client",  # the blocking client
    "kubernetes.aio.dynamic",
    "matplotlib",
    "numpy",
    "requests",
    "rollcall_operator.plan.job",
    "rollcall_runtime",
    "torch",
    "transformers",
}
PROGRAM = """
import sys
from rollcall_cli.main import main
code = main(sys.argv[1:])
print(code, *sys.modules)
"""


def imported(*words: str, program: str = PROGRAM, code: int = 1) -> set[str]:
    """The modules of a process that carried out a command, which ended with `code`."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    found, *modules = done.stdout.splitlines()[-1].split()
    assert int(found) == code, done.stderr
    return set(modules)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "reverse", "--kubeconfig", "/nowhere"],
        ["scale", "reverse-cpu", "2", "--kubeconfig", "/nowhere"],
        ["local", "status", "reverse"],
    ],
    ids=" ".join,
)
def test_a_command_imports_nothing_heavy(
    words: list[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCALL_LOCAL_HOME", str(tmp_path_factory.mktemp("runs")))
    found = imported(*words)
    assert "rollcall_cli.main" in found
    assert not found & HEAVY
    assert not {name for name in found if name.startswith("kubernetes.aio.client.models.")}


def test_the_check_of_manifests_imports_neither_torch_nor_a_client() -> None:
    found = imported("reverse", "--manifests-only", program=CHECK, code=0)
    assert "rollcall_operator.plan.manifest_check" in found
    assert not found & {*HEAVY, "aiohttp", "kubernetes", "rich"}
