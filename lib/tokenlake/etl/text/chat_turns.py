"""Where the turns of a conversation lie in its rendering.

A template says nothing about turns: it makes one text. So each turn is found by marks
(:mod:`tokenlake.etl.text.chat_marks`). The conversation is rendered once more with marks in the place of one
turn's words; what differs between both texts is what the turn says. A template that renders a turn
differently when others follow does not matter then, because both texts hold the whole conversation.

    text     <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nhello<|im_end|>\\n
    marked   <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nQzVe0x<|im_end|>\\n
                                                                   words

1. The turn *begins* behind the generation prompt: the conversation before the turn is rendered with the prompt, and the
   text is followed as far as both agree. Where earlier turns differ, both are followed from the end of the words
   of the turn before. A template without a prompt has a header that nothing tells apart from the turn but the words
   themselves, so there the turn begins with its words.
2. An empty block of reasoning that the prompt supplies when a model is not to think is a part of the prompt.
3. The turn *ends* where the conversation up to it ends. Where that is rendered differently when others follow, it ends
   with the first special token behind the words.

Blanks behind a special token that ends a turn bear no loss.

Most templates render the beginning of a conversation as they render it alone. Where that holds for a turn, steps 1
and 3 give both its ends, and one rendering with marks in all turns shows that nothing is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.chat_marks import Item, MarkedTurn, Render, calls_of, mark_turn, unused_salt
from tokenlake.etl.text.chat_protocol import UNFOUND, CharSpan, Message
from tokenlake.etl.text.chat_weights import ASSISTANT
from tokenlake.etl.text.common_text import shared_length
from tokenlake.etl.text.plain_data import texts_in

NOT_RENDERED: Final = "not_rendered"
"""The reason of rows of which the template leaves something out."""
THINKING_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables that say whether a model is to think; false makes a prompt supply an empty block of reasoning."""

_REMEDY: Final = "mark the assistant's turns in the template with {% generation %}, or set chat.loss: all"
# What a prompt may end with that a turn need not begin with: blanks, and tags around empty reasoning.
_TAG: Final = r"</?think(?:ing)?>|\[/?THINK\]"
_ENDS_IN_TAGS: Final = re.compile(rf"(?:{_TAG}|\s)*\Z")
_TAG_OR_BLANK: Final = re.compile(rf"{_TAG}|\s")


@final
@dataclass(frozen=True, slots=True)
class TurnFinder:
    """Finds turns in the renderings of one template.

    Attributes:
        render: renders ``(messages, tools, **variables)``; BadRecordError where the template fails.
        endings: texts of the special tokens.
        has_prompt: whether the template looks at ``add_generation_prompt``.
        is_prompted: whether renderings end with a generation prompt.
        prompt: what makes the assistant speak after a question; "" where that cannot be told.
        empty_blocks: what prompts may supply beyond that: an empty block of reasoning.
        masks_reasoning: whether reasoning bears no loss.
    """

    render: Render
    endings: tuple[str, ...]
    has_prompt: bool
    is_prompted: bool
    prompt: str = ""
    empty_blocks: tuple[str, ...] = ()
    masks_reasoning: bool = False

    def spans(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, turns: Sequence[int]
    ) -> tuple[CharSpan, ...]:
        """Return what bears loss of some turns of the assistant.

        Args:
            text: rendering of the conversation.
            turns: indices of the turns, ascending.

        Raises:
            BadRecordError: the template leaves out what a turn says (``not_rendered``), or a turn cannot be told from
                what stands around it (``turns_not_found``).
        """
        conversation = _Conversation(self, text, messages, tools)
        rendered = conversation.rendered(turns)
        spans: list[CharSpan] = []
        for index in turns:
            marked = rendered.get(index)
            turn = None if marked is None else conversation.stable_turn(index, marked)
            turn = turn or conversation.turn(index)
            if spans and spans[-1][1] > turn[0]:
                raise BadRecordError(
                    f"turn {index + 1} and the assistant's turn before it overlap in the rendered text, so it cannot "
                    f"be told what bears loss: {_REMEDY}",
                    reason=UNFOUND,
                )
            hidden = conversation.reasoning(index, turn) if self.masks_reasoning else None
            spans += without(turn, hidden)
        return tuple(spans)

    def words(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int
    ) -> CharSpan | None:
        """Return where the words of a turn of any role lie; None where the text holds none of them."""
        return _Conversation(self, text, messages, tools).words(index)

    def reasoning(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int, turn: CharSpan
    ) -> CharSpan | None:
        """Return what of a turn is reasoning, up to the answer; None where none is rendered."""
        return _Conversation(self, text, messages, tools).reasoning(index, turn)

    def require_rendered(
        self, text: str, messages: Sequence[Message], tools: list[Any] | None, turns: Sequence[int]
    ) -> None:
        """Require that the text holds all that some turns say.

        What a template renders of a turn only while it is the last one (reasoning) may be missing.

        Raises:
            BadRecordError: something is missing (``not_rendered``).
        """
        conversation = _Conversation(self, text, messages, tools)
        for index in turns:
            conversation.require_rendered(index)


def without(span: CharSpan, hole: CharSpan | None) -> list[CharSpan]:
    """Return what is left of a span without another one, which may lie elsewhere."""
    if hole is None or hole[1] <= span[0] or span[1] <= hole[0]:
        return [span]
    pieces = [(span[0], max(span[0], hole[0])), (min(span[1], hole[1]), span[1])]
    return [piece for piece in pieces if piece[0] < piece[1]]


@final
@dataclass(frozen=True, slots=True)
class _Extent:
    """Where the words of a turn lie.

    Attributes:
        start, stop: characters of the text.
        first: what the turn says first.
        quote: characters behind the last mark that the text does not have behind the words, such as a quotation mark
            where an argument is a number.
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
        end: where they end in the text.
        messages: the messages before the turn, with these words marked.
        mark: the last mark of them.
        quote: characters behind the mark that the text lacks behind the words.
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
        finder: the template and its settings.
        text: rendering of the conversation.
        messages, tools: the conversation.
        salt: what marks begin with.
        befores: renderings of the first messages, by their number, with and without the prompt.
    """

    finder: TurnFinder
    text: str
    messages: Sequence[Message]
    tools: list[Any] | None
    salt: str = ""
    befores: dict[tuple[int, bool], str] = field(default_factory=dict[tuple[int, bool], str])

    def __post_init__(self) -> None:
        self.salt = unused_salt([self.text, self.messages, self.tools])

    def rendered(self, turns: Sequence[int]) -> dict[int, MarkedTurn]:
        """Return the turns, marked, of which the template leaves nothing out; found by one rendering for all."""
        marked: dict[int, MarkedTurn] = {}
        messages = list(self.messages)
        for index in turns:
            marked[index] = mark_turn(self.messages[index], f"{self.salt}{index}y")
            messages[index] = marked[index].message
        try:
            whole = self._render(messages, prompt=self.finder.is_prompted)
        except BadRecordError:
            return {}
        return {index: turn for index, turn in marked.items() if turn.items and turn.is_in(whole)}

    def stable_turn(self, index: int, marked: MarkedTurn) -> CharSpan | None:
        """Return where a turn begins and ends, where the text begins as the conversation up to the turn does.

        Args:
            index: of the turn.
            marked: the turn; all of its items are in the text.
        """
        text = self.text
        prompt = self.finder.prompt
        is_tagged = any(item.lead for item in marked.items)
        before = None if is_tagged or not prompt else self._before(index, prompt=True)
        if before is None or not before.endswith(prompt) or not text.startswith(before):
            return None
        is_last = index + 1 == len(self.messages) and not self.finder.is_prompted
        upto = text if is_last else self._before(index + 1, prompt=False)
        if upto is None or not text.startswith(upto) or len(upto) <= len(before):
            return None
        start = self._behind_empty_reasoning(len(before), len(upto))
        stop = self._trimmed(start, len(upto))
        said = text[start:stop]
        if not all(item.words in said for item in marked.items):
            return None
        return start, stop

    def turn(self, index: int) -> CharSpan:
        """Return where a turn of the assistant begins and ends.

        Raises:
            BadRecordError: as :meth:`TurnFinder.spans`.
        """
        marked = self._marked(index)
        whole = self._with(index, marked.message)
        self._check_items(index, marked, whole)
        extent = self._extent(whole, marked)
        start = self._begin(index, extent)
        stop = self._end(index, marked, extent)
        self._require_own(index, start, stop)
        said = self.text[start:stop]
        for item in marked.items:
            if item.is_in(whole) and item.words not in said:
                raise BadRecordError(
                    f"the rendered text does not hold {item.title} in turn {index + 1} as it is, so it cannot be told "
                    f"what bears loss: {_REMEDY}",
                    reason=UNFOUND,
                )
        return start, stop

    def words(self, index: int) -> CharSpan | None:
        """Return where the words of a turn lie; None where the text holds none of them."""
        marked = mark_turn(self.messages[index], self.salt)
        whole = self._with(index, marked.message)
        if not any(item.mark in whole for item in marked.items):
            return None
        extent = self._extent(whole, marked)
        return extent.start, extent.stop

    def reasoning(self, index: int, turn: CharSpan) -> CharSpan | None:
        """Return what of a turn is reasoning, with its tags, up to the answer; None where none is rendered."""
        message = self.messages[index]
        marked = mark_turn(message, self.salt, ("reasoning",))
        whole = self._with(index, marked.message)
        if not any(item.mark in whole for item in marked.items):
            return None
        thought = self._extent(whole, marked)
        answer = self._answer_start(index, thought)
        return (turn[0], answer) if answer >= thought.stop else (thought.start, thought.stop)

    def require_rendered(self, index: int) -> None:
        """Require that the text holds all that a turn says; BadRecordError where it does not."""
        marked = mark_turn(self.messages[index], self.salt)
        self._check_items(index, marked, self._with(index, marked.message))

    def _require_own(self, index: int, start: int, stop: int) -> None:
        """Require that a turn with calls does not hold what answers them; BadRecordError where it does."""
        if not calls_of(self.messages[index]):
            return
        said = self.text[start:stop]
        for at in range(index + 1, len(self.messages)):
            if self.messages[at].get("role") == ASSISTANT:
                return
            if not any(
                _is_spelled(text.strip(), said) for text in texts_in(self.messages[at].get("content"))
            ):
                continue
            words = self.words(at)
            if words is not None and words[0] < stop and start < words[1]:
                role = self.messages[at].get("role")
                raise BadRecordError(
                    f"the chat template renders turn {at + 1} ({role}) inside turn {index + 1}, so that it cannot "
                    f"be told what bears loss: {_REMEDY}",
                    reason=UNFOUND,
                )

    def _marked(self, index: int) -> MarkedTurn:
        marked = mark_turn(self.messages[index], self.salt)
        if marked.items:
            return marked
        raise BadRecordError(
            f"turn {index + 1}: the assistant says nothing and calls no tools", reason="empty_turn"
        )

    def _render(self, messages: Sequence[Message], *, prompt: bool = False, **variables: Any) -> str:
        return self.finder.render(messages, self.tools, add_generation_prompt=prompt, **variables)

    def _with(self, index: int, message: Message) -> str:
        """Render the conversation with another message in the place of one."""
        messages = [*self.messages[:index], message, *self.messages[index + 1 :]]
        try:
            return self._render(messages, prompt=self.finder.is_prompted)
        except BadRecordError as error:
            raise BadRecordError(
                f"the chat template fails when turn {index + 1} has other words, so that it cannot be told where the "
                f"turn lies: {error}; {_REMEDY}",
                reason=UNFOUND,
            ) from error

    def _check_items(self, index: int, marked: MarkedTurn, whole: str) -> None:
        """Require that all items are in the rendering, or left out because other turns follow."""
        missing = [item for item in marked.items if not item.is_in(whole)]
        if not missing:
            return
        is_last = index + 1 == len(self.messages) and not self.finder.is_prompted
        alone = whole if is_last else self._alone(index, marked.message)
        lost = [item for item in missing if not item.is_in(alone)]
        name = f"turn {index + 1} ({self.messages[index].get('role')})"
        if lost:
            titles = " and ".join(dict.fromkeys(item.title for item in lost))
            raise BadRecordError(
                f"{name}: the chat template does not render {titles} (or not as it is), so that it would be lost; use "
                "a template that does (chat.template), or take it out of the row",
                reason=NOT_RENDERED,
            )
        if len(missing) == len(marked.items):
            raise BadRecordError(
                f"{name}: the chat template hides the whole turn when other turns follow, so nothing of it could be "
                "learned; set weight: 0 on the turn, or use a template that renders it (chat.template)",
                reason=NOT_RENDERED,
            )

    def _alone(self, index: int, message: Message) -> str:
        """Render the conversation up to a turn, which is the last one then; "" where the template fails on that."""
        return self._tried([*self.messages[:index], message])

    def _tried(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Render messages; "" where the template fails on them."""
        try:
            return self._render(messages, prompt=prompt)
        except BadRecordError:
            return ""

    def _extent(self, whole: str, marked: MarkedTurn) -> _Extent:
        """Return where the words of a turn lie, whose marks are in `whole`."""
        items = [item for item in marked.items if item.mark in whole]
        first = min(items, key=lambda item: whole.find(item.mark))
        last = max(whole.rfind(item.mark) + len(item.mark) for item in items)
        start = shared_length(self.text, whole[: whole.find(first.mark)])
        tail = whole[last:]
        behind = _shared_end(self.text[start:], tail)
        return _Extent(start, len(self.text) - behind, first, len(tail) - behind)

    # ---- where a turn begins -----------------------------------------------------------------------------

    def _begin(self, index: int, extent: _Extent) -> int:
        """Return where a turn begins, whose words begin at ``extent.start``."""
        words = extent.start
        if self.text.endswith(extent.first.lead, 0, words):
            words -= len(extent.first.lead)
        start = self._behind_prompt(index, words)
        if start is not None:
            return self._behind_empty_reasoning(start, extent.start)
        if extent.first.kind != "call":
            return words
        start = self._behind_header(index, extent.start)
        if start is not None:
            return start
        raise BadRecordError(
            f"it cannot be told where in turn {index + 1} the assistant begins to speak: {_REMEDY}",
            reason=UNFOUND,
        )

    def _before(self, index: int, *, prompt: bool) -> str | None:
        """Render the conversation before a turn; None where the template fails on it."""
        key = index, prompt
        if key not in self.befores:
            try:
                self.befores[key] = self._render(self.messages[:index], prompt=prompt)
            except BadRecordError:
                return None
        return self.befores[key]

    def _behind_prompt(self, index: int, limit: int) -> int | None:
        """Return where the generation prompt before a turn ends; None where that cannot be told."""
        asked = self._before(index, prompt=True)
        if asked is None:
            return None
        if self.text.startswith(asked) and len(asked) <= limit and not self.text[len(asked) : limit].strip():
            return len(asked)
        is_prompt = bool(self.finder.prompt) and asked.endswith(self.finder.prompt)
        if is_prompt and self.text.startswith(asked) and len(asked) <= limit:
            return len(asked)
        begun = self._before(index, prompt=False)
        if begun is None:
            return None
        size = _behind(asked, begun, self.text[:limit])
        if size is not None:
            return size
        # The turns before are rendered in another way: follow both texts from the end of their last words.
        place = self._previous_end(index, limit)
        if place is None:
            return None
        tails: list[str] = []
        for prompt in (True, False):
            rendered = self._tried(place.messages, prompt=prompt)
            if place.mark not in rendered:
                return None
            tails.append(rendered.rpartition(place.mark)[2][place.quote :])
        size = _behind(tails[0], tails[1], self.text[place.end : limit])
        return None if size is None else place.end + size

    def _previous_end(self, index: int, limit: int) -> _LastWords | None:
        """Return the last words before a turn; None where the text holds none before `limit`."""
        for at in range(index - 1, -1, -1):
            marked = mark_turn(self.messages[at], self.salt)
            if not marked.items:  # a blank content, whose place a mark shows all the same
                item = Item("content", "its content", "", f"{self.salt}0x")
                marked = MarkedTurn({**self.messages[at], "content": item.mark}, (item,))
            whole = self._tried(
                [*self.messages[:at], marked.message, *self.messages[at + 1 :]],
                prompt=self.finder.is_prompted,
            )
            items = [item for item in marked.items if item.mark in whole]
            if not items:
                continue
            extent = self._extent(whole, marked)
            if extent.stop > limit:
                continue
            mark = max((item.mark for item in items), key=whole.rfind)
            messages = [*self.messages[:at], marked.message, *self.messages[at + 1 : index]]
            return _LastWords(extent.stop, messages, mark, extent.quote)
        return None

    def _behind_empty_reasoning(self, start: int, limit: int) -> int:
        """Return where a turn begins behind the empty reasoning that a prompt supplies, where the text has it there."""
        for block in self.finder.empty_blocks:
            end = start + len(block)
            if end <= limit and self.text.startswith(block, start):
                return end
        return start

    def _behind_header(self, index: int, limit: int) -> int | None:
        """Return where a turn begins that is a call, and that no prompt before it tells: where words would begin."""
        mark = f"{self.salt}x"
        spoken = {"role": ASSISTANT, "content": mark}
        head, found, _ = self._alone(index, spoken).partition(mark)
        if found and self.text.startswith(head) and len(head) <= limit:
            return len(head)
        place = self._previous_end(index, limit)
        if place is None:
            return None
        rendered = self._tried([*place.messages, spoken])
        if place.mark in rendered and mark in rendered:
            header = rendered.partition(mark)[0].rpartition(place.mark)[2][place.quote :]
            begin = place.end + len(header)
            if begin <= limit and self.text.startswith(header, place.end):
                return begin
        # What makes the assistant speak elsewhere.
        prompt = self.finder.prompt
        begin = self.text.rfind(prompt, place.end, limit) if prompt else -1
        if begin >= 0:
            return begin + len(prompt)
        return self._behind_turn_before(place, limit)

    def _behind_turn_before(self, place: _LastWords, limit: int) -> int | None:
        """Return where the turn before ends, where the template gives the next one no header at all.

        That is so where nothing of the usual prompt stands between both turns.
        """
        gap = self.text[place.end : limit]
        names = [token for token in self.finder.endings if token in self.finder.prompt]
        names = names or self.finder.prompt.split()[:1]
        before = self._tried(place.messages)
        tail = before.rpartition(place.mark)[2][place.quote :]
        is_bare = (
            bool(names)
            and place.mark in before
            and gap.startswith(tail)
            and not any(name in gap for name in names)
        )
        return place.end + len(tail) if is_bare else None

    # ---- where it ends -----------------------------------------------------------------------------------

    def _end(self, index: int, marked: MarkedTurn, extent: _Extent) -> int:
        """Return where a turn ends, whose words end at ``extent.stop``."""
        text = self.text
        is_last = index + 1 == len(self.messages)
        if is_last and not self.finder.is_prompted:
            return self._trimmed(extent.stop, len(text))
        upto = self._before(index + 1, prompt=False)
        if upto is not None and text.startswith(upto) and len(upto) >= extent.stop:
            return self._trimmed(extent.stop, len(upto))
        alone = self._alone(index, marked.message)
        marks = [item.mark for item in marked.items if item.mark in alone]
        tail = alone.rpartition(max(marks, key=alone.rfind))[2][extent.quote :] if marks else ""
        gap = text[extent.stop :]
        if gap.startswith(tail):
            return self._trimmed(extent.stop, extent.stop + len(tail))
        return extent.stop + self._first_ending(gap, tail)

    def _first_ending(self, gap: str, tail: str) -> int:
        """Return how much of `gap` belongs to a turn that ends in another way than `tail`: up to a special token.

        `tail` ends the turn where no other follows (``<|return|>``), and `gap` begins with what ends it here
        (``<|end|>``). Up to that token both are alike. 0 where no token is found.
        """
        places = [(gap.find(token), -len(token)) for token in self.finder.endings if token in gap]
        if not places:
            return 0
        place, size = min(places)
        return place - size if gap[:place].strip() == tail[:place].strip() else 0

    def _trimmed(self, start: int, stop: int) -> int:
        """Return the end of a turn without the blanks behind the special token that ends it."""
        end = start + len(self.text[start:stop].rstrip())
        return end if end > start and self.text.endswith(self.finder.endings, start, end) else stop

    def _answer_start(self, index: int, thought: _Extent) -> int:
        """Return where the answer of a turn begins, whose reasoning is known; where there is none, its end."""
        message = self.messages[index]
        marked = mark_turn(message, self.salt, ("content",))
        whole = self._with(index, marked.message)
        if any(item.mark in whole for item in marked.items):
            return self._extent(whole, marked).start
        if not calls_of(message):
            return thought.stop
        # A call has no mark where it begins; what stands between reasoning and words stands before it too.
        thinking = mark_turn(message, self.salt, ("reasoning",)).message
        mark = f"{self.salt}x"
        spoken = {
            name: value for name, value in thinking.items() if name not in ("tool_calls", "function_call")
        }
        alone = self._alone(index, {**spoken, "content": mark})
        closing = alone.partition(mark)[0].rpartition(f"{self.salt}0x")[2]
        return thought.stop + shared_length(closing, self.text[thought.stop :])


def _behind(asked: str, begun: str, text: str) -> int | None:
    """Return how much of a text is the conversation before a turn and its prompt; None where that cannot be told.

    Args:
        asked: the conversation before the turn, with a prompt.
        begun: the same without a prompt; equal to `asked` where the template has none.
        text: what is followed, up to the words of the turn.
    """
    shared = shared_length(asked, text)
    rest = text[shared:]
    if shared == len(asked):
        is_told = asked != begun or not rest.strip()  # without a prompt a header may follow
        return shared if is_told else None
    # The prompt may end with tags that this turn lacks, such as an empty block of reasoning.
    tags = _ENDS_IN_TAGS.search(asked)
    assert tags is not None  # it matches the empty text at the end
    if not text.startswith(begun) or not len(begun) < tags.start() <= shared:
        return None
    size = tags.start()
    for tag in _TAG_OR_BLANK.findall(tags.group()):
        if not text.startswith(tag, size):
            break
        size += len(tag)
    return size


def _is_spelled(words: str, text: str) -> bool:
    """Return whether a text holds words, as they are or as JSON."""
    quoted = json.dumps(words, ensure_ascii=False)[1:-1]
    return bool(words) and (words in text or quoted in text)


def generation_prompt(render: Render, **variables: Any) -> str:
    """Return what a template makes the assistant speak with after a question; "" where that cannot be told.

    Args:
        render: as of :class:`TurnFinder`.
        variables: of the template.
    """
    question = [{"role": "user", "content": "Hello"}]
    try:
        begun = render(question, None, add_generation_prompt=False, **variables)
        asked = render(question, None, add_generation_prompt=True, **variables)
    except (BadRecordError, ConfigError):
        return ""
    return asked[len(begun) :] if asked.startswith(begun) else ""


def _shared_end(left: str, right: str) -> int:
    """Return how many characters two texts end with alike: by halving, for texts may be long."""
    low = 0
    high = min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def assistant_turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the indices of the assistant's turns."""
    for index, message in enumerate(messages):
        if message.get("role") == ASSISTANT:
            yield index
