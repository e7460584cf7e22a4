"""Renderers of prompts: columns become one text, or the turns of a conversation."""

from __future__ import annotations

from typing import Final, final

import numpy as np

from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_renderer import ChatRenderer
from tokenlake.etl.text.prompt_chat import ChatPromptRenderer
from tokenlake.etl.text.prompt_program import JinjaPromptRenderer, is_program
from tokenlake.etl.text.prompt_template import (
    PromptColumns,
    PromptPiece,
    body_of,
    join_prompt,
    learns_all,
    problem,
    refuses_special_tokens,
    required_columns,
    with_loss,
)
from tokenlake.etl.text.renderer import Rendered, Renderer
from tokenlake.etl.text.template_choice import chosen_template
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.files import TokenizerFiles


@final
class PromptRenderer:
    """Renders prompts of the formats ``custom`` and ``completion``.

    Args:
        prompt: Section ``prompt``.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token. ``encode``
            makes it a control token; ``fail`` makes the row bad; ``literal`` keeps it
            text, but where the template itself spells control tokens, which no encoder
            can tell from the row's, the row is bad all the same.

    Raises:
        ConfigError: The template is wrong, does not fit its columns, or an example
            cannot be rendered.
    """

    def __init__(
        self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        scan = SpecialScan(files.special_tokens)
        if prompt.format_type == "completion" and scan.times(prompt.separator):
            raise problem(
                "separator",
                "contains a special token; expected text without special tokens, or format_type 'custom'",
                prompt.separator,
            )
        # 1. The pieces of a row's own text, and its columns.
        body = body_of(prompt)
        used_columns = [piece.column for piece in body if piece.column]
        names = tuple(dict.fromkeys(used_columns))
        self._columns = PromptColumns(
            names, prompt.optional_columns, prompt.label_column
        )
        head = self._head_pieces(prompt, body, scan)
        # 2. Special tokens that the prompt spells itself, without any value.
        self._special_count = 0
        for piece in (*head, *body):
            self._special_count += scan.times(piece.text)
        self.control_tokens: Final = self._special_count > 0
        eos_token = files.eos_token if self.control_tokens else None
        # 3. All pieces. Empty ones would be joined in every row.
        head = [piece for piece in head if piece.text]
        self._pieces = (*head, *with_loss(body, prompt, eos_token))
        self.needed: Final = required_columns(names, prompt)
        """Columns that every row must have; a plan looks for them in the first rows."""
        self.columns: Final = self._columns.fields
        is_refused = refuses_special_tokens(special_tokens_in_text, self.control_tokens)
        self._scan = SpecialScan(files.special_tokens if is_refused else ())

    def _head_pieces(
        self, prompt: ResolvedPrompt, body: tuple[PromptPiece, ...], scan: SpecialScan
    ) -> list[PromptPiece]:
        """Return the pieces before every prompt: the system message and the examples.

        Examples do not count toward the loss in any case: they come with every row.
        """
        separator = prompt.example_separator
        system_text = ""
        if prompt.system_message:
            system_text = f"{prompt.system_message}{separator}"
        # The examples are rendered like rows, and become one text.
        values = self._columns.examples(prompt.examples, scan)
        texts, _ = join_prompt(body, values, len(prompt.examples))
        examples_text = ""
        for example_text in texts.to_pylist():
            examples_text += f"{example_text}{separator}"
        system_piece = PromptPiece(system_text, loss=learns_all(prompt))
        return [system_piece, PromptPiece(examples_text)]

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        A row is bad if a value is missing (``null_column``) or no text, number or
        boolean (``not_a_string``), if the answer is empty (``empty_label``), or if it
        spells a special token that is refused (``special_token_in_text``).
        """
        values, faults = self._columns.values(rows, self._scan)
        text, spans = join_prompt(self._pieces, values, len(rows))
        if self._scan.pattern:
            # A value may spell a special token together with the template's text beside
            # it.
            # The template spells as many as it does without values; a row with another
            # number has one more, or broke one.
            token_counts = np.zeros(len(text), np.int64)
            spelling_rows, counts = self._scan.count(text)
            token_counts[spelling_rows] = counts
            forged_rows = np.flatnonzero(token_counts != self._special_count).tolist()
            forged = Fault(
                "special_token_in_text",
                "a value and the adjacent text of the template form a special token",
            )
            faults = dict.fromkeys(forged_rows, forged) | faults
        rendered = Rendered(text=text, origin=np.arange(len(rows)), spans=spans)
        return rendered.without(faults)


def open_prompt(
    prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
) -> Renderer:
    """Return the renderer of prompts for a tokenizer.

    Args:
        prompt: Section ``prompt``.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token: ``fail``,
            ``encode`` or ``literal``.

    Raises:
        ConfigError: The template is wrong, does not fit its columns, or an example
            cannot be rendered.
    """
    if prompt.conversation is not None:
        chat = ResolvedChat(
            template=prompt.chat_template or chosen_template(None, files),
            messages_field=prompt.conversation,
            loss="assistant" if prompt.mask_input else "all",
        )
        # The tokens of a conversation's template are control tokens, so a row's own
        # cannot stay text.
        guard_mode = "encode" if special_tokens_in_text == "encode" else "fail"
        return ChatRenderer(chat, files, guard_mode)
    if prompt.format_type == "chat":
        return ChatPromptRenderer(prompt, files, special_tokens_in_text)
    if prompt.format_type == "custom" and is_program(prompt.template or ""):
        return JinjaPromptRenderer(prompt, files, special_tokens_in_text)
    return PromptRenderer(prompt, files, special_tokens_in_text)


def check_end(
    prompt: ResolvedPrompt, files: TokenizerFiles, eos_id: int | None
) -> None:
    """Require an EOS token where answers are to end with one.

    In a conversation the chat template ends them.

    Args:
        prompt: Section ``prompt``.
        files: Files of the tokenizer.
        eos_id: Id that ends a document; None where neither tokenizer nor configuration
            names one.

    Raises:
        ConfigError: No EOS token is named.
    """
    if not prompt.add_eos or eos_id is not None or prompt.format_type == "chat":
        return
    raise ConfigError(
        f"prompt.add_eos: tokenizer {files.name!r} has no EOS token, from which a model learns the end of an answer; "
        "set eos_token in its tokenizer_config.json, or add_eos: false",
        field_path="prompt.add_eos",
        expected="a tokenizer with an EOS token",
        got=None,
    )
