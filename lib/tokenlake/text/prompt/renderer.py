"""Renderers of prompts: columns become one text, or the turns of a conversation."""

from __future__ import annotations

from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.messages import Turn
from tokenlake.text.chat.renderer import ChatRenderer
from tokenlake.text.chat.template import UNFOUND
from tokenlake.text.chat.tokenizer_template import chosen_template
from tokenlake.text.prompt.template import PromptLayout, PromptPiece, example_value, input_text, lay_out
from tokenlake.text.prompt.values import checked_values
from tokenlake.text.rendering import Column, Rendered, join_pieces
from tokenlake.tokenizers.arrays import Span, Spans
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


@final
class PromptRenderer:
    """Renders prompts of the formats ``custom`` and ``completion``.

    Args:
        special_tokens_in_text: ``encode``: a special token that a row's own value spells becomes one; ``fail``: such a
            row is bad; ``literal``: it is text, but where the template itself spells control tokens, which no encoder
            can tell from the row's, the row is bad all the same.
    """

    def __init__(self, layout: PromptLayout, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        self._layout = layout
        refused = special_tokens_in_text == "fail" or (layout.control and special_tokens_in_text != "encode")
        self._scan = SpecialScan(files.special_tokens if refused else ())

    @property
    def control_tokens(self) -> bool:
        return self._layout.control

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that every row must have."""
        return tuple(name for name in self._layout.columns if name not in self._layout.optional)

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if any("." in column for column in self._layout.columns) else self._layout.columns

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        A row is bad if a value is missing (``null_column``) or no text, number or boolean (``not_a_string``), if the
        answer is empty (``empty_label``), or if it spells a special token where that is refused.
        """
        layout = self._layout
        values, faults = checked_values(
            rows, layout.columns, optional=layout.optional, label=layout.label, scan=self._scan
        )
        pieces = [piece.text if piece.column is None else _followed(piece, values) for piece in layout.pieces]
        text, spans = join_pieces(pieces, [piece.loss for piece in layout.pieces], len(rows))
        faults = self._forged(text) | faults
        if not faults:
            return Rendered(text=text, origin=np.arange(len(rows)), spans=spans)
        keep = np.ones(len(rows), np.bool_)
        keep[list(faults)] = False
        return Rendered(
            text=text.filter(_ARROW.array(keep)),
            origin=np.flatnonzero(keep),
            spans=spans.select(keep),
            bad=tuple(sorted(faults.items())),
        )

    def _forged(self, text: Column) -> dict[int, Fault]:
        """Find the rows that make a special token together with what stands beside them."""
        if not self._scan.pattern:
            return {}
        found = np.zeros(len(text), np.int64)
        rows, counts = self._scan.count(text)
        found[rows] = counts
        fault = Fault(
            "special_token_in_text", "a value and the template's text beside it make a special token together"
        )
        return dict.fromkeys(np.flatnonzero(found != self._layout.specials).tolist(), fault)


def _followed(piece: PromptPiece, values: dict[str, Column]) -> Column:
    """Return a column's values, each that is not empty followed by the text of the piece."""
    text: Any = values[piece.column or ""]
    if not piece.text:
        return text
    behind, nothing = (_ARROW.scalar(words, pa.large_string()) for words in (piece.text, ""))
    followed = _COMPUTE.binary_join_element_wise(text, behind, nothing)
    return _COMPUTE.if_else(_COMPUTE.equal(_COMPUTE.binary_length(text), 0), text, followed)


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
        self._scan = SpecialScan(() if special_tokens_in_text == "encode" else files.special_tokens)
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

        A row is bad as in :class:`tokenlake.text.prompt.renderer.PromptRenderer`, and where the chat template
        fails on it.
        """
        prompt = self._prompt
        values, faults = checked_values(
            rows, self._names, optional=prompt.optional_columns, label=self._label, scan=self._scan
        )
        columns = [cast("list[str]", values[name].to_pylist()) for name in self._names]
        good = [index for index in range(len(rows)) if index not in faults]
        said = [
            input_text([column[index] for column in columns[:-1]], self._prompt.separator) for index in good
        ]
        turns = [_turns(text, columns[-1][index]) for text, index in zip(said, good, strict=True)]
        made = self._chat.render(Rows(objects=[{_FIELD: [*self._head, *pair]} for pair in turns]))
        faults |= {good[index]: fault for index, fault in made.bad}
        kept = [good[index] for index in made.origin.tolist()]
        placed = self._placed(made, [columns[-1][index] for index in kept])
        lost = {index for index, span in zip(kept, placed, strict=True) if span is None}
        faults |= dict.fromkeys(lost, _LOST)
        there = np.array([index not in lost for index in kept], np.bool_)
        return Rendered(
            text=made.text.filter(_ARROW.array(there)) if lost else made.text,
            origin=np.array(kept, np.int64)[there],
            spans=Spans.of([[span] for span in placed if span is not None]),
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
                if self._scan.times(value):
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

    def _placed(self, made: Rendered, answers: list[str]) -> list[Span | None]:
        """Return what bears loss in each text, in bytes: of the assistant's turns only the last."""
        assert made.spans is not None
        found: list[Span | None] = []
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


def open_prompt(
    prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
) -> PromptRenderer | ChatPromptRenderer:
    """Return what renders `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    if prompt.format_type == "chat":
        return ChatPromptRenderer(prompt, files, special_tokens_in_text)
    return PromptRenderer(lay_out(prompt, files), files, special_tokens_in_text)


def check_end(prompt: ResolvedPrompt, files: TokenizerFiles, eos_id: int | None) -> None:
    """Require an EOS where answers are to end with one; in a conversation the chat template ends them.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.

    Raises:
        ConfigError: there is none.
    """
    if not prompt.add_eos or eos_id is not None or prompt.format_type == "chat":
        return
    raise ConfigError(
        f"prompt.add_eos: tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; "
        "set eos_token in its tokenizer_config.json, or add_eos: false",
        field_path="prompt.add_eos",
        expected="a tokenizer with an EOS token",
        got=None,
    )
