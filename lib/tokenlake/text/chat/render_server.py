"""The process that renders templates, and finds where a rendered conversation bears loss.

A line of JSON requests comes in, a line of JSON goes out for every one of them. A template is opened once, under a
name; requests for it render conversations, or ask for a skeleton. Whatever a template does, it does in here: the kernel
ends this process after too much time, and memory that it is refused ends it as well. Who asked sees that from outside
(:mod:`tokenlake.text.chat.template`).

What bears loss is what the assistant says: its words, the calls it makes, and the token that ends its turn; not the
prompt that makes it speak (``<|im_start|>assistant``), nor blanks between that end and the next turn.

A template with ``{% generation %}`` marks that itself. With any other, the conversation is rendered again up to each
assistant's turn, with and without it: the difference is the turn. That holds only where a rendering begins as the
shorter one does, so each is compared with the whole text, and each span must hold the turn's own words.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError, TokenlakeError, to_json
from tokenlake.text.chat.sandbox import NoData, Program, forbid_text_of_jinjas_own
from tokenlake.text.chat.skeleton import OPEN, skeleton
from tokenlake.text.chat.template import (
    FORGED,
    NO_DATA,
    OUT_OF_MEMORY,
    UNFOUND,
    CharSpan,
    Limits,
    LossOptions,
    Message,
    RenderedChat,
    shared_length,
    with_texts,
)

_OTHER_WORDS: Final = "\ue000words\ue000"
_REMEDY: Final = "mark the assistant's turns in the template with {% generation %}, or set chat.loss: all"
_JOINING: Final = re.compile(r"\b(?:replace|join|striptags)\b")
_BREAK: Final = "\u2060"  # a word joiner: no blank, so that nothing strips it


@final
class OpenedTemplate:
    """A template with its settings, and what bears loss in what it renders."""

    def __init__(self, opening: dict[str, Any]) -> None:
        variables = opening["variables"]
        self.program = Program(opening["text"], variables, Limits(**opening["limits"]), opening["learned"])
        self._options = LossOptions(**opening["loss"]) if opening["loss"] else None
        self._prompted = bool(variables.get("add_generation_prompt"))  # renderings end with a prompt
        self._has_prompt = "add_generation_prompt" in self.program.text
        tokens = self._options.special_tokens if self._options else ()
        self._endings = tuple(filter(None, tokens))  # blanks behind one that ends a turn bear no loss
        guarded = self._options is not None and self._options.guarded
        self._assembly = _AssemblyScan(self.program, tokens) if guarded else None
        marks = OPEN in opening["text"] + json.dumps(variables, ensure_ascii=False)
        self._has_skeletons = not (self.program.captures or marks)

    def answer(self, op: str, *given: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            BadRecordError: the template, or what bears loss, cannot be had of what is given.
        """
        if op == "skeleton":
            found = skeleton(given[0], self.program.render, self._with_loss) if self._has_skeletons else None
            return {} if found is None else dataclasses.asdict(found)
        if op == "render_with_loss":
            return dataclasses.asdict(self._with_loss(*given))
        if op == "render_row":
            return dataclasses.asdict(self.program.render_row(given[0]))
        messages, tools, variables = given
        return dataclasses.asdict(self.program.render(messages, tools, **variables))

    def _with_loss(self, messages: Sequence[Message], tools: list[Any] | None = None) -> RenderedChat:
        """Render a conversation.

        Raises:
            BadRecordError: as :meth:`Program.render`; nothing bears loss (``nothing_to_learn``), or all of it does
                (``everything_to_learn``), it cannot be told what does (``turns_not_found``), or the template puts a
                special token together (``special_token_in_text``).
        """
        made = self._render(messages, tools, prompt=self._prompted)
        text, loss = made.text, made.loss
        if self._options is None:
            return made
        if self._assembly is not None:
            self._assembly.check(text, messages, tools, self._prompted)
        if self._options.loss == "all":
            if not text:
                raise BadRecordError("the chat template renders no text", reason="nothing_to_learn")
            return RenderedChat(text, ((0, len(text)),))
        if not self.program.marked:
            loss = self._turns(text, messages, tools)
        if not any(message["role"] == "assistant" for message in messages):
            raise BadRecordError("the conversation has no turn of an assistant", reason="nothing_to_learn")
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

    def _turns(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> tuple[CharSpan, ...]:
        """Return the assistant's turns in `text`, the rendering of `messages` by a template without marks."""
        found: list[CharSpan] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                whole = index + 1 == len(messages) and not self._prompted
                after = text if whole else self._render(messages[: index + 1], tools).text
                found.append(self._turn(text, after, messages[: index + 1], tools))
        if any(left[1] > right[0] for left, right in pairwise(found)):
            raise BadRecordError("the assistant's turns overlap in the rendered text", reason=UNFOUND)
        return tuple(found)

    def _turn(self, text: str, after: str, messages: Sequence[Message], tools: list[Any] | None) -> CharSpan:
        """Return where the last of `messages` lies, whose rendering is `after`."""
        before = self._before(after, messages[:-1], tools)
        if not text.startswith(after):
            raise _untold(
                f"the chat template renders turn {len(messages)} in another way when others follow", messages
            )
        words = str(messages[-1].get("content") or "").strip()
        start, end = before, len(after.rstrip())
        if not self._has_prompt and words and not after[before:].lstrip().startswith(words):
            # What stands before the assistant's words is no part of the turn; no prompt tells it here.
            other = [*messages[:-1], {**messages[-1], "content": _OTHER_WORDS}]
            begun, found, _ = self._render(other, tools).text.partition(_OTHER_WORDS)
            if not found or not after.startswith(begun + words):
                raise BadRecordError(
                    f"it cannot be told where in turn {len(messages)} the assistant begins to speak: {_REMEDY}",
                    reason=UNFOUND,
                )
            start = len(begun)
        stop = end if end > before and after.endswith(self._endings, before, end) else len(after)
        if start >= stop or words not in after[start:stop]:
            raise BadRecordError(
                f"the rendered text does not hold what the assistant says in turn {len(messages)}, so it cannot be "
                f"told what bears loss: {_REMEDY}",
                reason=UNFOUND,
            )
        return start, stop

    def _before(self, after: str, messages: Sequence[Message], tools: list[Any] | None) -> int:
        """Return how much of `after` is there before the assistant, who speaks next, says anything."""
        turn = len(messages) + 1
        try:
            asked = self._render(messages, tools, prompt=self._has_prompt).text
            if after.startswith(asked):
                return len(asked)
            begun = self._render(messages, tools).text
        except BadRecordError as error:
            raise BadRecordError(
                f"the chat template fails on the conversation before turn {turn}, so what the assistant says in it "
                f"cannot be told: {error}; {_REMEDY}",
                reason=UNFOUND,
            ) from error
        # The prompt may go on where the turn does not (an empty thought): what they share is the prompt.
        shared = shared_length(asked, after)
        if not after.startswith(begun) or shared <= len(begun):
            raise _untold(
                f"the chat template renders the conversation before turn {turn} in another way when the turn follows",
                messages,
            )
        return shared


def _untold(why: str, messages: Sequence[Message]) -> BadRecordError:
    return BadRecordError(
        f"{why}, so what the assistant says in it cannot be told: {_REMEDY}", reason=UNFOUND
    )


@final
class _AssemblyScan:
    """Finds special tokens that no text of a row spells, but that a template puts together of its pieces.

    A template that takes something out of a content joins what was around it: without ``<image>``,
    ``<|im_<image>end|>`` is a token that ends a turn. So a row with the beginnings of special tokens, in such a
    template, is rendered again with these beginnings broken up; if that changes how many special tokens the text has,
    one was put together.
    """

    def __init__(self, program: Program, tokens: Sequence[str]) -> None:
        self._program = program
        longest_first = sorted(filter(None, tokens), key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        starts = sorted({token[:2] for token in longest_first if len(token) > 2})
        self._starts = re.compile("|".join(map(re.escape, starts)) or "(?!)")
        self._joins = _JOINING.search(program.text) is not None

    def check(self, text: str, messages: Sequence[Message], tools: list[Any] | None, prompt: bool) -> None:
        """Raise BadRecordError if `text`, the rendering of `messages`, has a token that was put together."""
        if not self._joins:
            return
        apart = partial(self._starts.sub, lambda start: start[0][0] + _BREAK + start[0][1:])
        broken = with_texts([messages, tools], apart)
        if broken == [messages, tools]:
            return
        other = self._program.render(*broken, add_generation_prompt=prompt).text
        if len(self._tokens.findall(text)) != len(self._tokens.findall(other)):
            raise BadRecordError(
                "the chat template puts a special token together of the conversation's own texts, which would become a "
                "control token",
                reason=FORGED,
            )


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
                        answer: dict[str, Any] = {"marked": program.marked, "names": program.names}
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
