"""Ray's node of this pod: `ray_node.py trainer COMMAND...` or `ray_node.py rollout`.

Ray's processes, and verl's actors in them, inherit the pod's variables from here.
"""

import os
import socket
import subprocess
import sys

PORT = 6379
# As many CPUs as verl's actors ask for; verl places them by GPUs, which Ray finds by itself, and
# by the pod's kind.
CPUS, GPUS = os.environ.get("RAY_CPUS"), os.environ.get("RAY_GPUS")

if GPUS:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # there need not be any

ADDRESS = os.environ["ROLLCALL_POD_IP"]
kind, *command = sys.argv[1:]
words = [
    "ray",
    "start",
    f"--node-ip-address={ADDRESS}",
    f'--resources={{"rollcall_{kind}": 1}}',
    *([f"--num-cpus={CPUS}"] if CPUS else []),
    *([f"--num-gpus={GPUS}"] if GPUS else []),
]
if kind == "trainer":
    short = f"--temp-dir=/tmp/ray-{os.getpid()}"  # as paths of sockets have to be
    words += ["--head", f"--port={PORT}", short]
    subprocess.run([*words, "--include-dashboard=false"], check=True)
    os.environ["RAY_ADDRESS"] = f"{ADDRESS}:{PORT}"
    os.execvp(command[0], command)  # noqa: S606
head = socket.gethostbyname(os.environ["ROLLCALL_COORDINATOR"])  # the trainer's first pod
os.execvp(words[0], [*words, f"--address={head}:{PORT}", "--block"])  # noqa: S606
