"""Prompts of the format ``chat``: turns of a row, rendered by a chat template.

A system message and examples may come before the two turns of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast, final

import numpy as np

from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_messages import Turn
from tokenlake.etl.text.chat_protocol import UNFOUND
from tokenlake.etl.text.chat_renderer import ChatRenderer
from tokenlake.etl.text.prompt_template import PromptColumns, required_columns
from tokenlake.etl.text.renderer import Rendered
from tokenlake.etl.text.template_choice import chosen_template
from tokenlake.etl.text.transform import Column
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.offsets import Span, Spans

# Field in which the conversations of rows are given to the renderer.
_FIELD: Final = "messages"
_ANSWER_NOT_FOUND: Final = Fault(
    UNFOUND,
    "the chat template does not render the answer as a separate turn at the end",
)


@final
class ChatPromptRenderer:
    """Renders prompts of the format ``chat``.

    Args:
        prompt: Section ``prompt``, with a label column.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token: ``encode``
            makes it a control token; otherwise the row is bad, because the template's
            own tokens become control tokens.

    Raises:
        ConfigError: The tokenizer has no chat template, it cannot be used, or an
            example cannot be rendered.
    """

    def __init__(
        self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        # 1. The columns, of which all but the optional ones must be there.
        assert prompt.label_column is not None
        names = (*prompt.input_columns, prompt.label_column)
        self._prompt = prompt
        self._columns = PromptColumns(
            names, prompt.optional_columns, prompt.label_column
        )
        self.control_tokens: Final = True
        self.needed: Final = required_columns(names, prompt)
        """Columns that every row must have; a plan looks for them in the first rows."""
        self.columns: Final = self._columns.fields
        # 2. The chat template. It may spell special tokens, so that the guard of
        #    conversations is off.
        chat = ResolvedChat(
            template=prompt.chat_template or chosen_template(None, files),
            messages_field=_FIELD,
            tools_field=None,
            loss="assistant" if prompt.mask_input else "all",
        )
        self._chat = ChatRenderer(chat, files, "encode")
        # 3. Special tokens are looked for in the columns, before they become turns.
        refused_tokens = files.special_tokens
        if special_tokens_in_text == "encode":
            refused_tokens = ()
        self._scan = SpecialScan(refused_tokens)
        # 4. The turns before those of a row.
        self._head = self._head_turns()
        self._head_text = self._rendered_head().encode()
        """Bytes of the turns before a row's own, where only the latter count toward
        the loss.
        """

    def render(self, rows: Rows) -> Rendered:
        """Return the texts of the conversations.

        A row is bad as for :class:`PromptRenderer`, and where the chat template fails
        on it.
        """
        # 1. The conversations of rows without a fault, rendered.
        values, faults = self._columns.values(rows, self._scan)
        is_good = np.ones(len(rows), np.bool_)
        is_good[list(faults)] = False
        good_rows = np.flatnonzero(is_good)
        turns_of_rows = self._turns(values, good_rows.tolist())
        conversations = [{_FIELD: [*self._head, *turns]} for turns in turns_of_rows]
        rendered = self._chat.render(Rows(objects=conversations))
        # 2. Only the row's own answer counts toward the loss.
        rendered_rows = rendered.origin.tolist()
        answers: list[str] = []
        for row in rendered_rows:
            answer_turn = turns_of_rows[row][-1]
            answers.append(str(answer_turn["content"]))
        spans: list[list[Span]] = []
        rows_without_answer: dict[int, Fault] = {}
        answer_spans = self._answer_spans(rendered, answers)
        for row, answer_span in zip(rendered_rows, answer_spans, strict=True):
            if answer_span is None:
                rows_without_answer[row] = _ANSWER_NOT_FOUND
            spans.append([answer_span or (0, 0)])
        rendered = replace(rendered, spans=Spans.of(spans))
        rendered = rendered.without(rows_without_answer)
        # 3. Indices among the good rows become indices among all.
        for row, fault in rendered.bad:
            faults[int(good_rows[row])] = fault
        return replace(
            rendered,
            origin=good_rows[rendered.origin],
            bad=tuple(sorted(faults.items())),
        )

    def _head_turns(self) -> list[Turn]:
        """Return the turns before a row's own: the system message and the examples."""
        turns: list[Turn] = []
        if self._prompt.system_message:
            turns.append({"role": "system", "content": self._prompt.system_message})
        examples = self._columns.examples(self._prompt.examples, self._scan)
        for example_turns in self._turns(examples, range(len(self._prompt.examples))):
            turns += example_turns
        return turns

    def _rendered_head(self) -> str:
        """Return the text of the turns before a row's own.

        "" where all is learned or none is needed.
        """
        if not self._prompt.examples or self._prompt.mask_input:
            return ""
        try:
            return self._chat.template.render(self._head).text
        except BadRecordError as error:
            raise ConfigError(
                f"prompt.examples: {error}", field_path="prompt.examples"
            ) from error

    def _turns(
        self, values: dict[str, Column], rows: Sequence[int]
    ) -> list[list[Turn]]:
        """Return two turns of each row.

        The user's has the inputs that are not empty, the assistant's the answer.
        """
        columns = [values[name].to_pylist() for name in self._columns.names]
        *input_columns, answers = cast("list[list[str]]", columns)
        turns_of_rows: list[list[Turn]] = []
        for row in rows:
            # An empty input leaves no separator behind.
            input_texts: list[str] = []
            for texts in input_columns:
                if texts[row]:
                    input_texts.append(texts[row])
            question = self._prompt.separator.join(input_texts)
            user_turn = {"role": "user", "content": question}
            assistant_turn = {"role": "assistant", "content": answers[row]}
            turns_of_rows.append([user_turn, assistant_turn])
        return turns_of_rows

    def _answer_spans(
        self, rendered: Rendered, answers: list[str]
    ) -> list[Span | None]:
        """Return the bytes of each text that count toward the loss.

        Of the assistant's turns only the last one counts. Without a mask all after the
        head does. None where the answer is not found.
        """
        assert rendered.spans is not None
        answer_spans: list[Span | None] = []
        # The spans of a text lie together; its last one belongs to the row's own
        # answer.
        last_spans = (rendered.spans.offsets[1:] - 1).tolist()
        texts = rendered.text.to_pylist()
        for span_index, text, answer in zip(last_spans, texts, answers, strict=True):
            utf8_text = str(text).encode()
            if self._prompt.mask_input:
                start = int(rendered.spans.start[span_index])
                stop = int(rendered.spans.stop[span_index])
                has_answer = answer.strip().encode() in utf8_text[start:stop]
            else:
                start = len(self._head_text)
                stop = len(utf8_text)
                has_answer = utf8_text.startswith(self._head_text)
            answer_spans.append((start, stop) if has_answer else None)
        return answer_spans
