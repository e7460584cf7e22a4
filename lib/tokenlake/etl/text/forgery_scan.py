"""Special tokens that a template makes of a row's texts, though no text spells one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_protocol import FORGED, RenderedChat, template_error
from tokenlake.etl.text.plain_data import texts_in, with_texts

_JOINING: Final = re.compile(r"\b(?:replace|join|striptags)\b")
"""Filters and methods of templates that take something out of a text."""
_BREAK: Final = "\u2060"  # a word joiner: no blank, so that nothing strips it
_NOTHING: Final = "(?!)"  # matches nowhere


@final
class ForgeryScan:
    """Finds special tokens that a template puts together of a row's texts.

    A template that takes something out of a text joins the text around it: without
    ``<image>``, ``<|im_<image>end|>`` is a token that ends a turn. A template that puts
    words beside a text may do the same where they meet.

    1. Find rows with a text that could begin, end or become a special token.
    2. Render such a row again with exactly these places broken up by a word joiner.
    3. If the number of special tokens in the rendering changes, one was put together.

    Args:
        template: Text of the template.
        tokens: Texts of the special tokens.
        can_adjoin: Whether the template's words may stand beside a text without a token
            of its own between them.
    """

    def __init__(
        self, template: str, tokens: Sequence[str], *, can_adjoin: bool
    ) -> None:
        # 1. Of tokens of which one begins with another, the longer one is counted.
        longest_first = sorted(
            filter(None, tokens), key=lambda token: (-len(token), token)
        )
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or _NOTHING)
        # 2. Places at which a text could become a part of a token. One character is
        #    never put together.
        can_join = bool(_JOINING.search(template))
        patterns: set[str] = set()
        for token in longest_first:
            if len(token) == 1:
                continue
            if can_join:
                # The removed text may follow any character of a token, the first too.
                patterns.add(f"(?<={re.escape(token[0])})")
            if can_adjoin:
                patterns |= _patterns_at_edges(token)
        self._places = re.compile("|".join(sorted(patterns)) or _NOTHING)

    def check(self, text: str, row: Any, render: Callable[[Any], RenderedChat]) -> None:
        """Require that no special token of a text was put together.

        Args:
            text: Text that `render` makes of the row.
            row: Plain data of the row.
            render: Renderer of the row.

        Raises:
            BadRecordError: One was put together (``special_token_in_text``).
        """
        # Most rows have no such place, and are rendered once.
        if not any(map(self._places.search, texts_in(row))):
            return
        broken_row = with_texts(row, partial(self._places.sub, _BREAK))
        broken_text = render(broken_row).text
        if len(self._tokens.findall(text)) != len(self._tokens.findall(broken_text)):
            raise template_error(
                BadRecordError,
                " contains text that becomes a special token, by itself or together with the words next to it; "
                "remove it, or set special_tokens_in_text: encode to allow it",
                reason=FORGED,
            )


def _patterns_at_edges(token: str) -> set[str]:
    """Return patterns of the places at which a text could complete a token.

    The words of the template stand beside it. A text may end with a beginning of the
    token, begin with an end of it, or hold its first character and its rest.
    """
    patterns: set[str] = set()
    for size in range(1, len(token)):
        beginning = re.escape(token[:size])
        rest = re.escape(token[size:])
        patterns.add(rf"(?<={beginning})\Z")
        patterns.add(rf"\A(?={rest})")
    patterns.add(rf"(?<={re.escape(token[:1])})(?={re.escape(token[1:])})")
    return patterns
