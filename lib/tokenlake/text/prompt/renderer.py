"""Renderers of prompts: columns become one text, or the turns of a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.messages import Turn
from tokenlake.text.chat.renderer import ChatRenderer
from tokenlake.text.chat.template import UNFOUND
from tokenlake.text.chat.tokenizer_template import chosen_template
from tokenlake.text.prompt.jinja import JinjaPromptRenderer, is_program
from tokenlake.text.prompt.template import PromptColumns, join_prompt, lay_out
from tokenlake.text.rendering import Column, Rendered, Renderer
from tokenlake.tokenizers.arrays import Span, Spans
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles


@final
class PromptRenderer:
    """Renders prompts of the formats ``custom`` and ``completion``.

    Args:
        special_tokens_in_text: ``encode``: a special token that a row's own value spells becomes one; ``fail``: such a
            row is bad; ``literal``: it is text, but where the template itself spells control tokens, which no encoder
            can tell from the row's, the row is bad all the same.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """

    def __init__(self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        self._layout = lay_out(prompt, files)
        self.control_tokens: Final = self._layout.specials > 0
        self.needed: Final = self._layout.columns.needed
        """Columns that every row must have."""
        self.columns: Final = self._layout.columns.fields
        refused = special_tokens_in_text == "fail" or (
            self.control_tokens and special_tokens_in_text != "encode"
        )
        self._scan = SpecialScan(files.special_tokens if refused else ())

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        A row is bad if a value is missing (``null_column``) or no text, number or boolean (``not_a_string``), if the
        answer is empty (``empty_label``), or if it spells a special token where that is refused.
        """
        values, faults = self._layout.columns.values(rows, self._scan)
        text, spans = join_prompt(self._layout.pieces, values, len(rows))
        made = Rendered(text=text, origin=np.arange(len(rows)), spans=spans)
        return made.without(self._forged(text) | faults)

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
        names = (*prompt.input_columns, prompt.label_column)
        self._prompt = prompt
        self._columns = PromptColumns(names, prompt.optional_columns, prompt.label_column)
        self.control_tokens: Final = True
        self.needed: Final = self._columns.needed
        """Columns that every row must have."""
        self.columns: Final = self._columns.fields
        chat = ResolvedChat(
            template=prompt.chat_template or chosen_template(None, files),
            messages_field=_FIELD,
            tools_field=None,
            loss="assistant" if prompt.mask_input else "all",
        )
        self._chat = ChatRenderer(chat, files, "encode")
        self._scan = SpecialScan(() if special_tokens_in_text == "encode" else files.special_tokens)
        examples = self._columns.examples(prompt.examples, self._scan)
        system: list[Turn] = [{"role": "system", "content": prompt.system_message or ""}]
        pairs = self._turns(examples, range(len(prompt.examples)))
        self._head = [*system[: bool(prompt.system_message)], *(turn for pair in pairs for turn in pair)]
        self._known = self._beginning() if prompt.examples and not prompt.mask_input else b""

    def render(self, rows: Rows) -> Rendered:
        """Return the conversations' texts.

        A row is bad as in :class:`PromptRenderer`, and where the chat template fails on it.
        """
        values, faults = self._columns.values(rows, self._scan)
        good = np.array([row for row in range(len(rows)) if row not in faults], np.int64)
        pairs = self._turns(values, good.tolist())
        made = self._chat.render(Rows(objects=[{_FIELD: [*self._head, *pair]} for pair in pairs]))
        placed = self._placed(made, [pairs[at][1]["content"] for at in made.origin.tolist()])
        lost = {at: _LOST for at, span in zip(made.origin.tolist(), placed, strict=True) if span is None}
        spans = Spans.of([[span or (0, 0)] for span in placed])
        made = replace(made, spans=spans).without(lost)
        faults |= {int(good[at]): fault for at, fault in made.bad}
        return replace(made, origin=good[made.origin], bad=tuple(sorted(faults.items())))

    def _turns(self, values: dict[str, Column], rows: Any) -> list[list[Turn]]:
        """Return the turns of rows: of the inputs that are not empty, and of the answer."""
        *inputs, answers = (cast("list[str]", values[name].to_pylist()) for name in self._columns.names)
        said = [self._prompt.separator.join(filter(None, (texts[row] for texts in inputs))) for row in rows]
        return [
            [{"role": "user", "content": text}, {"role": "assistant", "content": answers[row]}]
            for text, row in zip(said, rows, strict=True)
        ]

    def _beginning(self) -> bytes:
        """Return what the turns before a row's own are rendered as."""
        try:
            return self._chat.template.render(self._head).text.encode()
        except BadRecordError as error:
            raise ConfigError(f"prompt.examples: {error}", field_path="prompt.examples") from error

    def _placed(self, made: Rendered, answers: list[str]) -> list[Span | None]:
        """Return what bears loss in each text, in bytes: of the assistant's turns only the last."""
        assert made.spans is not None
        found: list[Span | None] = []
        last = (made.spans.offsets[1:] - 1).tolist()
        for at, text, answer in zip(last, made.text.to_pylist(), answers, strict=True):
            data, start = str(text).encode(), len(self._known)
            if self._prompt.mask_input:
                start, stop = int(made.spans.start[at]), int(made.spans.stop[at])
                found.append((start, stop) if answer.strip().encode() in data[start:stop] else None)
            else:
                found.append((start, len(data)) if data.startswith(self._known) else None)
        return found


def _conversations(prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> Renderer:
    chat = ResolvedChat(
        template=prompt.chat_template or chosen_template(None, files),
        messages_field=prompt.conversation,
        loss="assistant" if prompt.mask_input else "all",
    )
    return ChatRenderer(chat, files, "encode" if special_tokens_in_text == "encode" else "fail")


def open_prompt(prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> Renderer:
    """Return what renders `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    if prompt.conversation is not None:
        return _conversations(prompt, files, special_tokens_in_text)
    if prompt.format_type == "chat":
        return ChatPromptRenderer(prompt, files, special_tokens_in_text)
    jinja = prompt.format_type == "custom" and is_program(prompt.template or "")
    return (JinjaPromptRenderer if jinja else PromptRenderer)(prompt, files, special_tokens_in_text)


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
