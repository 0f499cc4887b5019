"""The mounted keys are read again when they change; what does not parse changes nothing."""

import json
import logging
from pathlib import Path

import pytest

from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.reread_files import LOOK_SECONDS
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.token_issuer import TokenIssuer, default_key, ec_key

ISSUER = TokenIssuer()
BAD = {
    "no JSON": "{",
    "a list": "[]",
    "another object": "{}",
    "no issuer": json.dumps({"issuer": "", "operator": "o", "keys": [default_key().jwk]}),
    "no operator": json.dumps({"issuer": "i", "operator": "", "keys": [default_key().jwk]}),
    "no keys": json.dumps({"issuer": "i", "operator": "o", "keys": []}),
    "no usable key": json.dumps({"issuer": "i", "operator": "o", "keys": [{"kid": "a"}]}),
    "an endless one": json.dumps({"issuer": "i" * (1 << 20), "operator": "o", "keys": [{}]}),
}


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_has_issuer_operator_and_keys_by_name(path: Path) -> None:
    trust = TrustFile(path).current()
    assert (trust.issuer, trust.operator) == (ISSUER.issuer, ISSUER.operator)
    assert list(trust.keys) == ["key-1"]


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_worker_does_not_start_without_it(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SpecError, match=r"trust.json: .*ConfigMap"):
        TrustFile(path)
    path.unlink()
    with pytest.raises(SpecError, match=r"trust.json: .*No such file"):
        TrustFile(path)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_does_not_parse_later_changes_nothing(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    trust = TrustFile(path, clock=clock)
    before = trust.current()
    path.write_text(text)
    clock.now += 2
    with caplog.at_level(logging.WARNING):
        assert trust.current() is before
    assert "the former content holds" in caplog.text
    path.write_text(ISSUER.trust(default_key(), ec_key("key-2")))
    clock.now += 2
    assert list(trust.current().keys) == ["key-1", "key-2"], "a later good one is taken"


def test_a_deleted_file_changes_nothing(path: Path) -> None:
    clock = Clock()
    trust = TrustFile(path, clock=clock)
    before = trust.current()
    path.unlink()
    clock.now += 2
    assert trust.current() is before


def test_a_key_of_an_unknown_kind_is_left_out(path: Path) -> None:
    strange = {"kid": "key-2", "kty": "of the future"}
    keys = [strange, default_key().jwk]
    path.write_text(json.dumps({"issuer": "i", "operator": "o", "keys": keys}))
    assert list(TrustFile(path).current().keys) == ["key-1"]


def test_the_file_is_looked_at_once_a_second_at_most(path: Path) -> None:
    clock = Clock()
    trust = TrustFile(path, clock=clock)
    path.write_text(ISSUER.trust(ec_key("key-2")))
    clock.now += LOOK_SECONDS / 2
    assert list(trust.current().keys) == ["key-1"]
    clock.now += LOOK_SECONDS
    assert list(trust.current().keys) == ["key-2"]
