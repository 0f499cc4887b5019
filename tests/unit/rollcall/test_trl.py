"""What `attach` needs of TRL: a release that renames it fails here, with the attribute's name."""

import importlib
import subprocess
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from rollcall import RollcallError
from rollcall import trl as adapter

TRAINERS = {
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.trainer.rloo_trainer": "RLOOTrainer",
    "trl.trainer.distillation_trainer": "DistillationTrainer",
    "trl.experimental.gold.gold_trainer": "GOLDTrainer",
    "trl.experimental.iw_opd.iw_opd_trainer": "IWOPDTrainer",
    "trl.experimental.sdft.sdft_trainer": "SDFTTrainer",
    "trl.experimental.sdpo.sdpo_trainer": "SDPOTrainer",
}
HAS: dict[str, Any] = {
    **dict.fromkeys(("model", "accelerator", "processing_class", "state", "args")),
    "add_callback": None,
}


def made(kind: Any, **changes: Any) -> Any:
    """A trainer of this class that was not initialised, with what `attach` reads."""
    trainer = kind.__new__(kind)
    trainer.__dict__.update(HAS | changes)
    return trainer


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
@pytest.mark.parametrize(("module", "name"), TRAINERS.items(), ids=TRAINERS.values())
def test_trls_trainers_have_what_attach_sets(module: str, name: str) -> None:
    kind = getattr(importlib.import_module(module), name)
    adapter._check(made(kind))
    adapter._check(made(type("OfAScript", (kind,), {})))


@pytest.mark.parametrize("renamed", ["use_vllm", "vllm_generation", "_last_loaded_step"])
def test_a_renamed_attribute_is_named(monkeypatch: pytest.MonkeyPatch, renamed: str) -> None:
    kind = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    source = adapter._source_of(kind)
    monkeypatch.setattr(adapter, "_source_of", lambda _: source.replace(renamed, "renamed"))
    with pytest.raises(RollcallError, match=rf"has no GRPOTrainer\.{renamed}"):
        adapter._check(made(kind))


def test_what_generates_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    with pytest.raises(RollcallError, match="has use_vllm=True, and so a vLLM of its own"):
        adapter._check(made(kind, use_vllm=True))
    with pytest.raises(RollcallError, match=r"has no object\.use_vllm; it is no trainer that"):
        adapter._check(object())
    monkeypatch.setattr(adapter, "version", lambda _: "1.17.2")
    with pytest.raises(RollcallError, match=r"trl 1\.17\.2 is installed; the trainers of 1\.16"):
        adapter._check(made(kind))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "sequence_mask"}, True),
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"}, False),
        ({"loss_type": "vespo", "vllm_importance_sampling_correction": False}, False),
        ({"vllm_importance_sampling_mode": "sequence_mask"}, False),
    ],
)
def test_a_loss_that_trl_refuses_with_rollouts_is_refused(
    settings: dict[str, Any], *, refused: bool
) -> None:
    """TRL looks before `attach` says that there are rollouts."""
    source = adapter._source_of(importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer)
    assert 'if self.loss_type == "vespo" and self.use_vllm and' in source
    kind = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    given = {"loss_type": "dapo", "vllm_importance_sampling_correction": True} | settings
    trainer = made(kind, args=types.SimpleNamespace(**given))
    if refused:
        with pytest.raises(RollcallError, match="write 'token_truncate' or 'token_mask'"):
            adapter._check(trainer)
    else:
        adapter._check(trainer)


class _NoTrainer:
    """In the place of `Trainer`: nothing is asked of it."""


CLIENT: dict[str, Any] = {
    "n": 2,
    "max_tokens": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "logprobs": 0,
    "structured_outputs_regex": None,
    "generation_kwargs": {},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_p": 0.1}, r"min_p is 0\.1, which rollouts do not have"),
        ({"repetition_penalty": 1.1}, r"repetition_penalty is 1\.1"),
        ({"structured_outputs_regex": "a+"}, "vllm_structured_outputs_regex is 'a"),
        ({"logprobs": 5}, "logprobs is 5"),
        ({"generation_kwargs": {"best_of": 3}}, "generation_kwargs has 'best_of'.*known are"),
    ],
)
def test_settings_that_rollouts_lack_are_named(changes: dict[str, Any], message: str) -> None:
    client = adapter._Client(_NoTrainer(), types.SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(RollcallError, match=message):
        client.generate([[1]], **CLIENT | changes)
    with pytest.raises(RollcallError, match="the prompts have images"):
        client.image_features([object()])


def test_the_library_alone_imports_neither_torch_nor_trl() -> None:
    code = "import sys, rollcall; print(sorted({'torch', 'trl', 'ray'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


class _Server(BaseHTTPRequestHandler):
    """Answers what TRL's client asks of vLLM at its start."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "model"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_trls_own_client_fails_once_its_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline: TRL knows one address, and an error in a step ends its training."""
    client = importlib.import_module("trl.generation.vllm_client")
    monkeypatch.setattr(client, "is_vllm_available", lambda: True)
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda _: None)  # 62 s between retries
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        made = client.VLLMClient(base_url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        serving.join()
    with pytest.raises(requests.exceptions.ConnectionError):
        made.generate([[1, 2, 3]])
    with pytest.raises(requests.exceptions.ConnectionError):
        made.reset_prefix_cache()
