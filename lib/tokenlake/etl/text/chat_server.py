"""The process that renders templates, and finds where a rendered conversation bears loss.

A line of JSON requests comes in, a line of JSON goes out for every one of them. A template is opened once, under a
name; requests for it render conversations, or ask for a skeleton. Whatever a template does, it does in here: the kernel
ends this process after too much time, and memory that it is refused ends it as well. Who asked sees that from outside
(:mod:`tokenlake.etl.text.chat_template`).

What bears loss is what the assistant says: its words, its reasoning, the calls it makes, and the token that ends its
turn; not the prompt that makes it speak (``<|im_start|>assistant``), nor blanks between that end and the next turn. A
turn whose weight is 0 bears none (:mod:`tokenlake.etl.text.chat_weights`).

A template with ``{% generation %}`` marks that itself. With any other, turns are found by
:mod:`tokenlake.etl.text.chat_turns`, once for all conversations of a shape (:mod:`tokenlake.etl.text.chat_shapes`). A
conversation is given to the template in the first of its forms (:mod:`tokenlake.etl.text.chat_forms`) of
which the template leaves nothing out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Final, cast, final

import jinja2

from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError, to_json
from tokenlake.etl.text.chat_forms import cleaned, forms, is_special
from tokenlake.etl.text.chat_protocol import (
    FORGED,
    LIMIT,
    NO_DATA,
    OUT_OF_MEMORY,
    CharSpan,
    Limits,
    Message,
    RenderedChat,
    Skeleton,
    Slot,
    template_error,
)
from tokenlake.etl.text.chat_sandbox import (
    ERROR,
    NAME,
    OPEN,
    REFUSED,
    LookedInto,
    NoData,
    Output,
    Sandbox,
    Symbol,
    forbid_text_of_jinjas_own,
    mark,
    with_clock,
)
from tokenlake.etl.text.chat_shapes import Shapes
from tokenlake.etl.text.chat_turns import (
    NOT_RENDERED,
    THINKING_SWITCHES,
    TurnFinder,
    assistant_turns,
    generation_prompt,
    without,
)
from tokenlake.etl.text.chat_weights import ASSISTANT, is_learned
from tokenlake.etl.text.plain_data import texts_in, with_texts

_MARK: Final = re.compile(f"{OPEN}([0-3])([0-9]+)\ue001")
_SPLIT: Final = re.compile(f"({OPEN}[0-3][0-9]+\ue001)")
Render = Callable[[Sequence[Message]], RenderedChat]
Make = Callable[[Sequence[Message]], RenderedChat]
_JOINING: Final = re.compile(r"\b(?:replace|join|striptags)\b")
_BREAK: Final = "\u2060"  # a word joiner: no blank, so that nothing strips it


@final
class Program:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    Args:
        text: the Jinja template.
        variables: of every conversation, the tokenizer's named tokens among them.
        limits: of one rendering.
        learned: a variable that is marked wherever it is output, in a template without marks of its own.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(
        self, text: str, variables: Mapping[str, Any], limits: Limits, learned: str | None = None
    ) -> None:
        self.text: Final = text
        self._variables, self._limits = with_clock(variables), limits
        self._sandbox = Sandbox()
        self._bound()
        self.compiled: Final = self._sandbox.compiled(text, learned)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **variables: Any
    ) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: dicts of plain data (JSON), as ``role`` and ``content``, as the template gets them.
            tools: JSON schemas of what may be called.
            variables: of this conversation; ``add_generation_prompt`` is False unless given.

        Raises:
            BadRecordError: the template fails on this conversation (``template_error``), refuses it
                (``template_refused``), or does more than it may (``template_limit``).
            ConfigError: the template asks for today's date, and none was given.
        """
        given = {
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
            **self._variables,
            **with_clock(variables),
        }
        return self._made(given)

    def render_row(self, row: Mapping[str, Any]) -> RenderedChat:
        """Render a row, whose fields are variables; raises as :meth:`render`."""
        return self._made({**row, **self._variables})

    def _made(self, given: dict[str, Any]) -> RenderedChat:
        self._bound()
        try:
            return self._render(given)
        except (BadRecordError, ConfigError, MemoryError):
            raise
        except Exception as error:
            told = (
                str(error) if isinstance(error, jinja2.UndefinedError) else f"{type(error).__name__}: {error}"
            )
            told = "it calls itself without end" if isinstance(error, RecursionError) else told
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno or 1 for frame in frames if frame.filename == NAME]
            line = self.compiled.template.get_corresponding_lineno(lines[-1]) if lines else 1
            raise template_error(BadRecordError, f" fails in line {line}: {told}", reason=ERROR) from error

    def _bound(self) -> None:
        """Have the kernel end this process where the next rendering takes too long, or refuse it more memory."""
        seconds = int(time.process_time()) + 1 + self._limits.seconds
        for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, self._limits.memory)):
            hard = resource.getrlimit(kind)[1]
            with contextlib.suppress(OSError, ValueError):  # not every system bounds memory
                resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    def _render(self, variables: dict[str, Any]) -> RenderedChat:
        parts: list[str] = []
        output = self._sandbox.output = Output()
        for part in self.compiled.template.root_render_func(self.compiled.template.new_context(variables)):
            parts.append(part)
            output.length += len(part)
            if output.length > self._limits.text:
                raise template_error(
                    BadRecordError, f" took more than {self._limits.text:,} characters", reason=LIMIT
                )
        if output.starts:
            raise template_error(
                BadRecordError,
                " leaves a generation block before its end (break, continue)",
                reason=ERROR,
            )
        return RenderedChat("".join(parts), tuple(output.marked))


_SEARCH_SECONDS: Final = 60
"""Of a processor, to find the turns of one conversation."""


@final
class _SearchEndedError(Exception):
    """The search for the turns of a conversation takes too long; no error of a template, which the search expects."""


@final
class OpenedTemplate:
    """A template with its settings, and what bears loss in what it renders."""

    def __init__(self, opening: dict[str, Any]) -> None:
        variables = opening["variables"]
        self.program = Program(opening["text"], variables, Limits(**opening["limits"]), opening["learned"])
        self._loss: str | None = opening["loss"]
        self._prompted = bool(variables.get("add_generation_prompt"))  # renderings end with a prompt
        tokens: list[str] = opening["special_tokens"]
        self._guarded: bool = opening["guarded"]
        self._tokens = tokens
        marks = OPEN in opening["text"] + json.dumps(variables, ensure_ascii=False)
        self._has_skeletons = not (self.program.compiled.captures or marks)
        self._search_ends = math.inf  # on the clock of the process
        self._learns_empty_reasoning: bool = opening["learn_empty_reasoning"]
        self._masks_reasoning: bool = opening["mask_reasoning"]
        self._shapes = Shapes(partial(self._text, add_generation_prompt=self._prompted))

    def answer(self, op: str, *given: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            BadRecordError: the template, or what bears loss, cannot be had of what is given.
        """
        self._search_ends = time.process_time() + _SEARCH_SECONDS
        try:
            return self._answer(op, *given)
        except RecursionError as error:
            raise BadRecordError("the conversation is nested too deep", reason=ERROR) from error
        except _SearchEndedError as error:
            raise BadRecordError(
                f"it took more than {_SEARCH_SECONDS} seconds of a processor to find the turns of the conversation in "
                "its rendering, which is rendered again for each of them; expected fewer turns, or {% generation %} in "
                "the template",
                reason=LIMIT,
            ) from error

    def _answer(self, op: str, *given: Any) -> dict[str, Any]:
        if op == "skeleton":
            found = skeleton(given[0], self.program.render, self._with_loss) if self._has_skeletons else None
            return {} if found is None else dataclasses.asdict(found)
        if op == "render_with_loss":
            return dataclasses.asdict(self._with_loss(*given))
        if op == "render_row":
            made = self.program.render_row(given[0])
            if given[1]:
                self._forgery.check(made.text, given[0], self.program.render_row)
            return dataclasses.asdict(made)
        messages, tools, variables = given
        if op == "render_whole":
            return dataclasses.asdict(self._whole(messages, tools, variables))
        given_messages = [cleaned(message) for message in messages]
        return dataclasses.asdict(self.program.render(given_messages, tools, **variables))

    @cached_property
    def _finder(self) -> TurnFinder:
        names = self.program.compiled.names
        prompt = generation_prompt(self._text)
        blocks: list[str] = []
        for switch in THINKING_SWITCHES:
            if self._learns_empty_reasoning or switch not in names:
                continue
            unthinking = generation_prompt(self._text, **{switch: False})
            block = unthinking[len(prompt) :]
            if prompt and unthinking.startswith(prompt) and block.strip():
                blocks.append(block)
        return TurnFinder(
            render=self._text,
            endings=tuple(filter(None, self._tokens)),
            has_prompt="add_generation_prompt" in self.program.text,
            is_prompted=self._prompted,
            prompt=prompt,
            empty_blocks=tuple(blocks),
            masks_reasoning=self._masks_reasoning,
        )

    @cached_property
    def _forgery(self) -> _ForgeryScan:
        return _ForgeryScan(self.program, self._tokens, beside=self._loss is None)

    def _with_loss(self, messages: Sequence[Message], tools: list[Any] | None = None) -> RenderedChat:
        """Render a conversation.

        Raises:
            BadRecordError: as :meth:`Program.render`; nothing bears loss (``nothing_to_learn``), or all of it does
                (``everything_to_learn``), it cannot be told what does (``turns_not_found``), the template leaves out
                what a turn says (``not_rendered``) or puts a special token together (``special_token_in_text``).
        """
        return _in_first_form(messages, lambda form: self._form_with_loss(form, tools))

    def _whole(
        self, messages: Sequence[Message], tools: list[Any] | None, variables: dict[str, Any]
    ) -> RenderedChat:
        """Render a conversation of which nothing may be left out, without a look at what bears loss."""
        is_prompted = bool(variables.get("add_generation_prompt"))
        finder = dataclasses.replace(self._finder, is_prompted=is_prompted)

        def render(form: Sequence[Message]) -> RenderedChat:
            made = self.program.render(form, tools, **variables)
            finder.require_rendered(made.text, form, tools, _special_turns(form))
            return made

        return _in_first_form(messages, render)

    def _form_with_loss(self, messages: Sequence[Message], tools: list[Any] | None) -> RenderedChat:
        """Render a conversation in one form; BadRecordError as :meth:`_with_loss`."""
        made = self._render(messages, tools, prompt=self._prompted)
        text = made.text
        if self._loss is None:
            self._require_rendered(text, messages, tools, _special_turns(messages))
            return made
        if self._guarded:
            again = partial(self._render, prompt=self._prompted)
            self._forgery.check(text, [messages, tools], lambda given: again(*given))
        if self._loss == "all":
            return self._all(text, messages, tools)
        spoken = [*assistant_turns(messages)]
        learned = [index for index in spoken if is_learned(messages[index]) is not False]
        if self.program.compiled.marked:
            self._require_rendered(text, messages, tools, _special_turns(messages))
            loss = self._marked_spans(made, messages, tools, learned)
        else:
            loss = self._turns(text, messages, tools, learned)
            others = [index for index in _special_turns(messages) if index not in learned]
            self._require_rendered(text, messages, tools, others)
        if not spoken:
            raise BadRecordError("the conversation has no turn of an assistant", reason="nothing_to_learn")
        if not learned:
            raise BadRecordError(
                "no turn of the assistant is to be learned: each has weight: 0, train: false, loss: false or masked: "
                "true; take the row out, or one of these fields",
                reason="nothing_to_learn",
            )
        if not loss:
            told = "the chat template marks nothing as the assistant's"
            raise BadRecordError(told, reason="nothing_to_learn")
        if sum(stop - start for start, stop in loss) == len(text):
            raise BadRecordError(
                "the whole text is the assistant's, so that a loss mask would say nothing; set chat.loss: all if that "
                "is meant",
                reason="everything_to_learn",
            )
        return RenderedChat(text, loss)

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool = False
    ) -> RenderedChat:
        return self.program.render(messages, tools, add_generation_prompt=prompt)

    def _text(self, messages: Sequence[Message], tools: list[Any] | None, **variables: Any) -> str:
        """Render a conversation once more, to find its turns."""
        if time.process_time() > self._search_ends:
            raise _SearchEndedError
        return self.program.render(messages, tools, **variables).text

    def _require_rendered(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, turns: Sequence[int]
    ) -> None:
        """Require that the template leaves out nothing that some turns say."""

        def check(rendered: str, given: Sequence[Message]) -> tuple[CharSpan, ...]:
            self._finder.require_rendered(rendered, given, tools, turns)
            return ()

        if turns:
            self._shapes.spans(f"rendered {turns}", text, messages, tools, check)

    def _turns(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, turns: Sequence[int]
    ) -> tuple[CharSpan, ...]:
        """Return what bears loss of some of the assistant's turns, in a template without marks."""

        def find(rendered: str, given: Sequence[Message]) -> tuple[CharSpan, ...]:
            return self._finder.spans(rendered, given, tools, turns)

        return self._shapes.spans(f"turns {turns}", text, messages, tools, find)

    def _marked_spans(
        self, made: RenderedChat, messages: Sequence[Message], tools: list[Any] | None, learned: Sequence[int]
    ) -> tuple[CharSpan, ...]:
        """Return what the template marks, without turns that are not to be learned, and without masked reasoning."""
        spans = list(made.loss)
        for index in assistant_turns(messages):
            is_masked = index not in learned
            if not is_masked and not self._masks_reasoning:
                continue
            words = self._finder.words(made.text, messages, tools, index)
            if words is None:
                continue
            left: list[CharSpan] = []
            for span in spans:
                hole: CharSpan | None = None
                if span[0] < words[1] and words[0] < span[1]:
                    hole = span
                    if not is_masked:
                        hole = self._finder.reasoning(made.text, messages, tools, index, span)
                left += without(span, hole)
            spans = left
        return tuple(spans)

    def _all(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> RenderedChat:
        """Return the text with loss on all of it but turns that are not to be learned, and masked reasoning."""
        if not text:
            raise BadRecordError("the chat template renders no text", reason="nothing_to_learn")
        self._require_rendered(text, messages, tools, _special_turns(messages))
        holes: list[CharSpan] = []
        for index, message in enumerate(messages):
            is_assistant = message.get("role") == ASSISTANT
            is_masked = is_learned(message) is False
            is_thinking = is_assistant and self._masks_reasoning
            if not is_masked and not is_thinking:
                continue
            if is_assistant:
                finder = dataclasses.replace(self._finder, masks_reasoning=False)
                (turn,) = finder.spans(text, messages, tools, [index])
                hole = turn if is_masked else self._finder.reasoning(text, messages, tools, index, turn)
            else:
                hole = self._finder.words(text, messages, tools, index)
            holes += [] if hole is None else [hole]
        spans: list[CharSpan] = [(0, len(text))]
        for hole in holes:
            spans = [piece for span in spans for piece in without(span, hole)]
        if not spans:
            raise BadRecordError("no turn is to be learned", reason="nothing_to_learn")
        return RenderedChat(text, tuple(spans))


_OTHER_FORM: Final = (ERROR, REFUSED, NOT_RENDERED)
"""Reasons for which a conversation may be rendered in another form."""


def _in_first_form(messages: Sequence[Message], make: Make) -> RenderedChat:
    """Return what is made of the first form of a conversation that the template takes.

    Raises:
        BadRecordError: it takes none; the error says what is left out, where it is that.
    """
    errors: list[BadRecordError] = []
    for form in forms(messages):
        try:
            return make(form)
        except BadRecordError as error:
            if error.details.get("reason") not in _OTHER_FORM:
                raise
            errors.append(error)
    lost = [error for error in errors if error.details.get("reason") == NOT_RENDERED]
    raise (lost or errors)[0]


def _special_turns(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the turns that have more than words."""
    return [index for index, message in enumerate(messages) if is_special(message)]


@final
class _ForgeryScan:
    """Finds special tokens that a template puts together of a row's texts, though none of them is allowed to spell one.

    A template that takes something out of a text joins what was around it: without ``<image>``, ``<|im_<image>end|>``
    is a token that ends a turn. One that puts words beside a text may do the same where they meet. So a row with
    something that could begin, end or be a special token is rendered again with just that broken up; if that changes
    how many special tokens the text has, one was put together.

    Args:
        beside: whether the template's words may stand beside a text without a token of its own between them.
    """

    def __init__(self, program: Program, tokens: Sequence[str], *, beside: bool) -> None:
        longest_first = sorted(filter(None, tokens), key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        named = [token for token in longest_first if len(token) > 1]
        parts = set[str]()
        if _JOINING.search(program.text):
            # What is taken out may follow any character of a token, the first too.
            parts |= {f"(?<={re.escape(token[0])})" for token in named}
        for token in named if beside else ():
            cuts = [(re.escape(token[:size]), re.escape(token[size:])) for size in range(1, len(token))]
            parts |= {rf"(?<={before})\Z" for before, _ in cuts} | {rf"\A(?={after})" for _, after in cuts}
            parts.add(rf"(?<={cuts[0][0]})(?={cuts[0][1]})")
        self._places = re.compile("|".join(sorted(parts)) or "(?!)")

    def check(self, text: str, given: Any, render: Callable[[Any], RenderedChat]) -> None:
        """Raise BadRecordError if `text`, which `render` makes of what is given, has a token that was put together."""
        if not any(map(self._places.search, texts_in(given))):
            return
        other = render(with_texts(given, partial(self._places.sub, _BREAK))).text
        if len(self._tokens.findall(text)) != len(self._tokens.findall(other)):
            raise template_error(
                BadRecordError,
                " makes a special token of the row's own texts, by themselves or with what stands "
                "beside them, which would become a control token; take it out, or set special_tokens_in_text: encode "
                "to allow it",
                reason=FORGED,
            )


def skeleton(roles: Sequence[str], run: Render, render: Render) -> Skeleton | None:
    """Return the skeleton of conversations of these roles; None where each must be rendered by itself.

    Args:
        run: the template itself.
        render: the same, with the spans that bear loss.
    """
    symbols = [{"role": role, "content": Symbol((at, 0))} for at, role in enumerate(roles)]
    texts = [{"role": role, "content": mark(at, 0)} for at, role in enumerate(roles)]
    try:
        made, whole = run(symbols).text, render(texts)
    except (LookedInto, TokenlakeError):
        return None
    unstripped = _MARK.sub(lambda found: mark(int(found[2]), 0), made)
    return _cut(made, whole.loss) if unstripped == whole.text else None


def _cut(made: str, loss: Sequence[CharSpan]) -> Skeleton | None:
    """Cut the words where spans begin and end; None where one does so inside a content."""
    edges = sorted({edge for span in loss for edge in span})
    parts: list[str | Slot] = []
    flags: list[bool] = []
    at = 0
    for part in filter(None, _SPLIT.split(made)):
        found, end = _MARK.fullmatch(part), at + len(part)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        if found and len(cuts) > 2:
            return None
        for first, last in pairwise(cuts):
            parts.append((int(found[2]), int(found[1])) if found else part[first - at : last - at])
            flags.append(any(start <= first and last <= stop for start, stop in loss))
        at = end
    return Skeleton(tuple(parts), tuple(flags))


def main() -> None:
    """Answer until the input ends."""
    forbid_text_of_jinjas_own()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    opened: dict[str, OpenedTemplate] = {}
    try:
        for line in sys.stdin.buffer:
            for name, op, *given in json.loads(line, object_hook=_given):
                try:
                    if op == "open":
                        opened[name] = OpenedTemplate(given[0])
                        program = opened[name].program
                        answer: dict[str, Any] = {
                            "marked": program.compiled.marked,
                            "names": program.compiled.names,
                        }
                    else:
                        answer = opened[name].answer(op, *given)
                except TokenlakeError as error:
                    answer = {"error": to_json(error)}
                answers.write(json.dumps(answer).encode() + b"\n")
                answers.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _given(fields: dict[str, Any]) -> Any:
    """Return an object of a request, or what stands for a value that is no JSON."""
    return NoData(cast("str", fields[NO_DATA])) if NO_DATA in fields else fields
