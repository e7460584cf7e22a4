"""How much one rendering may do, counted and not timed, so that a row fails everywhere or nowhere.

A template is somebody's program. What it does is counted as it goes: steps (iterations and calls) and characters (of
every text, and eight for every element of every list that it makes). Whatever can make something large of something
small is judged by the size of its result before it is done. The clock is looked at, too, but a thousand times later
than the counts need.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import BadRecordError, ConfigError

LIMIT: Final = "template_limit"
"""The reason of rows on which a template does too much."""

_LOOK_AT_CLOCK: Final = 256  # steps between two looks


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rendering may come to at most.

    Attributes:
        steps: iterations of loops and calls.
        characters: of all texts made on the way; an element of a list counts as eight.
        text: characters of any single text, the result among them.
        depth: calls inside calls.
        seconds: by the clock; a backstop for what is not counted (comparisons).
    """

    steps: int = 1_000_000
    characters: int = 512 << 20
    text: int = 64 << 20
    depth: int = 64
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("steps", "characters", "text", "depth", "seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"limits.{name}: got {getattr(self, name)!r}, must be more than 0")


@final
class Budget:
    """What one rendering has done so far.

    Every method raises BadRecordError (reason ``template_limit``) past a limit.
    """

    __slots__ = ("_end", "characters", "depth", "learned", "length", "limits", "starts", "steps")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = self.characters = self.depth = 0
        self.length = 0
        """Characters of the output so far."""
        self.starts: list[int] = []
        """Where the stretches that are open began."""
        self.learned: list[tuple[int, int]] = []
        self._end = time.monotonic() + limits.seconds

    def step(self, characters: int = 0) -> None:
        """Count a step, with what constant text it may output."""
        self.steps += 1
        self.characters += characters
        limits = self.limits
        if self.steps > limits.steps:
            raise exceeded(f"more than {limits.steps:,} iterations and calls")
        if self.characters > limits.characters:
            raise exceeded(f"more than {limits.characters:,} characters of text on the way")
        if not self.steps % _LOOK_AT_CLOCK:
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Stop what goes on for too long."""
        if time.monotonic() > self._end:
            raise exceeded(f"more than {self.limits.seconds:g} seconds")

    def make(self, size: int) -> None:
        """Count a text of `size` characters, or what weighs as much, before or after it is made."""
        if size > self.limits.text:
            raise exceeded(f"a text of {size:,} characters, at most {self.limits.text:,} are allowed")
        self.characters += size
        if self.characters > self.limits.characters:
            raise exceeded(f"more than {self.limits.characters:,} characters of text on the way")

    def enter(self) -> None:
        """Count a call and go one deeper; the caller comes back by lowering `depth`."""
        self.step()
        self.depth += 1
        if self.depth > self.limits.depth:
            raise exceeded(f"more than {self.limits.depth} calls inside each other")


def exceeded(what: str) -> BadRecordError:
    """Return the error of a rendering that came to more than it may."""
    return BadRecordError(f"the chat template came to {what}", reason=LIMIT)
