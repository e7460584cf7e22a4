"""Columns to prompts, column-wise: Arrow joins the pieces, numpy adds up where the answer lies.

Columns to turns: the input is what the user says, the label what the assistant answers.

The renderer of prompts that a configuration asks for.

What a prompt needs of a tokenizer, and which columns it needs of rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.renderer import ChatRenderer
from tokenlake.text.chat.template import UNFOUND
from tokenlake.text.chat.tokenizer_template import chosen_template
from tokenlake.text.prompt.layout import Layout, example_value, input_text, lay_out, special_pattern
from tokenlake.text.prompt.template import Piece
from tokenlake.text.prompt.values import Values, judged_values, sizes_of
from tokenlake.text.rendering import Rendered
from tokenlake.tokenizers.arrays import Spans, Stretch
from tokenlake.tokenizers.files import TokenizerFiles

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()


@final
class PromptRenderer:
    """Renders prompts of the formats ``custom`` and ``completion``.

    Args:
        special_tokens_in_text: ``encode``: a special token that a row's own value spells becomes one; ``fail``: such a
            row is bad; ``literal``: it is text, but where the template itself spells control tokens, which no encoder
            can tell from the row's, the row is bad all the same.
    """

    def __init__(self, layout: Layout, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        self._layout = layout
        refused = special_tokens_in_text == "fail" or (layout.control and special_tokens_in_text != "encode")
        self._pattern = special_pattern(files) if refused else ""

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
        values, faults = judged_values(
            rows, layout.columns, optional=layout.optional, label=layout.label, pattern=self._pattern
        )
        joined = self._joined(values, len(rows))
        faults = self._forged(joined.text) | faults
        keep = np.ones(len(rows), np.bool_)
        keep[list(faults)] = False
        bad = tuple(sorted(faults.items()))
        if keep.all():
            return Rendered(text=joined.text, origin=np.arange(len(rows)), spans=joined.spans(keep))
        text = joined.text.filter(_ARROW.array(keep))
        return Rendered(text=text, origin=np.flatnonzero(keep), spans=joined.spans(keep), bad=bad)

    def _forged(self, text: Any) -> dict[int, Fault]:
        """Find the rows that make a special token together with what stands beside them."""
        if not self._pattern:
            return {}
        counts = _COMPUTE.count_substring_regex(text, self._pattern)
        others = _COMPUTE.indices_nonzero(_COMPUTE.not_equal(counts, self._layout.specials))
        fault = Fault(
            "special_token_in_text", "a value and the template's text beside it make a special token together"
        )
        return dict.fromkeys(others.to_pylist(), fault)

    def _joined(self, values: dict[str, Values], count: int) -> _Joined:
        parts: list[Any] = []
        sizes: list[Int64 | int] = []
        for piece in self._layout.pieces:
            part = _part(piece, values)
            parts.append(part)
            sizes.append(len(piece.text.encode()) if piece.column is None else sizes_of(part))
        text = _COMPUTE.binary_join_element_wise(*parts, _ARROW.scalar("", _TEXT))
        return _Joined(text, tuple(sizes), tuple(piece.learned for piece in self._layout.pieces), count)


@final
@dataclass(frozen=True, slots=True)
class _Joined:
    """n texts and how they are made up.

    Attributes:
        text: large_string[n].
        sizes: for each piece, its bytes: int64[n], or the same in every row.
        learned: for each piece, whether it is learned.
    """

    text: Any
    sizes: tuple[Int64 | int, ...]
    learned: tuple[bool, ...]
    count: int

    def spans(self, keep: Bools) -> Spans:
        """Return what is learned of the rows where `keep` (bool[n]) is true: runs of learned pieces."""
        edges = [np.zeros(self.count, np.int64)]
        for size in self.sizes:
            edges.append(edges[-1] + size)
        found: list[tuple[Int64, Int64]] = []
        open_at: int | None = None
        for index, learned in enumerate((*self.learned, False)):
            if learned and open_at is None:
                open_at = index
            elif not learned and open_at is not None:
                found.append((edges[open_at][keep], edges[index][keep]))
                open_at = None
        return _spans(found, int(keep.sum()))


def _spans(runs: list[tuple[Int64, Int64]], count: int) -> Spans:
    """Lay runs, each (start, stop) int64[n], out by rows, leaving empty ones out."""
    start = np.stack([start for start, _ in runs], axis=1) if runs else np.zeros((count, 0), np.int64)
    stop = np.stack([stop for _, stop in runs], axis=1) if runs else start
    full = stop > start
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(full.sum(axis=1))])
    return Spans(offsets, start[full], stop[full])


def _part(piece: Piece, values: dict[str, Values]) -> Any:
    """Return a piece of every row: a scalar for text that stays, else large_string[n]."""
    if piece.column is None:
        return _ARROW.scalar(piece.text, _TEXT)
    text: Any = values[piece.column].text
    if not piece.text:
        return text
    followed = _COMPUTE.binary_join_element_wise(
        text, _ARROW.scalar(piece.text, _TEXT), _ARROW.scalar("", _TEXT)
    )
    empty = _COMPUTE.equal(_COMPUTE.binary_length(text), 0)
    return _COMPUTE.if_else(empty, text, followed) if _COMPUTE.any(empty).as_py() else followed


_ChattedARROW: Final[Any] = pa
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

        A row is bad as in :class:`tokenlake.text.prompt.renderer.PromptRenderer`, and where the chat template
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
            text=made.text.filter(_ChattedARROW.array(there)) if lost else made.text,
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
