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
from tokenlake.spans import Spans, Stretch
from tokenlake.templates.rendered import UNFOUND
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.renderer import ChatRenderer
from tokenlake.transforms.chat.sources import chosen_template
from tokenlake.transforms.prompt.judged import judged_values
from tokenlake.transforms.prompt.layout import example_value, input_text, special_pattern
from tokenlake.transforms.rendering import Rendered

_ARROW: Final[Any] = pa
Turn = dict[str, Any]

_FIELD: Final = "messages"
_LOST: Final = Fault(UNFOUND, "the chat template does not render the answer as a turn of its own at the end")


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
            messages_field=_FIELD,
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
        said = [
            input_text([column[index] for column in columns[:-1]], self._prompt.separator) for index in good
        ]
        turns = [_turns(text, columns[-1][index]) for text, index in zip(said, good, strict=True)]
        made = self._chat.render(Rows(objects=[{_FIELD: [*self._head, *pair]} for pair in turns]))
        faults |= {good[index]: fault for index, fault in made.bad}
        kept = [good[index] for index in made.origin.tolist()]
        placed = self._placed(made, [columns[-1][index] for index in kept])
        lost = {index for index, stretch in zip(kept, placed, strict=True) if stretch is None}
        faults |= dict.fromkeys(lost, _LOST)
        there = np.array([index not in lost for index in kept], np.bool_)
        return Rendered(
            text=made.text.filter(_ARROW.array(there)) if lost else made.text,
            origin=np.array(kept, np.int64)[there],
            spans=Spans.of([[stretch] for stretch in placed if stretch is not None]),
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

    def _placed(self, made: Rendered, answers: list[str]) -> list[Stretch | None]:
        """Return what is learned of each text, in bytes: of the assistant's turns only the last."""
        assert made.spans is not None
        found: list[Stretch | None] = []
        last = (made.spans.offsets[1:] - 1).tolist()
        for at, text, answer in zip(last, made.text.to_pylist(), answers, strict=True):
            data, known = str(text).encode(), self._known.encode()
            if not self._prompt.mask_input:
                found.append((len(known), len(data)) if data.startswith(known) else None)
                continue
            start, stop = int(made.spans.start[at]), int(made.spans.stop[at])
            found.append((start, stop) if answer.strip().encode() in data[start:stop] else None)
        return found


def _turns(said: str, answer: str) -> list[Turn]:
    return [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
