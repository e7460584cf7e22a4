"""Compile an expression to transition tables that split a text in one pass.

**What is reproduced.** A backtracking engine tries the branches of an expression in
order and takes the first one that leads to a match. It searches the next match where
the last one ended. The automaton here gives the same matches:

1. The tree becomes a graph of nodes. A fork lists its branches by preference (greedy:
   repeat first).
2. A state of the automaton is the list of graph nodes that are reached at a place of
   the text, by preference. When a match is reached, everything after it in the list is
   dropped: it would only be tried if the match failed.
3. A condition on the next character is decided when that character is read. So a match
   is not a property of a state, but of the transition out of it: "with this next
   symbol, a match ends *before* it".

The end of the text is one more symbol, the last one.

Example: ``a+(?!b)|a`` on "aab" reads "a" and "a"; then "b" ends no match of the first
branch there, but the transition on the second "a" had noted one after the first "a".

**The tables** are laid out for :func:`tokenlake.etl.tokenizers.words.kernels.split`.
They hold the transitions of the automaton with the search for the next match built in.
An entry is ``state << 3`` and these bits:

- CUT: a piece ends before this character, and the state is the one after the character
  as the first of a new piece;
- MATCH: a match ends before this character, but a longer one may follow;
- STOP: no longer match is possible, and none ends here: take the one that was noted
  last.

State 0 is the beginning of a piece, state 1 text that no match can begin in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, UInt8
from tokenlake.etl.tokenizers.words.classes import Symbols
from tokenlake.etl.tokenizers.words.expressions import (
    Alternatives,
    CharacterClass,
    Lookahead,
    Node,
    Repeat,
    UnsupportedError,
)

CUT: Final = 1
MATCH: Final = 2
STOP: Final = 4
STATE_SHIFT: Final = 3
BEGIN: Final = 0
UNMATCHED: Final = 1
# An entry has 16 bits, three of them flags, which leaves 8,192 states. The limit also
# bounds the time to compile, which takes a step per state and symbol.
_MOST_STATES: Final = 2000
_MOST_NODES: Final = 2000
_ASCII: Final = 128
# Target of a transition after which no match is possible.
_DEAD: Final = -1

UInt16 = npt.NDArray[np.uint16]
State = tuple[int, ...]
"""Graph nodes by preference."""


@final
@dataclass(frozen=True, slots=True)
class Splitter:
    """The tables of one expression.

    Attributes:
        by_byte: uint16[states * 128], the entry for each state and ASCII character.
        by_symbol: uint16[states * symbols], the entry for each state and symbol.
        symbol_of: uint8[0x110000], the symbol of each code point.
        symbols: Number of symbols.
        at_end: uint8[states], 1 where a match ends at the end of the text.
        quiet: uint8[256], 1 for bytes of characters at which text outside of matches
            goes on, whatever follows them.
        covers_all: Whether every character of every text belongs to a match.
    """

    by_byte: UInt16
    by_symbol: UInt16
    symbol_of: UInt8
    symbols: int
    at_end: UInt8
    quiet: UInt8
    covers_all: bool

    @property
    def tables(self) -> tuple[UInt16, UInt16, UInt8, int, UInt8, UInt8]:
        """Tables in the order of the arguments of the loop that splits.

        See :func:`tokenlake.etl.tokenizers.words.kernels.split`.
        """
        return (
            self.by_byte,
            self.by_symbol,
            self.symbol_of,
            self.symbols,
            self.at_end,
            self.quiet,
        )


def classes_of(tree: Node) -> list[str]:
    """Return the sources of the character classes in a tree.

    Each is listed once, in order of appearance.
    """
    # A dict keeps the order; the parts of a node are pushed in reverse, because the
    # last one is taken first.
    sources: dict[str, None] = {}
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, CharacterClass):
            sources[node.source] = None
        elif isinstance(node, Lookahead):
            sources[node.following.source] = None
        elif isinstance(node, Repeat):
            pending.append(node.part)
        elif isinstance(node, Alternatives):
            pending.extend(reversed(node.branches))
        else:
            pending.extend(reversed(node.parts))
    return list(sources)


def compile_tree(tree: Node, sources: Sequence[str], symbols: Symbols) -> Splitter:
    """Return the tables of an expression.

    Args:
        tree: The expression.
        sources: Its classes, as :func:`classes_of` returns them.
        symbols: The symbols of these classes.

    Raises:
        UnsupportedError: The expression matches the empty text, needs a possessive
            repetition that changes matches, or has too many states.
    """
    graph = _Graph(sources, symbols.members)
    start = graph.add(tree, graph.add_match())
    states = _States(graph, start)
    return states.tables(symbols.of_point)


@final
@dataclass(frozen=True, slots=True)
class _GraphNode:
    """A node of the graph: a fork, a condition, a character or the match.

    Attributes:
        branches: Nodes that are reached without reading, by preference.
        accepts: bool[symbols + 1], the symbols that are read (or, for a condition,
            follow); None for a fork.
        is_condition: Whether the symbol is only looked at.
        following: The node after a character or condition.
    """

    branches: tuple[int, ...] = ()
    accepts: Bools | None = None
    is_condition: bool = False
    following: int = -1


@final
class _Graph:
    """The nodes of an expression.

    Args:
        sources: Sources of the character classes.
        members: bool[symbols, classes].
    """

    def __init__(self, sources: Sequence[str], members: Bools) -> None:
        self.nodes: list[_GraphNode] = []
        self.size = len(members) + 1
        # Number of unlimited repetitions whose part is being added.
        self._loops = 0
        self._accepts: dict[str, Bools] = {}
        for class_number, source in enumerate(sources):
            # The end of the text is no member of any class.
            self._accepts[source] = np.append(members[:, class_number], False)

    def add_match(self) -> int:
        """Add the node at which a match is complete."""
        return self._append(_GraphNode())

    def add(self, tree: Node, following: int) -> int:
        """Add the nodes of a tree in front of a node, and return the first of them."""
        if isinstance(tree, CharacterClass):
            return self._append(
                _GraphNode(accepts=self._accepts[tree.source], following=following)
            )
        if isinstance(tree, Lookahead):
            accepts = self._accepts[tree.following.source]
            if tree.is_negative:
                accepts = ~accepts
            return self._append(
                _GraphNode(accepts=accepts, is_condition=True, following=following)
            )
        if isinstance(tree, Alternatives):
            branches = [self.add(branch, following) for branch in tree.branches]
            return self._append(_GraphNode(branches=tuple(branches)))
        if isinstance(tree, Repeat):
            return self._add_repeat(tree, following)
        # A concatenation is added from its end: each part leads to the one after it.
        for part in reversed(tree.parts):
            following = self.add(part, following)
        return following

    def _add_repeat(self, tree: Repeat, following: int) -> int:
        if _can_be_empty(tree.part):
            raise UnsupportedError("an expression repeats a part that can be empty")
        if tree.is_possessive:
            self._require_no_giving_back(tree, following)
        first = following
        if tree.most is None:
            # 1a. No limit: a fork that leads into the part, which leads back to it. The
            #     fork needs the number of its part, and the part that of the fork. So
            #     the fork is filled in last.
            fork = self._append(_GraphNode())
            self._loops += 1
            part = self.add(tree.part, fork)
            self._loops -= 1
            self.nodes[fork] = _GraphNode(
                branches=_by_preference(tree, part, following)
            )
            first = fork
        else:
            # 1b. A limit: one fork for each repetition that may be left out.
            for _ in range(tree.most - tree.least):
                part = self.add(tree.part, first)
                first = self._append(
                    _GraphNode(branches=_by_preference(tree, part, following))
                )
        # 2. The repetitions that are required stand in front.
        for _ in range(tree.least):
            first = self.add(tree.part, first)
        return first

    def _require_no_giving_back(self, tree: Repeat, following: int) -> None:
        """Check that a possessive repetition matches like a greedy one.

        Both match the same if giving a character back never leads to a match: no symbol
        that can come next belongs to the repeated class. They also do if the match is
        reached at once, because then nothing is given back.
        """
        if not isinstance(tree.part, CharacterClass) or self._loops:
            raise UnsupportedError(
                "an expression repeats a group possessively, or possessively inside a repetition"
            )
        # What comes after the repetition is known only when its loops are complete.
        begins, can_match_at_once = self._beginnings(following)
        overlaps = bool(np.any(begins & self._accepts[tree.part.source]))
        if overlaps and not can_match_at_once:
            raise UnsupportedError(
                "an expression repeats possessively what the next part begins with"
            )

    def _beginnings(self, first: int) -> tuple[Bools, bool]:
        """Return the symbols that can come next, and whether it can match at once.

        Args:
            first: Number of the node.

        Returns:
            bool[symbols + 1], symbols that are read next, or that a condition before
            the match accepts; and whether a match is reached without reading a symbol.
            The second is False if there is any condition on the way.
        """
        begins = np.zeros(self.size, np.bool_)
        can_match_at_once = False
        has_condition = False
        pending = [first]
        visited: set[int] = set()
        while pending:
            number = pending.pop()
            if number in visited:
                continue
            visited.add(number)
            node = self.nodes[number]
            if node.branches:
                pending.extend(node.branches)
            elif node.accepts is None:
                can_match_at_once = True
            elif not node.is_condition:
                begins |= node.accepts
            else:
                # A symbol passes if the condition accepts it and the nodes after it do.
                # Before the match they accept every symbol.
                has_condition = True
                next_begins, can_match_next = self._beginnings(node.following)
                if can_match_next:
                    next_begins = np.ones(self.size, np.bool_)
                begins |= next_begins & node.accepts
        return begins, can_match_at_once and not has_condition

    def _append(self, node: _GraphNode) -> int:
        if len(self.nodes) >= _MOST_NODES:
            raise UnsupportedError(f"an expression needs more than {_MOST_NODES} nodes")
        self.nodes.append(node)
        return len(self.nodes) - 1


def _by_preference(tree: Repeat, part: int, following: int) -> tuple[int, ...]:
    """Return the branches of a repetition's fork in the order of its preference."""
    if tree.is_lazy:
        return (following, part)
    return (part, following)


def _can_be_empty(tree: Node) -> bool:
    """Whether a tree can match without reading a character."""
    if isinstance(tree, CharacterClass):
        return False
    if isinstance(tree, Lookahead):
        return True
    if isinstance(tree, Repeat):
        return tree.least == 0 or _can_be_empty(tree.part)
    if isinstance(tree, Alternatives):
        return any(_can_be_empty(branch) for branch in tree.branches)
    return all(_can_be_empty(part) for part in tree.parts)


@final
@dataclass(slots=True)
class _States:
    """The automaton of a graph.

    Attributes:
        graph: The graph.
        first: Its first node.
        numbers: State to its number, in order of discovery; the first state is number
            0.
        ends: For each state a list over symbols: whether a match ends before the
            symbol.
        targets: For each state a list over symbols: the number of the next state, -1
            for none.
    """

    graph: _Graph
    first: int
    numbers: dict[State, int] = field(default_factory=dict[State, int])
    ends: list[list[bool]] = field(default_factory=list[list[bool]])
    targets: list[list[int]] = field(default_factory=list[list[int]])

    def __post_init__(self) -> None:
        # Discover all states from the first one: the list grows while it is read.
        states: list[State] = [(self.first,)]
        self.numbers[states[0]] = 0
        for state in states:
            if len(states) > _MOST_STATES:
                raise UnsupportedError(
                    f"an expression needs more than {_MOST_STATES} states"
                )
            ends: list[bool] = []
            targets: list[int] = []
            for symbol in range(self.graph.size):
                is_end, target = self._step(state, symbol)
                ends.append(is_end)
                if not target:
                    targets.append(_DEAD)
                    continue
                if target not in self.numbers:
                    self.numbers[target] = len(states)
                    states.append(target)
                targets.append(self.numbers[target])
            self.ends.append(ends)
            self.targets.append(targets)
        # A match of the empty text would end where it begins, and the search would not
        # go on.
        if any(self.ends[0]):
            raise UnsupportedError("an expression matches the empty text")

    def _step(self, state: State, symbol: int) -> tuple[bool, State]:
        """Return whether a match ends before a symbol, and the state after it."""
        # A depth-first walk in order of preference through the nodes that read nothing.
        # The first visit of a node is the preferred one, so later ones are dropped.
        reached: dict[int, None] = {}
        visited: set[int] = set()
        pending = list(reversed(state))
        while pending:
            number = pending.pop()
            if number in visited:
                continue
            visited.add(number)
            node = self.graph.nodes[number]
            if node.accepts is None and not node.branches:
                # A match: what comes later in the list is only tried if this fails,
                # which it does not.
                return True, tuple(reached)
            if node.accepts is None:
                pending.extend(reversed(node.branches))
            elif not node.accepts[symbol]:
                continue
            elif node.is_condition:
                pending.append(node.following)
            else:
                reached[node.following] = None
        return False, tuple(reached)

    def tables(self, symbol_of: UInt8) -> Splitter:
        """Return the tables of the automaton.

        State n of the automaton becomes n + 2. State 0 also becomes :data:`BEGIN`.
        """
        count = len(self.targets)
        symbols = self.graph.size - 1
        by_symbol = np.zeros((count + 2, symbols), np.uint16)
        at_end = np.zeros(count + 2, np.uint8)
        # A match is certain in a state in which any next symbol, and the end, ends one.
        is_guaranteed = [all(ends) for ends in self.ends]
        covers_all = True
        for symbol in range(symbols):
            # 1. A new piece begins with this symbol. It is part of a match, or of the
            #    text that no match can begin in.
            first_target = self.targets[0][symbol]
            next_state = UNMATCHED if first_target == _DEAD else first_target + 2
            by_symbol[BEGIN, symbol] = next_state << STATE_SHIFT

            # 2. The symbol follows text outside of matches. If a match that begins here
            #    is certain, the piece is cut; else the caller searches for its end.
            if first_target == _DEAD:
                by_symbol[UNMATCHED, symbol] = UNMATCHED << STATE_SHIFT
                covers_all = False
            elif is_guaranteed[first_target]:
                by_symbol[UNMATCHED, symbol] = next_state << STATE_SHIFT | CUT
            else:
                by_symbol[UNMATCHED, symbol] = STOP
                covers_all = False

            # 3. The symbol follows inside a match.
            for state in range(count):
                is_end = self.ends[state][symbol]
                target = self.targets[state][symbol]
                if target != _DEAD:
                    entry = (target + 2) << STATE_SHIFT
                    if is_end:
                        entry |= MATCH
                elif is_end:
                    entry = next_state << STATE_SHIFT | CUT
                else:
                    entry = STOP
                by_symbol[state + 2, symbol] = entry
        # The end of the text is the last symbol.
        for state in range(count):
            at_end[state + 2] = self.ends[state][symbols]
        # ASCII has a table of its own, which saves the lookup of the symbol.
        by_byte = by_symbol[:, symbol_of[:_ASCII]]
        is_quiet = by_symbol[UNMATCHED] == UNMATCHED << STATE_SHIFT
        return Splitter(
            by_byte=np.ascontiguousarray(by_byte).reshape(-1),
            by_symbol=by_symbol.reshape(-1),
            symbol_of=symbol_of,
            symbols=symbols,
            at_end=at_end,
            quiet=_quiet_bytes(is_quiet, symbol_of),
            covers_all=covers_all,
        )


def _quiet_bytes(is_quiet: Bools, symbol_of: UInt8) -> UInt8:
    """Return the bytes that only characters outside of matches have in UTF-8.

    Args:
        is_quiet: bool[symbols], whether text outside of matches goes on at a symbol.
        symbol_of: uint8[0x110000], the symbol of each code point.

    Returns:
        uint8[256], 1 for such a byte.
    """
    quiet = np.zeros(256, np.uint8)
    quiet[:_ASCII] = is_quiet[symbol_of[:_ASCII]]
    # Bytes that go on with a character are reached only after a quiet lead byte.
    quiet[0x80:0xC0] = 1
    # Lead bytes of two, three and four bytes: the lowest one, their number, and the
    # bits of the code point that the other bytes hold.
    for lead_base, lead_count, shift in ((0xC0, 32, 6), (0xE0, 16, 12), (0xF0, 8, 18)):
        for lead_bits in range(lead_count):
            points = symbol_of[lead_bits << shift : (lead_bits + 1) << shift]
            are_quiet = len(points) > 0 and bool(np.all(is_quiet[points]))
            quiet[lead_base + lead_bits] = are_quiet
    return quiet
