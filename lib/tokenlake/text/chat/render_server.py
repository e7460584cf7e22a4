"""The process that renders templates: a line of JSON requests in, a line of JSON out for every one of them.

A template is opened once, under a name; requests for it render conversations, or ask for a skeleton. Whatever a
template does, it does in here: the kernel ends this process after too much time, and memory that it is refused ends it
as well. Who asked sees that from outside (:mod:`tokenlake.text.chat.template`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from typing import Any, cast, final

from tokenlake.errors import TokenlakeError, to_json
from tokenlake.text.chat.loss_spans import LossRenderer
from tokenlake.text.chat.sandbox import NoData, Program, forbid_text_of_jinjas_own
from tokenlake.text.chat.skeleton import OPEN, skeleton
from tokenlake.text.chat.template import NO_DATA, OUT_OF_MEMORY, Limits, LossOptions


@final
class _Opened:
    """A template with its settings."""

    def __init__(self, opening: dict[str, Any]) -> None:
        variables = opening["variables"]
        self.program = Program(opening["text"], variables, Limits(**opening["limits"]))
        prompt = bool(variables.get("add_generation_prompt"))
        loss = LossOptions(**opening["loss"]) if opening["loss"] else None
        self._with_loss = (
            LossRenderer(self.program, loss, prompt=prompt).render if loss else self.program.render
        )
        marks = OPEN in opening["text"] + json.dumps(variables, ensure_ascii=False)
        self._has_skeletons = not (self.program.captures or marks)

    def answer(self, op: str, *given: Any) -> dict[str, Any]:
        if op == "skeleton":
            return self._skeleton(given[0])
        if op == "render_with_loss":
            return dataclasses.asdict(self._with_loss(*given))
        messages, tools, variables = given
        return dataclasses.asdict(self.program.render(messages, tools, **variables))

    def _skeleton(self, roles: list[str]) -> dict[str, Any]:
        found = skeleton(roles, self.program.render, self._with_loss) if self._has_skeletons else None
        return {} if found is None else dataclasses.asdict(found)


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
