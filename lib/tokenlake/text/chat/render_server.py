"""The process that renders templates: a line of JSON requests in, a line of JSON out for every one of them.

A template is opened once, under a name; requests for it render conversations, or ask for a skeleton. Whatever a
template does, it does in here: the kernel ends this process after too much time, and memory that it is refused ends it,
too. Who asked sees that from outside (:mod:`tokenlake.text.chat.template`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from typing import Any, Final, cast, final

from tokenlake.errors import BadRecordError, TokenlakeError, to_json
from tokenlake.text.chat.loss_spans import AssemblyScan, TurnFinder, check_learned
from tokenlake.text.chat.sandbox import NoData, Program, forbid_text_of_jinjas_own
from tokenlake.text.chat.skeleton import Outline
from tokenlake.text.chat.template import NO_DATA, NOTHING, OUT_OF_MEMORY, Lessons, Limits, RenderedChat


@final
class _Opened:
    """A template, and what is to be learned by it."""

    def __init__(self, opening: dict[str, Any]) -> None:
        variables = opening["variables"]
        self.program: Final = Program(opening["text"], variables, Limits(**opening["limits"]))
        self._lessons = Lessons(**opening["lessons"]) if opening["lessons"] else None
        self._outline = Outline(self.program, {"tools": None, "documents": None, **variables})
        self._prompt = {"add_generation_prompt": bool(variables.get("add_generation_prompt"))}
        tokens = self._lessons.special_tokens if self._lessons else ()
        self._finder = TurnFinder(self.program, tokens)
        self._scan = AssemblyScan(self.program, tokens) if self._lessons and self._lessons.guarded else None

    def answer(self, op: str, *given: Any) -> dict[str, Any]:
        if op == "skeleton":
            skeleton = self._outline.skeleton(
                given[0], self._learned if self._lessons else self.program.render
            )
            return {} if skeleton is None else dataclasses.asdict(skeleton)
        made = self._learned(*given) if op == "learn" else self.program.render(*given[:2], **given[2])
        return {"text": made.text, "learned": made.learned}

    def _learned(self, messages: Any, tools: list[Any] | None = None) -> RenderedChat:
        assert self._lessons is not None
        made = self.program.render(messages, tools, **self._prompt)
        if self._scan is not None:
            self._scan.check(made.text, messages, tools, **self._prompt)
        if self._lessons.loss == "all":
            if not made.text:
                raise BadRecordError("the chat template renders no text", reason=NOTHING)
            return RenderedChat(made.text, ((0, len(made.text)),))
        learned = made.learned
        if not self.program.marked:
            learned = self._finder.find(made.text, messages, tools, **self._prompt)
        check_learned(made.text, learned, messages)
        return RenderedChat(made.text, learned)


def main() -> None:
    """Answer until the input ends."""
    forbid_text_of_jinjas_own()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    opened: dict[str, _Opened] = {}
    try:
        for line in sys.stdin.buffer:
            for name, op, *given in json.loads(line, object_hook=_given):
                answers.write(json.dumps(_answer(opened, name, op, given)).encode() + b"\n")
                answers.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _answer(opened: dict[str, _Opened], name: str, op: str, given: list[Any]) -> dict[str, Any]:
    try:
        if op == "open":
            opened[name] = _Opened(given[0])
            return {"marked": opened[name].program.marked}
        return opened[name].answer(op, *given)
    except TokenlakeError as error:
        return {"error": to_json(error)}


def _given(fields: dict[str, Any]) -> Any:
    """Return an object of a request, or what stands for a value that is no JSON."""
    return NoData(cast("str", fields[NO_DATA])) if NO_DATA in fields else fields
