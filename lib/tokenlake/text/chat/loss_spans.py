"""Which stretches of a rendered conversation a trainer learns from: what the assistant says.

To a turn belong the assistant's words, the calls it makes, and the token that ends it; not the prompt that makes it
speak (``<|im_start|>assistant``), nor blanks between that end and the next turn.

A template with ``{% generation %}`` says itself where that is. Of any other, the conversation is rendered again up to
each assistant's turn, with and without it: the difference is the turn. That holds only where a rendering begins as the
shorter one does, so each is compared with the whole text, and each stretch must hold the turn's own words.

Special tokens that no text of a row spells, but that a template puts together of its pieces.

A template that takes something out of a content joins what was around it: without ``<image>``, ``<|im_<image>end|>`` is
a token that ends a turn. So a row with the beginnings of special tokens, in such a template, is rendered again with
these beginnings broken up; if that changes how many special tokens the text has, one was put together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError
from tokenlake.text.chat.sandbox import Program
from tokenlake.text.chat.template import NOTHING, UNFOUND, Message, Stretch

EVERYTHING: Final = "everything_to_learn"

_OTHER_WORDS: Final = "\ue000words\ue000"
_MENDING: Final = "mark the assistant's turns in the template with {% generation %}, or set chat.loss: all"


@final
class TurnFinder:
    """Finds the assistants' turns in what a template without marks renders.

    Args:
        special_tokens: texts of the tokenizer's special tokens; blanks behind one that ends a turn are left out.
    """

    def __init__(self, template: Program, special_tokens: Sequence[str]) -> None:
        self._template = template
        self._prompts = "add_generation_prompt" in template.text
        self._endings = tuple(filter(None, special_tokens))

    def find(
        self, text: str, messages: Sequence[Message], tools: Sequence[Any] | None, **variables: Any
    ) -> tuple[Stretch, ...]:
        """Return the stretches of `text`, the rendering of `messages`, in characters.

        Raises:
            BadRecordError: what the assistant says cannot be told apart (``turns_not_found``), or the template fails
                on the beginning of the conversation.
        """
        found: list[Stretch] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                found.append(self._turn(text, len(messages), messages[: index + 1], tools, variables))
        if any(left[1] > right[0] for left, right in pairwise(found)):
            raise BadRecordError("the assistant's turns overlap in the rendered text", reason=UNFOUND)
        return tuple(found)

    def _turn(
        self,
        text: str,
        count: int,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        variables: dict[str, Any],
    ) -> Stretch:
        """Return where the last of `messages`, the first of `count`, lies."""
        given = {**variables, "add_generation_prompt": False}
        whole = len(messages) == count and not variables.get("add_generation_prompt")
        after = text if whole else self._template.render(messages, tools, **given).text
        prompt = {**given, "add_generation_prompt": self._prompts}
        before = self._before(messages[:-1], tools, prompt, after)
        if not text.startswith(after):
            raise BadRecordError(
                f"the chat template renders turn {len(messages)} in another way when others follow, so what the "
                f"assistant says in it cannot be told: {_MENDING}",
                reason=UNFOUND,
            )
        start, stop = self._start(before, after, messages, tools, given), self._end(before, after)
        _check_words(after[start:stop], messages)
        return start, stop

    def _before(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, given: dict[str, Any], after: str
    ) -> int:
        """Return how much of `after` is there before the assistant says anything."""
        try:
            asked = self._template.render(messages, tools, **given).text
            if after.startswith(asked):
                return len(asked)
            given = {**given, "add_generation_prompt": False}
            begun = self._template.render(messages, tools, **given).text
        except BadRecordError as error:
            raise BadRecordError(
                f"the chat template fails on the conversation before turn {len(messages) + 1}, so what the assistant "
                f"says in it cannot be told: {error}; {_MENDING}",
                reason=UNFOUND,
            ) from error
        # The prompt may go on where the turn does not (an empty thought): what they share is the prompt.
        shared = _shared(asked, after)
        if not after.startswith(begun) or shared <= len(begun):
            raise BadRecordError(
                f"the chat template renders the conversation before turn {len(messages) + 1} in another way when the "
                f"turn follows, so what the assistant says in it cannot be told: {_MENDING}",
                reason=UNFOUND,
            )
        return shared

    def _start(
        self,
        before: int,
        after: str,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        given: dict[str, Any],
    ) -> int:
        """Leave out what stands before the assistant's words, where the template has no prompt to tell it by."""
        words = str(messages[-1].get("content") or "").strip()
        if self._prompts or not words or after[before:].lstrip().startswith(words):
            return before
        other = [*messages[:-1], {**messages[-1], "content": _OTHER_WORDS}]
        begun, found, _ = self._template.render(other, tools, **given).text.partition(_OTHER_WORDS)
        if not found or not after.startswith(begun + words):
            raise BadRecordError(
                f"it cannot be told where in turn {len(messages)} the assistant begins to speak: {_MENDING}",
                reason=UNFOUND,
            )
        return len(begun)

    def _end(self, before: int, after: str) -> int:
        end = len(after.rstrip())
        return end if end > before and after.endswith(self._endings, before, end) else len(after)


def _shared(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if right.startswith(left[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _check_words(turn: str, messages: Sequence[Message]) -> None:
    words = str(messages[-1].get("content") or "").strip()
    if words not in turn or not turn:
        raise BadRecordError(
            f"the rendered text does not hold what the assistant says in turn {len(messages)}, so it cannot be told "
            f"what is learned: {_MENDING}",
            reason=UNFOUND,
        )


def check_learned(text: str, learned: Sequence[Stretch], messages: Sequence[Message]) -> None:
    """Require that something is learned, but not everything.

    Raises:
        BadRecordError: ``nothing_to_learn``, ``everything_to_learn``.
    """
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRecordError("the conversation has no turn of an assistant", reason=NOTHING)
    if not learned:
        raise BadRecordError("the chat template marks nothing as the assistant's", reason=NOTHING)
    if sum(stop - start for start, stop in learned) == len(text):
        raise BadRecordError(
            "the whole text is the assistant's, so that a loss mask would say nothing; set chat.loss: all if that is "
            "meant",
            reason=EVERYTHING,
        )


REASON: Final = "special_token_in_text"

_JOINING: Final = re.compile(r"\b(?:replace|join|striptags)\b")
_BREAK: Final = "\u2060"  # a word joiner: no blank, so that nothing trims it


@final
class AssemblyScan:
    """Finds special tokens that `template` puts together of a row's own texts.

    Args:
        tokens: texts of the special tokens.
    """

    def __init__(self, template: Program, tokens: Sequence[str]) -> None:
        self._template = template
        longest_first = sorted(filter(None, tokens), key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        starts = sorted({token[:2] for token in longest_first if len(token) > 2})
        self._starts = re.compile("|".join(map(re.escape, starts)) or "(?!)")
        self._joins = _JOINING.search(template.text) is not None

    def check(self, text: str, messages: list[Any], tools: list[Any] | None, **variables: Any) -> None:
        """Require that `text`, the rendering of `messages`, has no token that was put together.

        Raises:
            BadRecordError: it has one (``special_token_in_text``).
        """
        if not self._joins or not any(map(self._starts.search, texts_in((messages, tools)))):
            return
        broken = self._template.render(self._broken(messages), self._broken(tools), **variables).text
        if len(self._tokens.findall(text)) != len(self._tokens.findall(broken)):
            raise BadRecordError(
                "the chat template puts a special token together of the conversation's own texts, which would become a "
                "control token",
                reason=REASON,
            )

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._starts.sub(lambda start: start[0][0] + _BREAK + start[0][1:], value)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self._broken(item) for name, item in fields.items()}
        if isinstance(value, list):
            return [self._broken(item) for item in cast("list[Any]", value)]
        return value


def texts_in(value: Any) -> list[str]:
    """Return every string inside plain data, keys of objects among them."""
    found: list[str] = []
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            rest += cast("dict[Any, Any]", item)
            rest += cast("dict[Any, Any]", item).values()
        elif isinstance(item, list | tuple):
            rest += cast("list[Any]", item)
    return found
