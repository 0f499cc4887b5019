"""How long a step should take on this machine: its usual time, and the machine's speed so far.

speed = MachineSpeed()
print(speed.expected(520))          # usually 8 min 40 s
speed.finished(usual_s=60, took_s=140)
print(speed.expected(520))          # about 20 min on this machine, usually 8 min 40 s
"""

from __future__ import annotations

from dataclasses import dataclass

# A step that took less did not do all of its work: layers of an image were cached, say.
_WHOLE = 0.25
# What lies closer to the usual time says nothing about the machine.
_USUAL = (0.85, 1.15)


@dataclass(slots=True)
class MachineSpeed:
    """What the steps that are done say about the steps to come.

    Attributes:
        usual_s: seconds that the finished steps usually take, in all.
        took_s: seconds that they took, in all.
    """

    usual_s: float = 0.0
    took_s: float = 0.0

    def finished(self, *, usual_s: float, took_s: float) -> None:
        """Counts a step that is done, unless it took less than a quarter of its usual time."""
        if took_s >= usual_s * _WHOLE:
            self.usual_s += usual_s
            self.took_s += took_s

    def factor(self) -> float:
        """Measured over usual time; a long step weighs more; 1 before any step is done."""
        return self.took_s / self.usual_s if self.usual_s else 1.0

    def seconds(self, usual_s: float) -> float:
        """Seconds that a step should take here."""
        return usual_s * self.factor()

    def expected(self, usual_s: float) -> str:
        """Such as `usually 15 s`, or `about 20 min on this machine, usually 8 min 40 s`."""
        usual = f"usually {duration(usual_s)}"
        if self._as_usual():
            return usual
        return f"{_about(self.seconds(usual_s))} on this machine, {usual}"

    def so_far(self, took_s: float, usual_s: float) -> str:
        """How long a step runs by now, and how long it should; says so if it is late.

        Such as `30 s of usually 8 min 40 s`, or `12 min 00 s, longer than expected: usually
        8 min 40 s`.
        """
        late = took_s > self.seconds(usual_s) * _USUAL[1]
        between = ", longer than expected: " if late else " of "
        return f"{duration(took_s)}{between}{self.expected(usual_s)}"

    def _as_usual(self) -> bool:
        return _USUAL[0] <= self.factor() <= _USUAL[1]


def duration(seconds: float) -> str:
    """Such as `7 s` or `8 min 40 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def _about(seconds: float) -> str:
    """Such as `about 40 s` or `about 20 min`: no finer than an estimate can be."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min"
