"""Prompts by a program of Jinja: conditions, loops and filters, in the sandbox that chat templates run in.

A template is one if it has ``{% ... %}``, ``{# ... #}`` or an expression in ``{{ ... }}`` that is more than a column's
name. Fields of the row are its variables: lists can be looped over, numbers compared. Loss is on what ``{{ label }}``
outputs, or, where the template has ``{% generation %}``, on what that marks. A column that is null or missing makes a
bad record, unless it is optional: then it is an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.values import did_you_mean
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.template import CharSpan, ChatTemplate, RenderedChat
from tokenlake.text.chat.tokenizer_template import named_tokens
from tokenlake.text.prompt.template import NAME, PromptColumns, null_fault, problem
from tokenlake.text.rendering import Rendered
from tokenlake.text.transform import fault_of
from tokenlake.tokenizers.arrays import Spans, byte_spans
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles

_ARROW: Final[Any] = pa
_EXPRESSION: Final = re.compile(r"\{\{-?\s*([^\W\d][^{}]*?)\s*-?\}\}")
_BREAK: Final = "\u2060"  # a word joiner: no blank, so that no filter takes it away
_FORGED: Final = Fault(
    "special_token_in_text",
    "a value of the row makes a special token, by itself or with the template's text beside it, which would become a "
    "control token; take it out, or set special_tokens_in_text: encode to allow it",
)


def is_program(template: str) -> bool:
    """Return whether a template is more than text with columns."""
    if "{%" in template or "{#" in template:
        return True
    return any(NAME.fullmatch(inside) is None for inside in _EXPRESSION.findall(template))


@final
class JinjaPromptRenderer:
    """Renders prompts of the format ``custom`` whose template is a program.

    Args:
        special_tokens_in_text: as of :class:`tokenlake.text.prompt.renderer.PromptRenderer`.

    Raises:
        ConfigError: the template cannot be compiled, does not fit its columns, or an example cannot be rendered.
    """

    def __init__(self, prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        named = named_tokens(files)
        self._prompt, self._learned = prompt, prompt.label_column if prompt.mask_input else None
        self._template = _opened(prompt.template or "", named, self._learned)
        self._names = tuple(name for name in self._template.names if name not in named)
        self._check_columns()
        self.needed: Final = tuple(name for name in self._names if name not in prompt.optional_columns)
        """Columns that every row must have."""
        self.columns: Final = self._names
        scan = SpecialScan(files.special_tokens)
        spelled = "".join((prompt.template or "", prompt.system_message or "", prompt.example_separator))
        self.control_tokens: Final = bool(scan.times(spelled) or set(named) & set(self._template.names))
        guarded = special_tokens_in_text == "fail" or (
            self.control_tokens and special_tokens_in_text != "encode"
        )
        self._guard = _Guard(files.special_tokens) if guarded else None
        self._eos = files.eos_token if self.control_tokens else None
        self._head = self._beginning()

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts; rows are bad as by the other renderers, and where the template fails on them."""
        values, faults = self._values(rows)
        good = [row for row in range(len(rows)) if row not in faults]
        texts: dict[int, RenderedChat] = {}
        for row, made in zip(good, self._rendered([values[row] for row in good]), strict=True):
            if isinstance(made, Fault):
                faults[row] = made
            else:
                texts[row] = made
        return Rendered(
            text=_ARROW.array([each.text for each in texts.values()], pa.large_string()),
            origin=np.array(list(texts), np.int64),
            spans=Spans.of([byte_spans(each.text, each.loss) for each in texts.values()]),
            bad=tuple(sorted(faults.items())),
        )

    def _check_columns(self) -> None:
        """Require that the template uses the columns that are named, and no other."""
        prompt, used = self._prompt, self._names
        known = (*prompt.input_columns, *([prompt.label_column] if prompt.label_column else []))
        for field in ("input_columns", "optional_columns"):
            for name in getattr(prompt, field):
                if name not in used:
                    raise problem(
                        field, f"{name!r} is not used in the template{did_you_mean(name, used)}", name
                    )
        for name in used if prompt.input_columns else ():
            if name not in known:
                listed = ", ".join(map(repr, known))
                told = f"uses {name!r}, which is neither in input_columns nor the label_column ({listed})"
                raise problem("template", f"{told}{did_you_mean(name, known)}", name, expected=listed)
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

    def _rendered(self, rows: Sequence[Mapping[str, Any]]) -> list[RenderedChat | Fault]:
        made = self._template.render_rows(rows)
        found: list[RenderedChat | Fault] = []
        forged = self._guard.forged(self._template, rows, made) if self._guard else set[int]()
        for at, each in enumerate(made):
            if isinstance(each, RenderedChat):
                found.append(_FORGED if at in forged else self._with_loss(each))
            elif isinstance(each, BadRecordError):
                fault = fault_of(each)
                found.append(Fault(fault.reason, fault.detail.replace("the chat template", "the template")))
            else:
                raise each
        return found

    def _with_loss(self, made: RenderedChat) -> RenderedChat | Fault:
        """Return a text behind the head, with its loss: what is marked and the EOS after it, or all."""
        body = made.text
        marked = self._template.marked and self._prompt.mask_input
        spans = list(made.loss) if marked else [(0, len(body))]
        if not body or not spans:
            return Fault("nothing_to_learn", "the template outputs nothing of this row that bears loss")
        if marked and self._eos is not None:
            spans += self._ending(body, spans[-1][1])
        shift = len(self._head)
        return RenderedChat(self._head + body, tuple((start + shift, stop + shift) for start, stop in spans))

    def _ending(self, body: str, stop: int) -> list[CharSpan]:
        """Return where the EOS is that the template spells after the label."""
        assert self._eos is not None
        at = body.find(self._eos, stop)
        if at < 0:
            return []
        return [(stop if not body[stop:at].strip() else at, at + len(self._eos))]

    def _beginning(self) -> str:
        """Return system message and examples, which come before every prompt and bear no loss."""
        prompt, apart = self._prompt, self._prompt.example_separator
        self._head = ""
        shots = self.render(Rows(objects=[dict(row) for row in prompt.examples])) if prompt.examples else None
        if shots is not None and shots.bad:
            index, fault = shots.bad[0]
            raise problem(f"examples.{index}", fault.detail, repr(dict(prompt.examples[index])))
        texts = [] if shots is None else cast("list[str]", shots.text.to_pylist())
        return "".join(f"{text}{apart}" for text in (prompt.system_message, *texts) if text)


def _opened(text: str, variables: Mapping[str, str], learned: str | None) -> ChatTemplate:
    try:
        return ChatTemplate(text, variables, learned=learned)
    except ConfigError as error:
        raise problem("template", str(error).replace("the chat template", "the template"), text) from error


@final
class _Guard:
    """Finds rows whose values make a special token, by themselves or with what stands beside them.

    A row with something that could begin, end or be one is rendered again with just that broken up; if the text then
    has another number of special tokens, the row made one.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._scan = SpecialScan(tokens)
        named = [token for token in tokens if len(token) > 1]
        begins = {token[:size] for token in named for size in range(1, len(token))}
        ends = {token[size:] for token in named for size in range(1, len(token))}
        parts = [rf"(?<={re.escape(part)})\Z" for part in sorted(begins)]
        parts += [rf"\A(?={re.escape(part)})" for part in sorted(ends)]
        parts += [rf"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in sorted(named)]
        self._places = re.compile("|".join(parts) or "(?!)")

    def forged(
        self, template: ChatTemplate, rows: Sequence[Mapping[str, Any]], made: Sequence[Any]
    ) -> set[int]:
        """Return which of the rows, rendered as `made`, make a special token."""
        broken = {
            at: self._broken(row) for at, row in enumerate(rows) if any(map(self._places.search, _texts(row)))
        }
        again = template.render_rows(broken.values())
        return {
            at
            for at, other in zip(broken, again, strict=True)
            if isinstance(made[at], RenderedChat)
            and (
                not isinstance(other, RenderedChat)
                or self._scan.times(made[at].text) != self._scan.times(other.text)
            )
        }

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._places.sub(_BREAK, value)
        if isinstance(value, Mapping):
            return {name: self._broken(each) for name, each in cast("Mapping[str, Any]", value).items()}
        return [self._broken(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in plain data, names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        inner = cast("Any", value)
        for each in (*inner.keys(), *inner.values()) if isinstance(value, Mapping) else inner:
            yield from _texts(each)
