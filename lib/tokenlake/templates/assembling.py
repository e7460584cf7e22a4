"""Special tokens that no text of a row spells, but that a template puts together of its pieces.

A template that takes something out of a content joins what was around it: without ``<image>``, ``<|im_<image>end|>`` is
a token that ends a turn. So a row with the beginnings of special tokens, in such a template, is rendered again with
these beginnings broken up; if that changes how many special tokens the text has, one was put together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError
from tokenlake.templates.program import Program

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
