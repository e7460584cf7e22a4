"""Renderers of prompts: columns become one text, or the turns of a conversation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import ResolvedChat, ResolvedPrompt
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_messages import Turn
from tokenlake.etl.text.chat_renderer import ChatRenderer, rendered_chats
from tokenlake.etl.text.chat_template import (
    UNFOUND,
    ChatTemplate,
    RenderedChat,
    chosen_template,
    named_tokens,
)
from tokenlake.etl.text.prompt_template import (
    NAME,
    PromptColumns,
    PromptPiece,
    body_of,
    check_known,
    check_used,
    join_prompt,
    learns_all,
    null_fault,
    problem,
    with_loss,
)
from tokenlake.etl.text.renderer import Rendered, Renderer
from tokenlake.etl.text.transform import Column, fault_of
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.offsets import Span, Spans

_ARROW: Final[Any] = pa
_EXPRESSION: Final = re.compile(r"\{\{-?\s*([^\W\d][^{}]*?)\s*-?\}\}")


def is_program(template: str) -> bool:
    """Return whether a template is more than text with columns."""
    if "{%" in template or "{#" in template:
        return True
    return any(NAME.fullmatch(inside) is None for inside in _EXPRESSION.findall(template))


@final
class JinjaPromptRenderer:
    """Renders prompts of the format ``custom`` whose template is a program.

    Args:
        special_tokens_in_text: as of :class:`tokenlake.etl.text.prompt_renderer.PromptRenderer`.

    Raises:
        ConfigError: the template cannot be compiled, does not fit its columns, or an example cannot be rendered.
    """

    def __init__(self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        named = named_tokens(files)
        self._prompt, self._learned = prompt, prompt.label_column if prompt.mask_input else None
        tokens = files.special_tokens
        try:
            self._template = ChatTemplate(
                prompt.template or "", named, special_tokens=tokens, learned=self._learned
            )
        except ConfigError as error:
            raise problem("template", _message_of(error), prompt.template or "") from error
        self._names = tuple(name for name in self._template.names if name not in named)
        self._check_columns()
        self.needed: Final = tuple(name for name in self._names if name not in prompt.optional_columns)
        """Columns that every row must have; a plan looks for them in the first rows."""
        self.columns: Final = self._names
        spelled = "".join((prompt.template or "", prompt.system_message or "", prompt.example_separator))
        spells = SpecialScan(tokens).times(spelled)
        self.control_tokens: Final = bool(spells or set(named) & set(self._template.names))
        self._guarded = _refuses(special_tokens_in_text, self.control_tokens)
        self._eos = files.eos_token if self.control_tokens else None
        # System message and examples come before every prompt, and bear no loss.
        self._head = ""
        shots = self.render(Rows(objects=[dict(row) for row in prompt.examples])) if prompt.examples else None
        if shots is not None and shots.bad:
            index, fault = shots.bad[0]
            raise problem(f"examples.{index}", fault.detail, repr(dict(prompt.examples[index])))
        texts = [] if shots is None else cast("list[str]", shots.text.to_pylist())
        heads = (prompt.system_message, *texts)
        self._head = "".join(f"{text}{prompt.example_separator}" for text in heads if text)

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts; rows are bad as by the other renderers, and where the template fails on them."""
        values, faults = self._values(rows)
        good = [row for row in range(len(rows)) if row not in faults]
        made = self._template.render_rows([values[row] for row in good], guarded=self._guarded)
        texts: dict[int, RenderedChat] = {}
        for row, each in zip(good, made, strict=True):
            if isinstance(each, BadRecordError):
                faults[row] = replace(fault_of(each), detail=_message_of(each))
            elif not isinstance(each, RenderedChat):
                raise each
            elif (whole := self._with_loss(each)) is None:
                told = "the template outputs nothing of this row that bears loss"
                faults[row] = Fault("nothing_to_learn", told)
            else:
                texts[row] = whole
        return rendered_chats(texts, faults)

    def _check_columns(self) -> None:
        """Require that the template uses the columns that are named, and no other."""
        prompt, used = self._prompt, self._names
        known = (*prompt.input_columns, *([prompt.label_column] if prompt.label_column else []))
        check_used(prompt, used)
        for name in used if prompt.input_columns else ():
            check_known(name, known)
        if self._learned is not None and not self._template.marked:
            near = did_you_mean(self._learned, used)
            told = f"the template outputs {self._learned!r} nowhere{near}; write {{{{ {self._learned} }}}}"
            raise problem("label_column", told, self._learned)
        if not used:
            raise problem(
                "template", "uses no column, so every text would be the same", prompt.template or ""
            )

    def _values(self, rows: Rows) -> tuple[list[dict[str, Any]], dict[int, Fault]]:
        """Return each row's variables, and the first fault of every row that has one."""
        values: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        faults: dict[int, Fault] = {}
        for name in self._names:
            for row, value in enumerate(rows.values(name)):
                if value is None and name in self.needed:
                    faults.setdefault(row, null_fault(name, rows, row))
                values[row][name] = "" if value is None else value
        label = self._prompt.label_column
        if label in self._names:
            texts, bad = PromptColumns((label,), (), label).values(rows, SpecialScan(()))
            for row, text in enumerate(texts[label].to_pylist()):
                values[row][label] = text
            faults = bad | faults
        return values, faults

    def _with_loss(self, made: RenderedChat) -> RenderedChat | None:
        """Return a text behind the head, with its loss: what is marked and the EOS after it, or all; None: nothing."""
        body, shift = made.text, len(self._head)
        marked = self._template.marked and self._prompt.mask_input
        spans = list(made.loss) if marked else [(0, len(body))]
        if not body or not spans:
            return None
        if marked and self._eos is not None:
            stop = spans[-1][1]
            at = body.find(self._eos, stop)
            if at >= 0:  # the EOS that the template spells after the label
                spans.append((at if body[stop:at].strip() else stop, at + len(self._eos)))
        return RenderedChat(self._head + body, tuple((start + shift, stop + shift) for start, stop in spans))


def _message_of(error: TokenlakeError) -> str:
    """Return the message of an error of a template, in which no chat template is spoken of."""
    about_template = error.details.get("template_problem")
    return str(error) if about_template is None else f"the template{about_template}"


def _refuses(special_tokens_in_text: str, control_tokens: bool) -> bool:
    """Return whether a row may not spell a special token: where it is text, no encoder tells it from the template's."""
    return special_tokens_in_text == "fail" or (control_tokens and special_tokens_in_text != "encode")


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
        body, scan = body_of(prompt), SpecialScan(files.special_tokens)
        names = tuple(dict.fromkeys(piece.column for piece in body if piece.column))
        columns = PromptColumns(names, prompt.optional_columns, prompt.label_column)
        if prompt.format_type == "completion" and scan.times(prompt.separator):
            told = "spells a special token; expected a text that spells none, or format_type 'custom'"
            raise problem("separator", told, prompt.separator)
        # Examples come before every prompt, so that nobody needs to learn them again.
        apart = prompt.example_separator
        shots, _ = join_prompt(body, columns.examples(prompt.examples, scan), len(prompt.examples))
        system = f"{prompt.system_message}{apart}" if prompt.system_message else ""
        examples = "".join(f"{text}{apart}" for text in shots.to_pylist())
        head = [PromptPiece(system, loss=learns_all(prompt)), PromptPiece(examples)]
        self._specials = sum(scan.times(piece.text) for piece in (*head, *body))
        marked = with_loss(body, prompt, files.eos_token if self._specials else None)
        self._pieces = (*(piece for piece in head if piece.text), *marked)
        self._columns = columns
        self.control_tokens: Final = self._specials > 0
        self.needed: Final = tuple(name for name in names if name not in prompt.optional_columns)
        """Columns that every row must have; a plan looks for them in the first rows."""
        self.columns: Final = columns.fields
        refused = _refuses(special_tokens_in_text, self.control_tokens)
        self._scan = SpecialScan(files.special_tokens if refused else ())

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        A row is bad if a value is missing (``null_column``) or no text, number or boolean (``not_a_string``), if the
        answer is empty (``empty_label``), or if it spells a special token where that is refused.
        """
        values, faults = self._columns.values(rows, self._scan)
        text, spans = join_prompt(self._pieces, values, len(rows))
        if self._scan.pattern:
            found = np.zeros(len(text), np.int64)
            where, counts = self._scan.count(text)
            found[where] = counts
            told = "a value and the template's text beside it make a special token together"
            wrong = np.flatnonzero(found != self._specials).tolist()
            faults = dict.fromkeys(wrong, Fault("special_token_in_text", told)) | faults
        return Rendered(text=text, origin=np.arange(len(rows)), spans=spans).without(faults)


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
        self.needed: Final = tuple(name for name in names if name not in prompt.optional_columns)
        """Columns that every row must have; a plan looks for them in the first rows."""
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
        self._known = b""
        """What the turns before a row's own are rendered as, where these alone bear loss."""
        if prompt.examples and not prompt.mask_input:
            try:
                self._known = self._chat.template.render(self._head).text.encode()
            except BadRecordError as error:
                raise ConfigError(f"prompt.examples: {error}", field_path="prompt.examples") from error

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
        turns: list[list[Turn]] = []
        for row in rows:
            said = self._prompt.separator.join(filter(None, (texts[row] for texts in inputs)))
            turns.append([{"role": "user", "content": said}, {"role": "assistant", "content": answers[row]}])
        return turns

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


def open_prompt(prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> Renderer:
    """Return what renders `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    if prompt.conversation is not None:
        chat = ResolvedChat(
            template=prompt.chat_template or chosen_template(None, files),
            messages_field=prompt.conversation,
            loss="assistant" if prompt.mask_input else "all",
        )
        return ChatRenderer(chat, files, "encode" if special_tokens_in_text == "encode" else "fail")
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
