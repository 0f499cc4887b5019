"""What a command imports: a user waits for that before anything else."""

import subprocess
import sys

import pytest

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


def imported(*words: str) -> set[str]:
    """The modules of a process that carried out a command, which ended with 1."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    code, *modules = done.stdout.splitlines()[-1].split()
    assert code == "1", done.stderr
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
