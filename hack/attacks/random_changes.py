"""Valid messages with random changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

ODD: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    "a" * 10**5,
    "\x00\ud800",
    -1,
    0,
    2**31,
    2**63 - 1,
    2**63,
    10**400,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    [[[[]]]],
    {"type": "Hello"},
)
# Of its own kind, an odd value gets further than the reader's check of types.
ODD_OF_KIND: dict[type, tuple[Any, ...]] = {
    int: (-1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    float: (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, -1.0, 5e-324, 1e12),
    str: ("", "a" * 10**5, "\x00", "\ud800", "\x1b[2J", "a\nb", "\u202e", "{0} %s $(A) {{b}}"),
}


@dataclass(frozen=True, slots=True)
class Fuzz:
    """Changes by one seed."""

    random: random.Random

    def of_message(self, text: str) -> str:
        """A message with one of its values, at any depth, exchanged, left out or repeated."""
        body = json.loads(text)
        places = list(_places(body))
        holder, key = self.random.choice(places)
        action = self.random.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[f"{key}x"] = holder[key]
        elif action == 2 and isinstance(holder[key], list):
            holder[key] = holder[key] * self.random.choice((2, 1000))
        else:
            holder[key] = self.random.choice(ODD)
        return json.dumps(body)

    def of_kind(self, text: str) -> str:
        """A message with up to three numbers or texts exchanged for odd ones of the same kind."""
        body = json.loads(text)
        places = [place for place in _places(body) if type(place[0][place[1]]) in ODD_OF_KIND]
        for holder, key in self.random.sample(places, self.random.randint(1, min(3, len(places)))):
            holder[key] = self.random.choice(ODD_OF_KIND[type(holder[key])])
        return json.dumps(body)

    def of_bytes(self, data: bytes) -> bytes:
        """Bytes with some flipped, cut out, repeated or put in."""
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            at = self.random.randrange(len(changed) + 1)
            action = self.random.randrange(4)
            if action == 0 and at < len(changed):
                changed[at] ^= 1 << self.random.randrange(8)
            elif action == 1:
                del changed[at : at + self.random.randrange(1, 20)]
            elif action == 2:
                changed[at:at] = changed[at : at + 40] * self.random.randrange(1, 5)
            else:
                changed[at:at] = self.random.randbytes(self.random.randrange(1, 20))
        return bytes(changed)


def _places(body: Any) -> Any:
    """Every key and index in a JSON value, with what holds it."""
    keys = body.keys() if isinstance(body, dict) else range(len(body))
    for key in keys:
        yield body, key
        if isinstance(body[key], (dict, list)):
            yield from _places(body[key])
