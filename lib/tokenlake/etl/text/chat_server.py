"""The process that renders templates, and finds the spans that count toward the loss.

A line of JSON requests comes in, and a line of JSON goes out for every one of them. A
template is opened once, under a name; requests with this name render conversations, or
ask for a skeleton. All that a template does, it does in this process: the kernel ends
it after too much time, and memory that it is refused ends it as well. The caller sees
that from outside (:mod:`tokenlake.etl.text.render_process`).

The assistant's turns count toward the loss: its words, its reasoning, the calls it
makes, and the token that ends its turn; not the prompt that makes it speak
(``<|im_start|>assistant``), nor blanks between that end and the next turn. A turn whose
weight is 0 does not (:mod:`tokenlake.etl.text.chat_weights`).

A template with ``{% generation %}`` marks these spans itself. For others,
:mod:`tokenlake.etl.text.chat_turns` finds the turns, once for all conversations of a
shape (:mod:`tokenlake.etl.text.chat_shapes`). A conversation is given to the template
in the first of its forms (:mod:`tokenlake.etl.text.chat_forms`) of which the template
leaves nothing out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError, TokenlakeError, to_json
from tokenlake.etl.text.chat_forms import cleaned, forms, is_special
from tokenlake.etl.text.chat_program import Program
from tokenlake.etl.text.chat_protocol import (
    LIMIT,
    NO_DATA,
    OUT_OF_MEMORY,
    CharSpan,
    Limits,
    Message,
    RenderedChat,
)
from tokenlake.etl.text.chat_sandbox import (
    ERROR,
    OPEN,
    REFUSED,
    NoData,
    forbid_text_of_jinjas_own,
)
from tokenlake.etl.text.chat_shapes import Shapes
from tokenlake.etl.text.chat_skeleton import skeleton
from tokenlake.etl.text.chat_turns import (
    NOT_RENDERED,
    THINKING_SWITCHES,
    TurnFinder,
    assistant_turns,
    generation_prompt,
    without,
)
from tokenlake.etl.text.chat_weights import ASSISTANT, is_learned
from tokenlake.etl.text.forgery_scan import ForgeryScan

RenderForm = Callable[[Sequence[Message]], RenderedChat]

_SEARCH_SECONDS: Final = 60
"""Processor seconds to find the turns of one conversation."""
_OTHER_FORM_REASONS: Final = (ERROR, REFUSED, NOT_RENDERED)
"""Reasons for which a conversation may be rendered in another form."""


@final
class _SearchEndedError(Exception):
    """The search for the turns of a conversation takes too long.

    The search does not catch this error.
    """


@final
class ServedTemplate:
    """A template with its settings, which answers requests.

    Args:
        settings: Settings of :class:`tokenlake.etl.text.chat_template.ChatTemplate` by
            name.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        variables = settings["variables"]
        # The template is compiled once. An error of it is the answer to the opening.
        self.program = Program(
            settings["text"],
            variables,
            Limits(**settings["limits"]),
            settings["learned"],
        )
        self._loss: str | None = settings["loss"]
        self._tokens: list[str] = settings["special_tokens"]
        self._is_guarded: bool = settings["guarded"]
        # Renderings end with a prompt.
        self._is_prompted = bool(variables.get("add_generation_prompt"))
        self._learns_empty_reasoning: bool = settings["learn_empty_reasoning"]
        self._masks_reasoning: bool = settings["mask_reasoning"]
        # A skeleton needs marks that only contents can make, and a template that cannot
        # read its own output.
        own_text = settings["text"] + json.dumps(variables, ensure_ascii=False)
        self._has_skeletons = (
            OPEN not in own_text and not self.program.compiled.captures
        )
        self._search_end = math.inf  # in processor seconds of this process
        self._shapes = Shapes(
            partial(self._text, add_generation_prompt=self._is_prompted)
        )

    def answer(self, operation: str, *arguments: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            BadRecordError: The conversation cannot be rendered, or the spans that count
                toward the loss not be found.
        """
        # A limit for all renderings of one request, beside that of each one.
        self._search_end = time.process_time() + _SEARCH_SECONDS
        try:
            return self._answer(operation, arguments)
        except RecursionError as error:
            raise BadRecordError(
                "the conversation is nested too deeply", reason=ERROR
            ) from error
        except _SearchEndedError as error:
            raise BadRecordError(
                f"it took more than {_SEARCH_SECONDS} seconds of a processor to find the turns of the conversation "
                "in its rendering, which is rendered again for each of them; expected fewer turns, or {% "
                "generation %} in the template",
                reason=LIMIT,
            ) from error

    def _answer(self, operation: str, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the answer to a request, by its operation.

        :class:`ChatTemplate` has a method for each operation.
        """
        if operation == "skeleton":
            (roles,) = arguments
            return self._skeleton(roles)
        if operation == "render_with_loss":
            messages, tools = arguments
            rendered = self._with_loss(messages, tools)
        elif operation == "render_row":
            # The fields of a row are variables of the template.
            row, is_guarded = arguments
            rendered = self.program.render_row(row)
            if is_guarded:
                self._forgery_scan.check(rendered.text, row, self.program.render_row)
        elif operation == "render_whole":
            messages, tools, variables = arguments
            rendered = self._whole(messages, tools, variables)
        else:
            # Plain rendering: the caller does not ask whether anything is left out.
            messages, tools, variables = arguments
            cleaned_messages = [cleaned(message) for message in messages]
            rendered = self.program.render(cleaned_messages, tools, **variables)
        return dataclasses.asdict(rendered)

    def _skeleton(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the skeleton of conversations of some roles; {} where it has none."""
        if not self._has_skeletons:
            return {}
        roles_skeleton = skeleton(roles, self.program.render, self._with_loss)
        if roles_skeleton is None:
            return {}
        return dataclasses.asdict(roles_skeleton)

    @cached_property
    def _finder(self) -> TurnFinder:
        """The finder of turns in renderings of this template."""
        # Empty texts of special tokens would end a turn anywhere.
        return TurnFinder(
            render=self._text,
            endings=tuple(filter(None, self._tokens)),
            has_prompt="add_generation_prompt" in self.program.text,
            is_prompted=self._is_prompted,
            prompt=generation_prompt(self._text),
            empty_blocks=self._empty_blocks(),
            masks_reasoning=self._masks_reasoning,
        )

    def _empty_blocks(self) -> tuple[str, ...]:
        """Return the empty blocks of reasoning that prompts supply.

        A prompt has one where a model is not to think.
        """
        if self._learns_empty_reasoning:
            return ()
        prompt = generation_prompt(self._text)
        if not prompt:
            # Without a prompt nothing supplies a block.
            return ()
        blocks: list[str] = []
        for switch in THINKING_SWITCHES:
            if switch not in self.program.compiled.names:
                continue
            # The block is the text that the prompt gains when reasoning is switched
            # off.
            unthinking_prompt = generation_prompt(self._text, **{switch: False})
            block = unthinking_prompt[len(prompt) :]
            if unthinking_prompt.startswith(prompt) and block.strip():
                blocks.append(block)
        return tuple(blocks)

    @cached_property
    def _forgery_scan(self) -> ForgeryScan:
        # Beside a conversation's texts stand tokens; beside those of a row, any words
        # of the template.
        return ForgeryScan(
            self.program.text, self._tokens, can_adjoin=self._loss is None
        )

    # ---- renderings
    # ----------------------------------------------------------------------------------------

    def _text(
        self, messages: Sequence[Message], tools: list[Any] | None, **variables: Any
    ) -> str:
        """Render a conversation once more, to find its turns."""
        if time.process_time() > self._search_end:
            raise _SearchEndedError
        return self.program.render(messages, tools, **variables).text

    def _whole(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        variables: dict[str, Any],
    ) -> RenderedChat:
        """Render a conversation of which nothing may be left out, without its loss."""
        # The finder of this template assumes the prompt of its settings; a call may
        # differ.
        is_prompted = bool(variables.get("add_generation_prompt"))
        finder = dataclasses.replace(self._finder, is_prompted=is_prompted)

        def render(form: Sequence[Message]) -> RenderedChat:
            rendered = self.program.render(form, tools, **variables)
            finder.require_rendered(rendered.text, form, tools, _special_turns(form))
            return rendered

        return _in_first_form(messages, render)

    def _with_loss(
        self, messages: Sequence[Message], tools: list[Any] | None = None
    ) -> RenderedChat:
        """Render a conversation with the spans that count toward the loss.

        Raises:
            BadRecordError: As for :meth:`Program.render`; nothing counts
                (``nothing_to_learn``), or all of it does (``everything_to_learn``), the
                spans cannot be found (``turns_not_found``), the template leaves out a
                part of a turn (``not_rendered``) or puts a special token together
                (``special_token_in_text``).
        """
        return _in_first_form(messages, partial(self._form_with_loss, tools=tools))

    def _form_with_loss(
        self, messages: Sequence[Message], tools: list[Any] | None
    ) -> RenderedChat:
        """Render a conversation in one form; errors as of :meth:`_with_loss`."""
        # 1. Text that the template leaves out is an error even where no loss is
        # requested.
        rendered = self._render(messages, tools)
        if self._loss is None:
            self._require_rendered(
                rendered.text, messages, tools, _special_turns(messages)
            )
            return rendered
        # 2. A special token that the texts of the conversation make together is forged.
        if self._is_guarded:
            self._forgery_scan.check(
                rendered.text, [messages, tools], lambda row: self._render(*row)
            )
        # 3. The spans that count toward the loss.
        if self._loss == "all":
            return self._learning_all(rendered.text, messages, tools)
        return self._learning_assistant(rendered, messages, tools)

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None
    ) -> RenderedChat:
        return self.program.render(
            messages, tools, add_generation_prompt=self._is_prompted
        )

    def _require_rendered(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        turns: Sequence[int],
    ) -> None:
        """Require that the template leaves out nothing of some turns."""

        def check(
            rendered: str, shape_messages: Sequence[Message]
        ) -> tuple[CharSpan, ...]:
            self._finder.require_rendered(rendered, shape_messages, tools, turns)
            return ()

        # Plain turns cannot lose anything that the search for spans would not notice.
        if turns:
            self._shapes.spans(f"rendered {turns}", text, messages, tools, check)

    # ---- loss on the assistant's turns
    # ---------------------------------------------------------------------

    def _learning_assistant(
        self,
        rendered: RenderedChat,
        messages: Sequence[Message],
        tools: list[Any] | None,
    ) -> RenderedChat:
        """Return a rendering with the spans of the assistant's turns that are learned."""
        text = rendered.text
        spoken_turns = list(assistant_turns(messages))
        # A turn without a verdict of its own is learned.
        learned_turns: list[int] = []
        for index in spoken_turns:
            if is_learned(messages[index]) is not False:
                learned_turns.append(index)
        special_turns = _special_turns(messages)
        if self.program.compiled.marked:
            # Marks say where the spans are, but not that every turn is rendered.
            self._require_rendered(text, messages, tools, special_turns)
            loss = self._marked_spans(rendered, messages, tools, learned_turns)
        else:
            loss = self._turn_spans(text, messages, tools, learned_turns)
            # Finding the spans of a turn has shown that it is rendered.
            other_turns: list[int] = []
            for index in special_turns:
                if index not in learned_turns:
                    other_turns.append(index)
            self._require_rendered(text, messages, tools, other_turns)
        _require_some_loss(text, loss, spoken_turns, learned_turns)
        return RenderedChat(text, loss)

    def _turn_spans(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        turns: Sequence[int],
    ) -> tuple[CharSpan, ...]:
        """Return the spans of some of the assistant's turns, by a search."""

        def find(
            rendered: str, shape_messages: Sequence[Message]
        ) -> tuple[CharSpan, ...]:
            return self._finder.spans(rendered, shape_messages, tools, turns)

        return self._shapes.spans(f"turns {turns}", text, messages, tools, find)

    def _marked_spans(
        self,
        rendered: RenderedChat,
        messages: Sequence[Message],
        tools: list[Any] | None,
        learned_turns: Sequence[int],
    ) -> tuple[CharSpan, ...]:
        """Return the spans that the template marks and that are learned.

        Turns and reasoning that are not learned are taken out of them.
        """
        text = rendered.text
        spans = list(rendered.loss)
        for index in assistant_turns(messages):
            is_masked = index not in learned_turns
            if not is_masked and not self._masks_reasoning:
                continue
            # A turn without words in the text has nothing to take out.
            words = self._finder.words(text, messages, tools, index)
            if words is None:
                continue
            # A marked span that overlaps the words of the turn belongs to it.
            # An unlearned turn takes out its whole span, a learned one its reasoning.
            remaining_spans: list[CharSpan] = []
            for span in spans:
                is_of_turn = span[0] < words[1] and words[0] < span[1]
                hole: CharSpan | None = None
                if is_of_turn and is_masked:
                    hole = span
                elif is_of_turn:
                    hole = self._finder.reasoning(text, messages, tools, index, span)
                remaining_spans += without(span, hole)
            spans = remaining_spans
        return tuple(spans)

    # ---- loss on all turns
    # ---------------------------------------------------------------------------------

    def _learning_all(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None
    ) -> RenderedChat:
        """Return a text with loss on all of it but unlearned turns and reasoning."""
        if not text:
            raise BadRecordError(
                "the chat template renders no text", reason="nothing_to_learn"
            )
        self._require_rendered(text, messages, tools, _special_turns(messages))
        # Each turn may take a hole out of the whole text.
        spans: list[CharSpan] = [(0, len(text))]
        for index, message in enumerate(messages):
            is_masked = is_learned(message) is False
            hole = self._hole(text, messages, tools, index, is_masked=is_masked)
            remaining_spans: list[CharSpan] = []
            for span in spans:
                remaining_spans += without(span, hole)
            spans = remaining_spans
        if not spans:
            raise BadRecordError(
                "no turn counts toward the loss", reason="nothing_to_learn"
            )
        return RenderedChat(text, tuple(spans))

    def _hole(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        index: int,
        *,
        is_masked: bool,
    ) -> CharSpan | None:
        """Return the part of a turn that is not learned where all others are.

        It is the turn, its reasoning, or None.
        """
        if messages[index].get("role") != ASSISTANT:
            if is_masked:
                return self._finder.words(text, messages, tools, index)
            return None
        if not is_masked and not self._masks_reasoning:
            return None
        # The span of the whole turn, in which its reasoning is searched.
        finder = dataclasses.replace(self._finder, masks_reasoning=False)
        (turn_span,) = finder.spans(text, messages, tools, [index])
        if is_masked:
            return turn_span
        return self._finder.reasoning(text, messages, tools, index, turn_span)


def _require_some_loss(
    text: str,
    loss: Sequence[CharSpan],
    spoken_turns: Sequence[int],
    learned_turns: Sequence[int],
) -> None:
    """Require that a part of a text counts toward the loss, and not all of it.

    Raises:
        BadRecordError: Nothing counts (``nothing_to_learn``), or all of it
            (``everything_to_learn``).
    """
    if not spoken_turns:
        raise BadRecordError(
            "the conversation has no turn of an assistant", reason="nothing_to_learn"
        )
    if not learned_turns:
        raise BadRecordError(
            "no turn of the assistant counts toward the loss: each has weight: 0, train: false, loss: false or "
            "masked: true; remove the row, or one of these fields",
            reason="nothing_to_learn",
        )
    if not loss:
        raise BadRecordError(
            "the chat template marks no text as the assistant's",
            reason="nothing_to_learn",
        )
    # A mask over everything is most often a template whose marks surround the
    # conversation.
    learned_size = 0
    for start, stop in loss:
        learned_size += stop - start
    if learned_size == len(text):
        raise BadRecordError(
            "the whole text is the assistant's, so the loss mask would cover everything; set chat.loss: all if that "
            "is intended",
            reason="everything_to_learn",
        )


def _in_first_form(messages: Sequence[Message], render: RenderForm) -> RenderedChat:
    """Return the rendering of the first form of a conversation that the template takes.

    Raises:
        BadRecordError: The template takes none; the error names a part that is left
            out, where that is the problem.
    """
    # A part that is left out says more about the conversation than a later failure.
    first_error: BadRecordError | None = None
    first_loss: BadRecordError | None = None
    for form in forms(messages):
        try:
            return render(form)
        except BadRecordError as error:
            # A limit or a forged token does not depend on the form.
            reason = error.details.get("reason")
            if reason not in _OTHER_FORM_REASONS:
                raise
            first_error = first_error or error
            if reason == NOT_RENDERED:
                first_loss = first_loss or error
    final_error = first_loss or first_error
    assert final_error is not None  # every conversation has a form
    raise final_error


def _special_turns(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the turns that have calls, reasoning or parts."""
    special_turns: list[int] = []
    for index, message in enumerate(messages):
        if is_special(message):
            special_turns.append(index)
    return special_turns


# ---- the process ---------------------------------------------------------------------


def main() -> None:
    """Answer requests until the input ends."""
    forbid_text_of_jinjas_own()
    # A process that the kernel ends writes no core file of up to its memory limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Answers have the standard output for themselves; a template's output goes to the
    # errors.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    templates: dict[str, ServedTemplate] = {}
    try:
        for line in sys.stdin.buffer:
            # Every answer is sent at once, so that the caller knows which request ended
            # the process.
            for name, operation, *arguments in json.loads(line, object_hook=_value_of):
                answer = _answer(templates, name, operation, arguments)
                answers.write(json.dumps(answer).encode() + b"\n")
                answers.flush()
    # Nothing can be trusted after a refused allocation; the exit code says so.
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _answer(
    templates: dict[str, ServedTemplate],
    name: str,
    operation: str,
    arguments: list[Any],
) -> dict[str, Any]:
    """Return the answer to a request, or its error."""
    try:
        if operation != "open":
            return templates[name].answer(operation, *arguments)
        templates[name] = ServedTemplate(arguments[0])
        # The names and the marks tell the caller which rows and spans to expect.
        compiled = templates[name].program.compiled
    except TokenlakeError as error:
        return {"error": to_json(error)}
    return {"marked": compiled.marked, "names": compiled.names}


def _value_of(fields: dict[str, Any]) -> Any:
    """Return an object of a request, or the value that stands for one without JSON."""
    if NO_DATA in fields:
        return NoData(cast("str", fields[NO_DATA]))
    return fields
