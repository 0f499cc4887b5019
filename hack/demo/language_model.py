"""`make demo-llm`: SmolLM2 learns on vLLM rollouts, of which one comes and one is killed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hack.cluster import installation
from hack.cluster.examples import ROOT, example
from hack.cluster.kubectl import Kubectl, name_of, wait_for
from hack.cluster.progress import say
from hack.demo.command import demo, remove_job
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.job_report import write_report
from hack.demo.learning_checks import check_epochs
from rollcall_cli.html_report.charts import inline_svg

if TYPE_CHECKING:
    from pathlib import Path

JOB, POOL, TRAINER = "smollm", "smollm-vllm", "smollm-trainer-0"
MANIFEST = "smollm/first-letter.yaml"
CHART = ROOT / "results" / "smollm.svg"
REPORT = CHART.with_suffix(".html")
SCALE_UP_STEP, KILL_STEP = 6, 16
RISE = 0.4  # of the mean reward of rollouts' own samples
SAMPLES = 32  # for each of these words
WORDS = ("nurse", "umbrella", "rocket", "velvet")  # none is trained on

# How many sampled answers of the model in a folder are right; run in the trainer's container.
_ANSWER = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from rollcall_runtime.tasks.first_letter import EXAMPLES
folder, samples, *words = sys.argv[1:]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, trust_remote_code=False
)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
right = {}
for word in words:
    asked = tokenizer(f"{EXAMPLES}{word}:", return_tensors="pt")
    said = model.generate(**asked, max_new_tokens=3, do_sample=True, top_k=0, pad_token_id=0,
                          num_return_sequences=int(samples))
    texts = tokenizer.batch_decode(said[:, asked.input_ids.shape[1]:])
    right[word] = sum(text.partition("\\n")[0].strip() == word[0] for text in texts)
print(json.dumps(right))
"""


def run(kubectl: Kubectl) -> None:
    """Train with a scale-up and a kill, and compare the model's answers before and after.

    Raises:
        AssertionError: it did not learn.
        TimeoutError: something did not happen in time.
    """
    nodes = installation.ensure_image("worker-vllm", most=1)
    installation.ensure_image("model-smollm2")
    remove_job(kubectl, JOB)
    say(f"kubectl apply -f examples/{MANIFEST}")
    kubectl.apply(manifest(nodes))
    curve = LearningCurve()
    job = JobWatcher(kubectl, JOB, say=say, look=curve.add)
    job.until(lambda s: s.phase == "Running", seconds=400)
    before = right_answers(kubectl, "/models/smollm2")
    first = job.until(lambda s: bool(s.rewards), seconds=300)
    start = mean_reward(first)

    job.until(lambda s: s.step >= SCALE_UP_STEP, seconds=600)
    say(f"kubectl scale rolloutpool/{POOL} --replicas=2")
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=2")
    job.until(lambda s: s.ready >= 2 and s.step >= KILL_STEP, seconds=900)

    victim = name_of(kubectl.rollouts(JOB)[0])
    say(f"kubectl delete pod {victim} --grace-period=0 --force")
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    last = job.until(lambda s: s.phase == "Succeeded", seconds=1800)
    after = wait_for(
        "the exported model", lambda: right_answers(kubectl, "/export/smollm2"), seconds=300
    )
    curve.draw(CHART, title="SmolLM2-135M-Instruct learns first letters, with rollouts on vLLM")
    pictures = {"Rewards of each rollout's own samples": inline_svg(CHART.read_text())}
    write_report(kubectl, JOB, into=REPORT, pictures=pictures)
    check_answers(start=start, last=last, before=before, after=after)


def manifest(nodes: list[str]) -> dict[str, Any]:
    """The example, with rollouts on nodes that have vLLM's image."""
    found = example(MANIFEST)
    (pool,) = found["spec"]["rollouts"]
    if nodes:
        pool["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": nodes[0]}
    return found


def right_answers(kubectl: Kubectl, folder: str) -> dict[str, int]:
    """Right ones of SAMPLES, by word, of the model in the trainer's container. KubectlError."""
    command = ("exec", TRAINER, "--", "python3", "-c", _ANSWER, folder, str(SAMPLES), *WORDS)
    found: dict[str, int] = json.loads(kubectl.run(*command, seconds=400).splitlines()[-1])
    return found


def mean_reward(seen: JobProgress) -> float:
    """Of the samples that the rollouts generated themselves."""
    return sum(seen.rewards.values()) / len(seen.rewards)


def check_answers(
    *, start: float, last: JobProgress, before: dict[str, int], after: dict[str, int]
) -> None:
    """Print what was learned. AssertionError if too little was."""
    for word, right in before.items():
        say(f"{word}: {right} of {SAMPLES} answers right before, {after[word]} after")
    end = mean_reward(last)
    say(f"mean reward of the rollouts' own samples: {start:.2f}, then {end:.2f}")
    if end - start < RISE:
        raise AssertionError(f"the reward rose by {end - start:.2f}, not by {RISE}")
    rise = (sum(after.values()) - sum(before.values())) / (SAMPLES * len(after))
    if rise < RISE:
        raise AssertionError(
            f"right answers of the exported model rose by {rise:.2f}, not by {RISE}"
        )
    check_epochs(last, least=3)
    say(f"LEARNED over {last.epoch} epochs; the job and the cluster stay, for a look:")
    print("export KUBECONFIG=$(make -s kubeconfig); kubectl get rljob,rolloutpool,pods")


@dataclass(slots=True)
class LearningCurve:
    """What was seen of a job: `rewards` of each pod as (step, mean), `epochs` as (step, cause)."""

    rewards: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    epochs: list[tuple[int, str]] = field(default_factory=list)
    _epoch: int = 0

    def add(self, seen: JobProgress) -> None:
        """Take what is new."""
        for pod, reward in seen.rewards.items():
            points = self.rewards.setdefault(pod, [])
            if not points or points[-1][0] < seen.step:
                points.append((seen.step, reward))
        for entry in seen.history:
            if entry["epoch"] > self._epoch:
                self._epoch = entry["epoch"]
                self.epochs.append((seen.step, str(entry["cause"])))

    def draw(self, path: Path, *, title: str) -> None:
        """Write the chart; OSError if it cannot be written."""
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        for pod, points in self.rewards.items():
            axes.plot(*zip(*points, strict=True), label=pod, linewidth=1.6)
        grey = "#7f7f7f"
        causes: dict[int, list[str]] = {}
        for step, cause in self.epochs:
            causes.setdefault(step, []).append(cause)
        for step, found in causes.items():
            axes.axvline(step, color=grey, linewidth=0.8, linestyle=":")
            axes.annotate(
                ", ".join(found), (step, 0.02), rotation=90, fontsize=7, color=grey, ha="right"
            )
        axes.set(ylim=(0, 1.05), xlabel="step", title=title)
        axes.set_ylabel("mean reward of a rollout's last 256 samples")
        axes.legend(fontsize=7, loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(demo(run, job=JOB))
