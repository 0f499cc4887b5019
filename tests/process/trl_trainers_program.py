"""Scripts for the trainers of TRL, as its documentation has them, and one line more.

Arguments: which script, a model, a folder.
"""

# mypy: disable-error-code="attr-defined,arg-type,misc,union-attr,call-arg,operator,list-item"

import sys
from pathlib import Path
from typing import Any

import trl
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from transformers import AutoTokenizer

import rollcall.trl

SCRIPT, MODEL, OUTPUT = sys.argv[1:]
WORDS = ["hello", "what is 2 * 3?", "a b c", "zebra"] * 20
SHORT = {"max_completion_length": 8}
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
MOST_CALLS = 12


def common(**settings: Any) -> dict[str, Any]:
    return {
        "output_dir": OUTPUT,
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        **settings,
    }


def asked(*system: str) -> Dataset:
    before = [{"role": "system", "content": text} for text in system]
    chats = [[*before, {"role": "user", "content": word}] for word in WORDS]
    return Dataset.from_dict({"prompt": chats, "answer": WORDS, "privileged_context": WORDS})


def answered() -> Dataset:
    answer = {"role": "assistant", "content": "a b"}
    return Dataset.from_dict(
        {"messages": [[{"role": "user", "content": w}, answer] for w in WORDS]}
    )


def contains(completions: list[Any], answer: list[str], **_: object) -> list[float]:
    """Whether the answer is in a completion."""
    found = zip(completions, answer, strict=True)
    return [float(word in completion[0]["content"]) for completion, word in found]


def share_of_a(completions: list[Any], **_: object) -> list[float]:
    """The share of a completion's a's."""
    texts = [completion[0]["content"] for completion in completions]
    return [text.count("a") / max(1, len(text)) for text in texts]


def calls_a_tool(tool: str, arguments: dict[str, object]) -> None:
    """The first responses are taken for calls of it: the model has not learned any."""
    parse, calls = grpo.parse_response, [0]

    def parsed(*given: Any, **more: Any) -> Any:
        message = parse(*given, **more)
        calls[0] += 1
        if calls[0] <= MOST_CALLS:
            function = {"name": tool, "arguments": arguments}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message

    grpo.parse_response = parsed


def conversations() -> Any:
    """Several rewards, an evaluation, a reference model."""
    args = trl.GRPOConfig(
        **common(**SHORT, per_device_eval_batch_size=4),
        num_generations=4,
        gradient_accumulation_steps=2,
        reward_weights=[1.0, 0.5],
        eval_strategy="steps",
        eval_steps=2,
        beta=0.04,
        log_completions=True,
        temperature=0.9,
        top_p=0.95,
        top_k=20,
    )
    data = asked("be brief")
    return trl.GRPOTrainer(
        model=MODEL,
        reward_funcs=[contains, share_of_a],
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
    )


def tokenizer_with_tools() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their product.
    """
    return a * b


def tools() -> Any:
    """Responses go on after what a tool has said."""
    calls_a_tool("multiply", {"a": 2, "b": 3})
    return trl.GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer_with_tools(),
        reward_funcs=share_of_a,
        tools=[multiply],
        args=trl.GRPOConfig(**common(max_completion_length=100), num_generations=4),
        train_dataset=asked(),
    )


class Game:
    """An environment, as TRL takes it."""

    def __init__(self) -> None:
        self.guesses = 0

    def reset(self, **_: object) -> str:
        """Begin."""
        self.guesses = 0
        return "guess a word"

    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: The word.

        Returns:
            Whether it is right.
        """
        self.guesses += 1
        return f"not {word}"


def guesses(environments: list[Game], **_: object) -> list[float]:
    """How often it was guessed."""
    return [float(game.guesses) for game in environments]


def environments() -> Any:
    """Each response has a game of its own."""
    calls_a_tool("guess", {"word": "a"})
    return trl.GRPOTrainer(
        model=MODEL,
        processing_class=tokenizer_with_tools(),
        reward_funcs=guesses,
        environment_factory=Game,
        args=trl.GRPOConfig(**common(max_completion_length=100), num_generations=4),
        train_dataset=asked(),
    )


def distillation() -> Any:
    args = trl.DistillationConfig(**common(**SHORT))
    return trl.DistillationTrainer(
        model=MODEL, teacher_model=MODEL, args=args, train_dataset=asked()
    )


def gold() -> Any:
    from trl.experimental.gold import GOLDConfig, GOLDTrainer  # noqa: PLC0415 - imports much

    args = GOLDConfig(**common(**SHORT), lmbda=1.0, use_uld_loss=False, max_length=64)
    return GOLDTrainer(model=MODEL, teacher_model=MODEL, args=args, train_dataset=answered())


def iw_opd() -> Any:
    from trl.experimental.iw_opd import IWOPDConfig, IWOPDTrainer  # noqa: PLC0415

    args = IWOPDConfig(**common(**SHORT))
    return IWOPDTrainer(model=MODEL, teacher_model=MODEL, args=args, train_dataset=answered())


def sdft() -> Any:
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer  # noqa: PLC0415

    return SDFTTrainer(model=MODEL, args=SDFTConfig(**common(**SHORT)), train_dataset=asked())


def sdpo() -> Any:
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer  # noqa: PLC0415

    args = SDPOConfig(**common(**SHORT), num_generations=4)
    return SDPOTrainer(model=MODEL, reward_funcs=[share_of_a], args=args, train_dataset=asked())


def main() -> None:
    trainer = globals()[SCRIPT]()
    rollcall.trl.attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
