"""Write a word's first letter: a task for a small language model, shown by two examples.

A prompt is text, for a model with a tokenizer; the right response begins with one letter.
"""

import hashlib
from typing import TypedDict

EXAMPLES = "cat: c\nhouse: h\n"
_WORDS = """
acid air album animal answer apple arm art autumn baby back bag ball bank basket bath beach bean
bear bed bell bird boat body bone book bottle bowl box branch bread bridge brother brush bucket
bus butter cake camera camp candle car card carpet castle chair cheese child circle city clock
cloud coat coffee coin copper corn cotton country cup dance daughter day desk dinner doctor dog
door dream dress drum dust ear earth egg evening eye face family farm father feather field
finger fire fish flag flower foot forest friend frog fruit game garden gate gift girl glass
glove gold grass green guitar hair hammer hand harbor hat head heart hill home honey horse ice
iron island jacket jar job juice key king kitchen kite knee knife ladder lake lamp leaf leather
lemon letter library light lion lunch map market meat milk mirror money moon morning mountain
mouse music nail name neck nest night nose ocean onion orange page paint paper parent pencil
piano picture plate pocket queen rabbit rain ring river road rope salt sand school sea ship shoe
silver sister snow soap spoon star stone sugar table tea tiger tooth tower town train tree uncle
valley village violin voice wall water wheel window winter wood yard year yellow zebra
"""
WORDS = tuple(_WORDS.split())


class FirstLetterRow(TypedDict):
    """What the reward function gets of a prompt."""

    prompt: str
    word: str
    answer: str


def row(index: int, *, seed: int) -> FirstLetterRow:
    """Row `index` of the endless sequence `seed`: always the same, without any state."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    word = WORDS[int.from_bytes(digest, "big") % len(WORDS)]
    return {"prompt": f"{EXAMPLES}{word}:", "word": word, "answer": word[0]}
