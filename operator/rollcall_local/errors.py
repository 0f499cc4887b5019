"""What `rollcall local` says in a sentence, without a traceback."""


class LocalError(Exception):
    """Something that was asked for cannot be had; the message says what, and what to do."""
