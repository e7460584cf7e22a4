"""Where the turns of a conversation lie in its rendering.

A template makes one text and does not tell its turns apart. So each turn is found by
marks (:mod:`tokenlake.etl.text.chat_marks`): the conversation is rendered once more
with marks in the place of one turn's words, and the difference between both texts is
the words. It does not matter then if a template renders a turn differently when others
follow, because both texts hold the whole conversation.

    text     <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nhello<|im_end|>\\n
    marked   <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nQzVe0x<|im_end|>\\n
                                                                   words

1. The turn *begins* behind the generation prompt: the conversation before the turn is
   rendered with the prompt, and the text is compared as far as both agree. Where
   earlier turns differ, both are compared from the end of the words of the turn before.
   In a template without a prompt only the words themselves tell a header from the turn,
   so the turn begins with its words.
2. An empty block of reasoning that the prompt supplies when a model is not to think is
   a part of the prompt.
3. The turn *ends* where the conversation up to it ends. Where that is rendered
   differently when others follow, it ends with the first special token behind the
   words.

Blanks behind a special token that ends a turn do not count toward the loss.

Most templates render the beginning of a conversation as they render it alone. Where
that holds for a turn, steps 1 and 3 give both its ends, and one rendering with marks in
all turns shows that nothing is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.chat_marks import (
    Item,
    MarkedTurn,
    Render,
    calls_of,
    mark_turn,
    unused_salt,
)
from tokenlake.etl.text.chat_protocol import UNFOUND, CharSpan, Message
from tokenlake.etl.text.chat_weights import ASSISTANT
from tokenlake.etl.text.common_text import shared_end_length, shared_length
from tokenlake.etl.text.plain_data import texts_in

NOT_RENDERED: Final = "not_rendered"
"""Reason of rows of which the template leaves something out."""
THINKING_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables that switch reasoning on; false makes a prompt supply an empty block of
reasoning.
"""

# Older and newer name of the field in which a turn makes calls.
_CALL_FIELDS: Final = ("tool_calls", "function_call")
_REMEDY: Final = "mark the assistant's turns in the template with {% generation %}, or set chat.loss: all"
# The alternatives are alike in both expressions, so that the second one splits what the
# first one finds.
# A prompt may end with these, and a turn need not begin with them: blanks, and tags
# around empty reasoning.
_TAG: Final = r"</?think(?:ing)?>|\[/?THINK\]"
_ENDS_IN_TAGS: Final = re.compile(rf"(?:{_TAG}|\s)*\Z")
_TAG_OR_BLANK: Final = re.compile(rf"{_TAG}|\s")


@final
@dataclass(frozen=True, slots=True)
class TurnFinder:
    """Finds turns in the renderings of one template.

    Attributes:
        render: Renderer of ``(messages, tools, **variables)``; BadRecordError where the
            template fails.
        endings: Texts of the special tokens.
        has_prompt: Whether the template reads ``add_generation_prompt``.
        is_prompted: Whether renderings end with a generation prompt.
        prompt: Generation prompt after a question; "" where it is not known.
        empty_blocks: Empty blocks of reasoning that prompts may supply after that.
        masks_reasoning: Whether reasoning is excluded from the loss.
    """

    render: Render
    endings: tuple[str, ...]
    has_prompt: bool
    is_prompted: bool
    prompt: str = ""
    empty_blocks: tuple[str, ...] = ()
    masks_reasoning: bool = False

    def spans(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        turns: Sequence[int],
    ) -> tuple[CharSpan, ...]:
        """Return the spans of some of the assistant's turns that count toward the loss.

        Args:
            text: Rendering of the conversation.
            messages: Messages of the conversation.
            tools: Tools of the conversation.
            turns: Indices of the turns, ascending.

        Raises:
            BadRecordError: The template leaves out a part of a turn (``not_rendered``),
                or a turn cannot be found in the text (``turns_not_found``).
        """
        conversation = _Conversation(self, text, messages, tools)
        marked_turns = conversation.rendered(turns)
        spans: list[CharSpan] = []
        for index in turns:
            # Most turns are rendered as the beginning of the conversation alone; the
            # others are searched.
            turn_span: CharSpan | None = None
            if index in marked_turns:
                turn_span = conversation.stable_turn(index, marked_turns[index])
            if turn_span is None:
                turn_span = conversation.turn(index)
            if spans and spans[-1][1] > turn_span[0]:
                raise BadRecordError(
                    f"turn {index + 1} and the assistant's turn before it overlap in the rendered text, so the tokens "
                    f"that count toward the loss cannot be found: {_REMEDY}",
                    reason=UNFOUND,
                )
            # Reasoning is a hole in the turn where it is not learned.
            hidden_span: CharSpan | None = None
            if self.masks_reasoning:
                hidden_span = conversation.reasoning(index, turn_span)
            spans += without(turn_span, hidden_span)
        return tuple(spans)

    def words(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        index: int,
    ) -> CharSpan | None:
        """Return the span of a turn's words; None where the text holds none of them.

        The turn may be of any role.
        """
        return _Conversation(self, text, messages, tools).words(index)

    def reasoning(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        index: int,
        turn: CharSpan,
    ) -> CharSpan | None:
        """Return the span of a turn's reasoning, up to the answer.

        None where none is rendered.
        """
        return _Conversation(self, text, messages, tools).reasoning(index, turn)

    def require_rendered(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        turns: Sequence[int],
    ) -> None:
        """Require that the text holds all parts of some turns.

        A part that a template renders only while its turn is the last one (reasoning)
        may be missing.

        Raises:
            BadRecordError: A part is missing (``not_rendered``).
        """
        conversation = _Conversation(self, text, messages, tools)
        for index in turns:
            conversation.require_rendered(index)


def without(span: CharSpan, hole: CharSpan | None) -> list[CharSpan]:
    """Return the pieces of a span outside of another one, which may lie elsewhere."""
    if hole is None or hole[1] <= span[0] or span[1] <= hole[0]:
        return [span]
    # The pieces before the hole and behind it, of which one or both may be empty.
    before = (span[0], max(span[0], hole[0]))
    behind = (min(span[1], hole[1]), span[1])
    pieces: list[CharSpan] = []
    for start, stop in (before, behind):
        if start < stop:
            pieces.append((start, stop))
    return pieces


@final
@dataclass(frozen=True, slots=True)
class _Extent:
    """The place of the words of a turn.

    Attributes:
        start: Index of the first character.
        stop: Index behind the last character.
        first: First piece of the turn in the text.
        quote: Number of characters behind the last mark that the text does not have
            behind the words, such as a quotation mark where an argument is a number.
    """

    start: int
    stop: int
    first: Item
    quote: int


@final
@dataclass(frozen=True, slots=True)
class _LastWords:
    """The last words before a turn.

    Attributes:
        end: Index in the text behind the words.
        messages: Messages before the turn, with these words marked.
        mark: Last mark of them.
        quote: Number of characters behind the mark that the text does not have behind
            the words.
    """

    end: int
    messages: list[Message]
    mark: str
    quote: int


@final
@dataclass(slots=True)
class _Conversation:
    """A conversation with its rendering.

    Attributes:
        finder: Template and its settings.
        text: Rendering of the conversation.
        messages: Messages of the conversation.
        tools: Tools of the conversation.
        salt: Beginning of the marks.
        beginnings: Renderings of the first messages, by their number, with and without
            the prompt.
    """

    finder: TurnFinder
    text: str
    messages: Sequence[Message]
    tools: list[Any] | None
    salt: str = ""
    beginnings: dict[tuple[int, bool], str] = field(
        default_factory=dict[tuple[int, bool], str]
    )

    def __post_init__(self) -> None:
        self.salt = unused_salt([self.text, self.messages, self.tools])

    def rendered(self, turns: Sequence[int]) -> dict[int, MarkedTurn]:
        """Return the turns, marked, of which the template leaves nothing out.

        One rendering with marks in all turns shows it.
        """
        marked_turns: dict[int, MarkedTurn] = {}
        messages = list(self.messages)
        for index in turns:
            marked = mark_turn(self.messages[index], f"{self.salt}{index}y")
            marked_turns[index] = marked
            messages[index] = marked.message
        # A template may fail on marks, such as one that parses arguments. Each turn is
        # searched by itself then.
        try:
            marked_text = self._render(messages, prompt=self.finder.is_prompted)
        except BadRecordError:
            return {}
        for index, marked in list(marked_turns.items()):
            if not marked.items or not marked.is_in(marked_text):
                del marked_turns[index]
        return marked_turns

    def stable_turn(self, index: int, marked: MarkedTurn) -> CharSpan | None:
        """Return the span of a turn if the text begins as the renderings around it.

        These are the renderings of the conversation before the turn and up to it.

        Args:
            index: Index of the turn.
            marked: Turn; all of its items are in the text.

        Returns:
            Span; None where the template renders the beginning in another way.
        """
        # Tags in the content move the beginning of the turn; without a known prompt it
        # cannot be told from a header.
        text = self.text
        prompt = self.finder.prompt
        is_tagged = any(item.lead for item in marked.items)
        if is_tagged or not prompt:
            return None
        # The turn lies between the conversation before it with a prompt, and the
        # conversation up to it.
        text_before = self._beginning(index, prompt=True)
        if text_before is None or not text_before.endswith(prompt):
            return None
        text_upto: str | None = text
        if not self._is_last(index):
            text_upto = self._beginning(index + 1, prompt=False)
        if text_upto is None or len(text_upto) <= len(text_before):
            return None
        if not text.startswith(text_before) or not text.startswith(text_upto):
            return None
        # The span, without the block that the prompt supplies and the blanks at its end.
        start = self._behind_empty_reasoning(len(text_before), len(text_upto))
        stop = self._trimmed(start, len(text_upto))
        turn_text = text[start:stop]
        if not all(item.words in turn_text for item in marked.items):
            return None
        return start, stop

    def _is_last(self, index: int) -> bool:
        """Return whether a turn is the last of the text, with no prompt behind it."""
        return index + 1 == len(self.messages) and not self.finder.is_prompted

    def turn(self, index: int) -> CharSpan:
        """Return the span of a turn of the assistant.

        Raises:
            BadRecordError: As for :meth:`TurnFinder.spans`.
        """
        marked = self._marked(index)
        marked_text = self._with(index, marked.message)
        # 1. The words lie between the equal beginnings and ends of both texts; the turn
        #    around them.
        self._check_items(index, marked, marked_text)
        extent = self._extent(marked_text, marked)
        start = self._begin(index, extent)
        stop = self._end(index, marked, extent)
        # 2. The span is checked: it holds no other turn, and all words of its own.
        self._require_own(index, start, stop)
        turn_text = self.text[start:stop]
        for item in marked.items:
            if item.is_in(marked_text) and item.words not in turn_text:
                raise BadRecordError(
                    f"the rendered text does not contain {item.title} in turn {index + 1} unchanged, so the tokens "
                    f"that count toward the loss cannot be found: {_REMEDY}",
                    reason=UNFOUND,
                )
        return start, stop

    def words(self, index: int) -> CharSpan | None:
        """Return the span of a turn's words; None where the text holds none of them."""
        marked = mark_turn(self.messages[index], self.salt)
        marked_text = self._with(index, marked.message)
        if not marked.items_in(marked_text):
            return None
        extent = self._extent(marked_text, marked)
        return extent.start, extent.stop

    def reasoning(self, index: int, turn: CharSpan) -> CharSpan | None:
        """Return the span of a turn's reasoning, with its tags, up to the answer.

        None where none is rendered.
        """
        message = self.messages[index]
        marked = mark_turn(message, self.salt, ("reasoning",))
        marked_text = self._with(index, marked.message)
        if not marked.items_in(marked_text):
            return None
        thought = self._extent(marked_text, marked)
        answer_start = self._answer_start(index, thought)
        # Some templates put the reasoning behind the answer: it is cut out alone then.
        if answer_start < thought.stop:
            return thought.start, thought.stop
        return turn[0], answer_start

    def require_rendered(self, index: int) -> None:
        """Require that the text holds all parts of a turn; BadRecordError otherwise."""
        marked = mark_turn(self.messages[index], self.salt)
        self._check_items(index, marked, self._with(index, marked.message))

    def _require_own(self, index: int, start: int, stop: int) -> None:
        """Require that the span of a turn with calls does not hold their answers.

        Raises:
            BadRecordError: It holds one (``turns_not_found``).
        """
        # Only results of tools are rendered inside another turn.
        if not calls_of(self.messages[index]):
            return
        turn_text = self.text[start:stop]
        for later_turn in range(index + 1, len(self.messages)):
            message = self.messages[later_turn]
            if message.get("role") == ASSISTANT:
                return
            # Most answers are not even spelled in the turn, which saves a rendering.
            is_spelled = False
            for text in texts_in(message.get("content")):
                is_spelled = is_spelled or _is_spelled(text.strip(), turn_text)
            if not is_spelled:
                continue
            answer = self.words(later_turn)
            if answer is not None and answer[0] < stop and start < answer[1]:
                raise BadRecordError(
                    f"the chat template renders turn {later_turn + 1} ({message.get('role')}) inside turn "
                    f"{index + 1}, so the tokens that count toward the loss cannot be found: {_REMEDY}",
                    reason=UNFOUND,
                )

    def _marked(self, index: int) -> MarkedTurn:
        """Return a turn with marks; BadRecordError where it says nothing."""
        marked = mark_turn(self.messages[index], self.salt)
        if marked.items:
            return marked
        raise BadRecordError(
            f"turn {index + 1}: the assistant says nothing and calls no tools",
            reason="empty_turn",
        )

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return self.finder.render(messages, self.tools, add_generation_prompt=prompt)

    def _with(self, index: int, message: Message) -> str:
        """Render the conversation with another message in the place of one."""
        messages = [*self.messages[:index], message, *self.messages[index + 1 :]]
        try:
            return self._render(messages, prompt=self.finder.is_prompted)
        except BadRecordError as error:
            raise BadRecordError(
                f"the chat template fails if turn {index + 1} has other text, so the turn cannot be located: "
                f"{error}; {_REMEDY}",
                reason=UNFOUND,
            ) from error

    def _check_items(self, index: int, marked: MarkedTurn, marked_text: str) -> None:
        """Require that all items are rendered, or left out because other turns follow."""
        missing_items = [item for item in marked.items if not item.is_in(marked_text)]
        if not missing_items:
            return
        # Reasoning may be left out because other turns follow. As the last turn,
        # nothing may be missing.
        text_alone = marked_text
        if not self._is_last(index):
            text_alone = self._alone(index, marked.message)
        lost_items = [item for item in missing_items if not item.is_in(text_alone)]
        turn_title = f"turn {index + 1} ({self.messages[index].get('role')})"
        if lost_items:
            # A dict drops the second mention of a part, such as a call of one function.
            lost_titles = [item.title for item in lost_items]
            titles = " and ".join(dict.fromkeys(lost_titles))
            raise BadRecordError(
                f"{turn_title}: the chat template does not render {titles} (or not as it is), so that it would be "
                "lost; use a template that does (chat.template), or remove it from the row",
                reason=NOT_RENDERED,
            )
        # A turn of which all is hidden would have no span.
        if len(missing_items) == len(marked.items):
            raise BadRecordError(
                f"{turn_title}: the chat template hides the whole turn when other turns follow, so none of it would "
                "count toward the loss; set weight: 0 on the turn, or use a template that renders it (chat.template)",
                reason=NOT_RENDERED,
            )

    def _alone(self, index: int, message: Message) -> str:
        """Render the conversation up to a turn; "" where the template fails."""
        return self._tried([*self.messages[:index], message])

    def _tried(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Render messages; "" where the template fails on them."""
        try:
            return self._render(messages, prompt=prompt)
        except BadRecordError:
            return ""

    def _extent(self, marked_text: str, marked: MarkedTurn) -> _Extent:
        """Return the place of the words of a turn in the text.

        Args:
            marked_text: Rendering of the marked turn. Both texts are equal before the
                first mark and behind the last one.
            marked: Turn; at least one of its marks is in `marked_text`.
        """
        rendered_items = marked.items_in(marked_text)
        first_item = min(rendered_items, key=lambda item: marked_text.find(item.mark))
        # A template may render a mark twice: the last place is the one that ends it.
        mark_ends: list[int] = []
        for item in rendered_items:
            last_place = marked_text.rfind(item.mark)
            mark_ends.append(last_place + len(item.mark))
        # The beginning is compared first. The end is compared behind it only, so that
        # both never share a character.
        text_before = marked_text[: marked_text.find(first_item.mark)]
        start = shared_length(self.text, text_before)
        tail = marked_text[max(mark_ends) :]
        shared_tail = shared_end_length(self.text[start:], tail)
        return _Extent(
            start=start,
            stop=len(self.text) - shared_tail,
            first=first_item,
            quote=len(tail) - shared_tail,
        )

    # ---- the beginning of a turn
    # ---------------------------------------------------------------------------

    def _begin(self, index: int, extent: _Extent) -> int:
        """Return the index at which a turn begins.

        Args:
            index: Index of the turn.
            extent: Place of the words of the turn.
        """
        # A tag that opens the reasoning belongs to the turn.
        words_start = extent.start
        if self.text.endswith(extent.first.lead, 0, words_start):
            words_start -= len(extent.first.lead)
        start = self._behind_prompt(index, words_start)
        if start is not None:
            return self._behind_empty_reasoning(start, extent.start)
        # Without a known prompt, words begin the turn. A call does not show its
        # beginning.
        if extent.first.kind != "call":
            return words_start
        start = self._behind_header(index, extent.start)
        if start is not None:
            return start
        raise BadRecordError(
            f"the beginning of the assistant's words in turn {index + 1} cannot be found: {_REMEDY}",
            reason=UNFOUND,
        )

    def _beginning(self, index: int, *, prompt: bool) -> str | None:
        """Render the conversation before a turn; None where the template fails on it."""
        # Neighbouring turns share these renderings.
        cache_key = index, prompt
        if cache_key not in self.beginnings:
            try:
                self.beginnings[cache_key] = self._render(
                    self.messages[:index], prompt=prompt
                )
            except BadRecordError:
                return None
        return self.beginnings[cache_key]

    def _behind_prompt(self, index: int, limit: int) -> int | None:
        """Return the index behind the generation prompt before a turn.

        None where it is not known.

        Args:
            index: Index of the turn.
            limit: Index at which the words of the turn begin.
        """
        prompted = self._beginning(index, prompt=True)
        if prompted is None:
            return None
        # 1. The text begins with the conversation before the turn and its prompt.
        if self.text.startswith(prompted) and len(prompted) <= limit:
            prompt = self.finder.prompt
            is_usual_prompt = bool(prompt) and prompted.endswith(prompt)
            if is_usual_prompt or not self.text[len(prompted) : limit].strip():
                return len(prompted)
        # 2. Both agree up to the prompt, or up to tags at its end.
        unprompted = self._beginning(index, prompt=False)
        if unprompted is None:
            return None
        prompted_size = _prompted_size(prompted, unprompted, self.text[:limit])
        if prompted_size is not None:
            return prompted_size
        # 3. The turns before are rendered in another way: compare both texts from the
        #    end of their last words.
        last_words = self._previous_end(index, limit)
        if last_words is None:
            return None
        prompted_tail = self._tail_behind(last_words, prompt=True)
        unprompted_tail = self._tail_behind(last_words, prompt=False)
        if prompted_tail is None or unprompted_tail is None:
            return None
        gap = self.text[last_words.end : limit]
        prompted_size = _prompted_size(prompted_tail, unprompted_tail, gap)
        if prompted_size is None:
            return None
        return last_words.end + prompted_size

    def _tail_behind(self, last_words: _LastWords, *, prompt: bool) -> str | None:
        """Return the text behind the last words, in a rendering that ends there.

        None where the template fails, or does not render the words.
        """
        rendered = self._tried(last_words.messages, prompt=prompt)
        _, mark, tail = rendered.rpartition(last_words.mark)
        if not mark:
            return None
        return tail[last_words.quote :]

    def _previous_end(self, index: int, limit: int) -> _LastWords | None:
        """Return the last words before a turn; None where none is before `limit`."""
        for previous in range(index - 1, -1, -1):
            marked = mark_turn(self.messages[previous], self.salt)
            # A blank content has no words to mark, but a mark shows its place all the
            # same.
            if not marked.items:
                item = Item("content", "its content", "", f"{self.salt}0x")
                fields = {**self.messages[previous], "content": item.mark}
                marked = MarkedTurn(fields, (item,))
            messages = list(self.messages)
            messages[previous] = marked.message
            marked_text = self._tried(messages, prompt=self.finder.is_prompted)
            # A turn that the template does not render shows no place; the one before it
            # may.
            rendered_marks = [item.mark for item in marked.items_in(marked_text)]
            if not rendered_marks:
                continue
            extent = self._extent(marked_text, marked)
            if extent.stop <= limit:
                return _LastWords(
                    end=extent.stop,
                    messages=messages[:index],
                    mark=max(rendered_marks, key=marked_text.rfind),
                    quote=extent.quote,
                )
        return None

    def _behind_empty_reasoning(self, start: int, limit: int) -> int:
        """Return the index behind an empty block of reasoning that a prompt supplies.

        `start` where the text has none.
        """
        for block in self.finder.empty_blocks:
            block_end = start + len(block)
            if block_end <= limit and self.text.startswith(block, start):
                return block_end
        return start

    def _behind_header(self, index: int, limit: int) -> int | None:
        """Return the index at which a call begins, without a prompt before it.

        It begins where the words of a turn without calls would begin.
        """
        # 1. A turn with a mark alone shows the header, which the text begins with.
        mark = f"{self.salt}x"
        speaking_turn = {"role": ASSISTANT, "content": mark}
        head, found_mark, _ = self._alone(index, speaking_turn).partition(mark)
        if found_mark and self.text.startswith(head) and len(head) <= limit:
            return len(head)
        # 2. The turns before are rendered in another way: the header behind their last
        #    words.
        last_words = self._previous_end(index, limit)
        if last_words is None:
            return None
        rendered = self._tried([*last_words.messages, speaking_turn])
        if last_words.mark in rendered and mark in rendered:
            text_before = rendered.partition(mark)[0]
            tail = text_before.rpartition(last_words.mark)[2]
            header = tail[last_words.quote :]
            begin = last_words.end + len(header)
            if begin <= limit and self.text.startswith(header, last_words.end):
                return begin
        # 3. The prompt of other turns.
        prompt = self.finder.prompt
        if prompt:
            prompt_begin = self.text.rfind(prompt, last_words.end, limit)
            if prompt_begin >= 0:
                return prompt_begin + len(prompt)
        # 4. No header at all.
        return self._behind_turn_before(last_words, limit)

    def _behind_turn_before(self, last_words: _LastWords, limit: int) -> int | None:
        """Return the index at which the turn before ends, where no header follows.

        That is so if nothing of the usual prompt stands between both turns; None
        otherwise.
        """
        gap = self.text[last_words.end : limit]
        # A header is known by its special tokens, or else by its first word.
        prompt = self.finder.prompt
        header_words = [token for token in self.finder.endings if token in prompt]
        if not header_words:
            header_words = prompt.split()[:1]
        # Without such a word nothing tells the next header from words of the turn.
        has_header = not header_words
        for word in header_words:
            has_header |= word in gap
        tail = self._tail_behind(last_words, prompt=False)
        if has_header or tail is None or not gap.startswith(tail):
            return None
        return last_words.end + len(tail)

    # ---- the end of a turn
    # ---------------------------------------------------------------------------------

    def _end(self, index: int, marked: MarkedTurn, extent: _Extent) -> int:
        """Return the index behind a turn whose words end at ``extent.stop``."""
        # 1. The last turn ends with the text.
        text = self.text
        if self._is_last(index):
            return self._trimmed(extent.stop, len(text))
        # 2. The text begins with the conversation up to the turn.
        text_upto = self._beginning(index + 1, prompt=False)
        if text_upto is not None and text.startswith(text_upto):
            turn_stop = len(text_upto)
            if turn_stop >= extent.stop:
                return self._trimmed(extent.stop, turn_stop)
        # 3. The words are followed by the text that ends the turn where it is the last.
        text_alone = self._alone(index, marked.message)
        items_alone = marked.items_in(text_alone)
        tail = ""
        if items_alone:
            last_item = max(items_alone, key=lambda item: text_alone.rfind(item.mark))
            tail = text_alone.rpartition(last_item.mark)[2][extent.quote :]
        gap = text[extent.stop :]
        if gap.startswith(tail):
            return self._trimmed(extent.stop, extent.stop + len(tail))
        # 4. The template ends the turn in another way when others follow.
        return extent.stop + self._first_ending(gap, tail)

    def _first_ending(self, gap: str, tail: str) -> int:
        """Return the number of characters of `gap` up to the first special token.

        `tail` ends the turn where no other follows (``<|return|>``), and `gap` begins
        with its end here (``<|end|>``). Up to that token both are alike; 0 where they
        are not, or no token is found.
        """
        # Of two tokens at one place the longer one stands there.
        first_token = ""
        first_place = len(gap)
        for token in self.finder.endings:
            token_place = gap.find(token)
            is_longer = token_place == first_place and len(token) > len(first_token)
            if 0 <= token_place < first_place or is_longer:
                first_place = token_place
                first_token = token
        if not first_token or gap[:first_place].strip() != tail[:first_place].strip():
            return 0
        return first_place + len(first_token)

    def _trimmed(self, start: int, stop: int) -> int:
        """Return the end of a turn without the blanks behind its last special token."""
        trimmed_end = start + len(self.text[start:stop].rstrip())
        if trimmed_end > start and self.text.endswith(
            self.finder.endings, start, trimmed_end
        ):
            return trimmed_end
        return stop

    def _answer_start(self, index: int, thought: _Extent) -> int:
        """Return the index at which the answer of a turn with reasoning begins.

        Without an answer, the index at which the reasoning ends.
        """
        message = self.messages[index]
        marked = mark_turn(message, self.salt, ("content",))
        marked_text = self._with(index, marked.message)
        # 1. The answer has words.
        if marked.items_in(marked_text):
            return self._extent(marked_text, marked).start
        # 2. The turn ends with its reasoning.
        if not calls_of(message):
            return thought.stop
        # 3. A call has no mark where it begins. The text between reasoning and words
        #    stands before a call, too.
        speaking_turn = dict(mark_turn(message, self.salt, ("reasoning",)).message)
        for call_field in _CALL_FIELDS:
            speaking_turn.pop(call_field, None)
        mark = f"{self.salt}x"
        speaking_turn["content"] = mark
        text_before = self._alone(index, speaking_turn).partition(mark)[0]
        closing = text_before.rpartition(f"{self.salt}0x")[2]
        return thought.stop + shared_length(closing, self.text[thought.stop :])


def _prompted_size(prompted: str, unprompted: str, text: str) -> int | None:
    """Return the number of characters of a text up to the end of a prompt.

    They are the conversation before a turn and its prompt.

    None where it is not known.

    Args:
        prompted: Conversation before the turn, with a prompt.
        unprompted: The same without a prompt; equal to `prompted` where the template
            has none.
        text: Text up to the words of the turn.
    """
    shared = shared_length(prompted, text)
    if shared == len(prompted):
        # Without a prompt a header may follow.
        has_prompt = prompted != unprompted
        if has_prompt or not text[shared:].strip():
            return shared
        return None
    # The prompt may end with tags that this turn lacks, such as an empty block of
    # reasoning.
    tags = _ENDS_IN_TAGS.search(prompted)
    assert tags is not None  # it matches the empty text at the end
    if not text.startswith(unprompted):
        return None
    if not len(unprompted) < tags.start() <= shared:
        return None
    # The tags and blanks that this turn has are a part of the prompt.
    prompted_size = tags.start()
    for tag in _TAG_OR_BLANK.findall(tags.group()):
        if not text.startswith(tag, prompted_size):
            break
        prompted_size += len(tag)
    return prompted_size


def _is_spelled(words: str, text: str) -> bool:
    """Return whether a text holds words, as they are or as JSON."""
    if not words:
        return False
    json_words = json.dumps(words, ensure_ascii=False)[1:-1]
    return words in text or json_words in text


def generation_prompt(render: Render, **variables: Any) -> str:
    """Return the generation prompt of a template after a question.

    "" where it is not known.

    Args:
        render: Renderer of ``(messages, tools, **variables)``.
        variables: Variables of the template.
    """
    question = [{"role": "user", "content": "Hello"}]
    try:
        unprompted = render(question, None, add_generation_prompt=False, **variables)
        prompted = render(question, None, add_generation_prompt=True, **variables)
    except (BadRecordError, ConfigError):
        return ""
    # Some templates close the conversation where no prompt follows: the difference is
    # more than a prompt then.
    if not prompted.startswith(unprompted):
        return ""
    return prompted[len(unprompted) :]


def assistant_turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the indices of the assistant's turns."""
    for index, message in enumerate(messages):
        if message.get("role") == ASSISTANT:
            yield index
