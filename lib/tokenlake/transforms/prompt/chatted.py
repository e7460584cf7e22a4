"""Columns to turns: the input is what the user says, the label what the assistant answers."""

from __future__ import annotations

import re
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved_texts import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.spans import Spans, Stretch, byte_stretches
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.learning import UNFOUND
from tokenlake.transforms.chat.renderer import ChatRenderer, Conversation
from tokenlake.transforms.chat.sources import chosen_template
from tokenlake.transforms.chat.template import RenderedChat
from tokenlake.transforms.prompt.judged import judged_values
from tokenlake.transforms.prompt.layout import example_value, input_text, special_pattern
from tokenlake.transforms.rendering import Rendered

_ARROW: Final[Any] = pa
Turn = dict[str, Any]


@final
class ChatPromptRenderer:
    """Renders prompts of the format ``chat``: system message, examples, then the row's own two turns.

    Args:
        special_tokens_in_text: ``encode``: a special token that a row's own value spells becomes one; else such a row
            is bad, since the template's own are to become control ids.

    Raises:
        ConfigError: there is no chat template, it cannot be used, or an example cannot be rendered.
    """

    def __init__(self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        assert prompt.label_column is not None
        self._prompt, self._label = prompt, prompt.label_column
        self._pattern = "" if special_tokens_in_text == "encode" else special_pattern(files)
        chat = ResolvedChat(
            template=prompt.chat_template or chosen_template(None, files),
            tools_field=None,
            loss="assistant" if prompt.mask_input else "all",
        )
        self._chat = ChatRenderer(chat, files, "encode")
        self._head = self._first_turns()
        self._known = self._beginning() if prompt.examples and not prompt.mask_input else ""

    @property
    def control_tokens(self) -> bool:
        return True

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that every row must have."""
        return tuple(name for name in self._names if name not in self._prompt.optional_columns)

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if any("." in name for name in self._names) else self._names

    def render(self, rows: Rows) -> Rendered:
        """Return the conversations' texts.

        A row is bad as in :class:`tokenlake.transforms.prompt.renderer.PromptRenderer`, and where the chat template
        fails on it.
        """
        prompt = self._prompt
        values, faults = judged_values(
            rows, self._names, optional=prompt.optional_columns, label=self._label, pattern=self._pattern
        )
        columns = [cast("list[str]", values[name].text.to_pylist()) for name in self._names]
        good = [index for index in range(len(rows)) if index not in faults]
        pairs = [
            (input_text([column[index] for column in columns[:-1]], prompt.separator), columns[-1][index])
            for index in good
        ]
        made = self._chat.render_many([Conversation([*self._head, *_turns(*pair)]) for pair in pairs])
        texts: list[tuple[int, str, Stretch]] = []
        for index, (_, answer), found in zip(good, pairs, made, strict=True):
            placed = found if isinstance(found, Fault) else self._placed(found, answer)
            if isinstance(placed, Fault):
                faults[index] = placed
            else:
                texts.append((index, *placed))
        return Rendered(
            text=_ARROW.array([text for _, text, _ in texts], pa.large_string()),
            origin=np.array([index for index, _, _ in texts], np.int64),
            spans=Spans.of([byte_stretches(text, [stretch]) for _, text, stretch in texts]),
            bad=tuple(sorted(faults.items())),
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self._prompt.input_columns, self._label)

    def _first_turns(self) -> list[Turn]:
        prompt = self._prompt
        turns: list[Turn] = []
        if prompt.system_message:
            turns.append({"role": "system", "content": prompt.system_message})
        for index, row in enumerate(prompt.examples):
            values = [example_value(dict(row), name, prompt, index) for name in self._names]
            for name, value in zip(self._names, values, strict=True):
                if self._pattern and re.search(self._pattern, value):
                    path = f"prompt.examples.{index}"
                    raise ConfigError(
                        f"{path}: the column {name!r} spells a special token of the tokenizer",
                        field_path=path,
                        expected="text without special tokens",
                        got=value[:200],
                    )
            turns += _turns(input_text(values[:-1], prompt.separator), values[-1])
        return turns

    def _beginning(self) -> str:
        """Return what the turns before a row's own are rendered as."""
        try:
            return self._chat.template.render(self._head).text
        except BadRecordError as error:
            raise ConfigError(f"prompt.examples: {error}", field_path="prompt.examples") from error

    def _placed(self, chat: RenderedChat, answer: str) -> tuple[str, Stretch] | Fault:
        """Return the text and the stretch of characters that is learned: of the assistant's turns only the last."""
        if not self._prompt.mask_input:
            if chat.text.startswith(self._known):
                return chat.text, (len(self._known), len(chat.text))
        else:
            start, stop = chat.learned[-1]
            if answer.strip() in chat.text[start:stop]:
                return chat.text, (start, stop)
        return Fault(UNFOUND, "the chat template does not render the answer as a turn of its own at the end")


def _turns(said: str, answer: str) -> list[Turn]:
    return [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
