"""Prompts whose template is a program of Jinja: with filters, conditions or loops."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final, cast, final

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_protocol import CharSpan, RenderedChat
from tokenlake.etl.text.chat_template import ChatTemplate
from tokenlake.etl.text.conversations import rendered_chats
from tokenlake.etl.text.prompt_template import (
    NAME,
    PromptColumns,
    check_known,
    check_used,
    null_fault,
    problem,
    refuses_special_tokens,
    required_columns,
)
from tokenlake.etl.text.renderer import Rendered
from tokenlake.etl.text.template_choice import named_tokens
from tokenlake.etl.text.transform import fault_of
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.files import TokenizerFiles

# The inside of doubled braces that begins with a name, without the blanks around it.
_EXPRESSION: Final = re.compile(r"\{\{-?\s*([^\W\d][^{}]*?)\s*-?\}\}")


def is_program(template: str) -> bool:
    """Return whether a template is more than text with columns."""
    if "{%" in template or "{#" in template:
        return True
    # Only the names of columns stand in the braces of plain templates.
    return not all(map(NAME.fullmatch, _EXPRESSION.findall(template)))


@final
class JinjaPromptRenderer:
    """Renders prompts of the format ``custom`` whose template is a program.

    Args:
        prompt: Section ``prompt``.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token, as for
            :class:`tokenlake.etl.text.prompt_renderer.PromptRenderer`.

    Raises:
        ConfigError: The template cannot be compiled, does not fit its columns, or an
            example cannot be rendered.
    """

    def __init__(
        self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        # 1. The template, and the columns that it reads: variables that no token of the
        #    tokenizer gives.
        self._prompt = prompt
        self._label = prompt.label_column if prompt.mask_input else None
        token_variables = named_tokens(files)
        self._template = self._compiled(token_variables, files)
        template_names = self._template.names
        columns = [name for name in template_names if name not in token_variables]
        self._columns = tuple(columns)
        self._check_columns()
        self.needed: Final = required_columns(self._columns, prompt)
        """Columns that every row must have; a plan looks for them in the first rows."""
        self.columns: Final = self._columns
        # 2. Special tokens that the template itself spells, or outputs by their names.
        template_text = prompt.template or ""
        system_message = prompt.system_message or ""
        own_text = template_text + system_message + prompt.example_separator
        spells_tokens = SpecialScan(files.special_tokens).times(own_text) > 0
        names_tokens = not token_variables.keys().isdisjoint(template_names)
        self.control_tokens: Final = spells_tokens or names_tokens
        self._is_guarded = refuses_special_tokens(
            special_tokens_in_text, self.control_tokens
        )
        self._eos = files.eos_token if self.control_tokens else None
        # 3. System message and examples come before every prompt, and do not count
        #    toward the loss. Examples are rendered as rows are, without a head.
        self._head = ""
        self._head = self._rendered_head()

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        Rows are bad as for other renderers, and where the template fails on them.
        """
        variables, faults = self._variables(rows)
        # Rows with a fault are not rendered.
        good_rows = [row for row in range(len(rows)) if row not in faults]
        good_variables = [variables[row] for row in good_rows]
        results = self._template.render_rows(good_variables, guarded=self._is_guarded)
        texts: dict[int, RenderedChat] = {}
        for row, result in zip(good_rows, results, strict=True):
            if isinstance(result, BadRecordError):
                faults[row] = replace(fault_of(result), detail=_message_of(result))
                continue
            # An error that is not the row's own would come with every row.
            if not isinstance(result, RenderedChat):
                raise result
            text = self._with_head_and_loss(result)
            if text is None:
                detail = "the template outputs no text of this row that counts toward the loss"
                faults[row] = Fault("nothing_to_learn", detail)
            else:
                texts[row] = text
        return rendered_chats(texts, faults)

    def _compiled(
        self, token_variables: dict[str, str], files: TokenizerFiles
    ) -> ChatTemplate:
        """Return the compiled template; ConfigError where that cannot be done."""
        template = self._prompt.template or ""
        try:
            return ChatTemplate(
                template,
                token_variables,
                special_tokens=files.special_tokens,
                learned=self._label,
            )
        except ConfigError as error:
            raise problem("template", _message_of(error), template) from error

    def _check_columns(self) -> None:
        """Require that the template uses the columns that are named, and no other."""
        prompt = self._prompt
        check_used(prompt, self._columns)
        if prompt.input_columns:
            label = () if prompt.label_column is None else (prompt.label_column,)
            for name in self._columns:
                check_known(name, (*prompt.input_columns, *label))
        # The template marks the label wherever it outputs it; without marks it never
        # does.
        if self._label is not None and not self._template.marked:
            near = did_you_mean(self._label, self._columns)
            message = f"the template outputs {self._label!r} nowhere{near}; write {{{{ {self._label} }}}}"
            raise problem("label_column", message, self._label)
        if not self._columns:
            raise problem(
                "template",
                "uses no column, so all texts would be equal",
                prompt.template or "",
            )

    def _rendered_head(self) -> str:
        """Return the system message and the examples.

        Raises:
            ConfigError: An example cannot be rendered.
        """
        prompt = self._prompt
        texts = [prompt.system_message]
        if prompt.examples:
            examples = [dict(row) for row in prompt.examples]
            rendered = self.render(Rows(objects=examples))
            for index, fault in rendered.bad:
                raise problem(f"examples.{index}", fault.detail, repr(examples[index]))
            texts += cast("list[str]", rendered.text.to_pylist())
        # A missing system message has no separator behind it.
        head = ""
        for text in texts:
            if text:
                head += f"{text}{prompt.example_separator}"
        return head

    def _variables(self, rows: Rows) -> tuple[list[dict[str, Any]], dict[int, Fault]]:
        """Return the variables of each row, and the first fault of every bad row."""
        variables: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        faults: dict[int, Fault] = {}
        # A null of an optional column is an empty text, as in other formats.
        for name in self._columns:
            for row, value in enumerate(rows.values(name)):
                if value is None and name in self.needed:
                    faults.setdefault(row, null_fault(name, rows, row))
                variables[row][name] = "" if value is None else value
        # The label is a text in any case; other columns may be lists or objects.
        label = self._prompt.label_column
        if label in self._columns:
            label_columns = PromptColumns(names=(label,), optional=(), label=label)
            texts, label_faults = label_columns.values(rows, SpecialScan(()))
            for row, text in enumerate(texts[label].to_pylist()):
                variables[row][label] = text
            faults = label_faults | faults
        return variables, faults

    def _with_head_and_loss(self, rendered: RenderedChat) -> RenderedChat | None:
        """Return a prompt behind the head, and the spans that count toward the loss.

        These are the parts that the template marks, with an EOS that it spells after
        them, or all. None where nothing counts.
        """
        body = rendered.text
        spans: list[CharSpan] = [(0, len(body))]
        if self._template.marked and self._prompt.mask_input:
            spans = self._with_eos(body, list(rendered.loss))
        if not body or not spans:
            return None
        # The head moves all spans to the right.
        head_size = len(self._head)
        moved_spans = [(start + head_size, stop + head_size) for start, stop in spans]
        return RenderedChat(self._head + body, tuple(moved_spans))

    def _with_eos(self, body: str, spans: list[CharSpan]) -> list[CharSpan]:
        """Return spans with that of the EOS that the template spells after the last."""
        if not spans or self._eos is None:
            return spans
        label_end = spans[-1][1]
        eos_start = body.find(self._eos, label_end)
        if eos_start < 0:
            return spans
        # Blanks between the label and EOS count, too; other words there do not.
        learned_start = label_end
        if body[label_end:eos_start].strip():
            learned_start = eos_start
        return [*spans, (learned_start, eos_start + len(self._eos))]


def _message_of(error: TokenlakeError) -> str:
    """Return the message of an error, without calling the template a chat template."""
    template_problem = error.details.get("template_problem")
    if template_problem is None:
        return str(error)
    return f"the template{template_problem}"
