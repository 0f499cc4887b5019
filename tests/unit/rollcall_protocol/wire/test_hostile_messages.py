"""Whatever bytes arrive as a message: a CodecError or a message, in memory as they are long."""

import contextlib
import copy
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_protocol.wire.json_codec import MAX_INT, MAX_TEXT, CodecError, decode, parse
from rollcall_protocol.wire.messages import PromptCredit, WireMessage, dumps, loads
from rollcall_protocol.wire.roster import Roster
from tests.unit.rollcall_protocol.wire.test_messages import MESSAGES

SEEDS = range(300)
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**40, MAX_INT, MAX_INT + 1, -(10**400), 1e308, float("nan")),
    *(float("-inf"), "", "x", "\x00", "\ud800", "9" * 400, [], [[]], [None], [2**70], {}),
    *({"": 1}, {"type": "Ack"}, {"epoch": 1, "boot": 1, "attempt": [1]}),
)
DEEP = 100_000


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values inside a plain JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield (*path, key)
        if isinstance(value[key], (dict, list)):
            yield from places(value[key], (*path, key))


def changed(text: str, chance: random.Random) -> str:
    """The message with up to three values exchanged."""
    body = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        *way, last = chance.choice(list(places(body)))
        inner = body
        for key in way:
            inner = inner[key]
        inner[last] = copy.deepcopy(chance.choice(HOSTILE))
    return json.dumps(body)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_with_hostile_values_is_refused_or_decoded(message: WireMessage) -> None:
    kind, text = type(message), dumps(message)
    tracemalloc.start()
    try:
        for seed in SEEDS:
            bad = changed(text, random.Random(seed))
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with contextlib.suppress(CodecError):
                loads(bad, kind)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 100 * len(bad) + 50_000, seed
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_message_are_refused(seed: int) -> None:
    chance = random.Random(seed)
    for message in MESSAGES:
        text = bytearray(dumps(message).encode())
        for _ in range(3):
            text[chance.randrange(len(text))] = chance.randrange(256)
        cut = bytes(text[: chance.randrange(1, len(text) + 1)])
        try:
            loads(cut, type(message))
        except CodecError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "[" * DEEP,
        '{"a":' * DEEP,
        '{"type": "PromptCredit", "prompts": ' + "[" * DEEP + "]" * DEEP + "}",
        "9" * 10_000,
        b"\xff\xfe\xfd",
        b'{"type": "PromptCredit", "prompts": "\xff"}',
    ],
    ids=["list", "object", "field", "digits", "bytes", "text"],
)
def test_deep_json_long_numbers_and_other_encodings_are_refused(text: str | bytes) -> None:
    with pytest.raises(CodecError):
        loads(text, PromptCredit)
    with pytest.raises(CodecError):
        decode(Roster, parse(text))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_an_integer_of_more_than_64_bits_is_refused_wherever_it_stands(number: int) -> None:
    for message in MESSAGES:
        body = json.loads(dumps(message))
        for *way, last in list(places(body)):
            inner = body
            for key in way:
                inner = inner[key]
            old = inner[last]
            if isinstance(old, (int, float)) and not isinstance(old, bool):
                inner[last] = number
                with pytest.raises(CodecError):
                    loads(json.dumps(body), type(message))
                inner[last] = old


def test_a_string_beyond_the_bound_is_refused_and_its_error_is_short() -> None:
    body = json.loads(dumps(MESSAGES[0])) | {"pod": "x" * (MAX_TEXT + 1)}
    with pytest.raises(CodecError, match="pod: 1048577 characters, and at most 1048576"):
        loads(json.dumps(body), type(MESSAGES[0]))
    with pytest.raises(CodecError) as caught:
        loads(json.dumps({"type": "x" * MAX_TEXT}), PromptCredit)
    assert len(str(caught.value)) <= 500
