"""Mapping from the roles of a pipeline, such as `text`, to the columns of a dataset:
by name, synonym and type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, final

from tokenlake.base.checks import did_you_mean
from tokenlake.base.result import Result, attempt
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.introspection.column_names import (
    names_of,
    normalized,
    rank_of,
    role_of,
    similarity,
)
from tokenlake.etl.introspection.shapes import Shape

How = Literal["explicit", "exact", "synonym", "fuzzy", "type"]

_MOST_COMPARED: Final = 1000  # columns up to which names are compared letter by letter
_CANDIDATES: Final = 3
_TEXT_ROLES: Final = frozenset({"text", "instruction", "output"})


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A column that may belong to a role.

    Attributes:
        column: Name of the column.
        score: Similarity of the names, 0 to 1.
    """

    column: str
    score: float


@final
@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A role and its column.

    Attributes:
        role: Name of the role.
        column: Name of the column.
        how: Step that found it: ``explicit`` (named by the caller), ``exact`` (the same
            name, however it is spelled), ``synonym``, ``fuzzy`` (a similar name), or
            ``type`` (whatever its name).
        score: Similarity of the names, 0 to 1; 1.0 for explicit, exact and synonym.
    """

    role: str
    column: str
    how: How
    score: float


@final
@dataclass(frozen=True, slots=True)
class UnmappedRole:
    """A role without a column.

    Attributes:
        role: Name of the role.
        candidates: Unused columns with the most similar names, the best first.
    """

    role: str
    candidates: tuple[Candidate, ...]


@final
@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """The columns of roles.

    Attributes:
        mapped: Roles with a column, in the order of the request.
        unmapped: Roles without a column, in the order of the request.
    """

    mapped: tuple[MappedColumn, ...]
    unmapped: tuple[UnmappedRole, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Role -> column, for roles that have one."""
        return {entry.role: entry.column for entry in self.mapped}

    def get(self, role: str) -> MappedColumn | None:
        """Return the column of a role; None if it has none."""
        return next((entry for entry in self.mapped if entry.role == role), None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class ColumnMapper:
    """Mapping from roles such as `text` to columns, in steps: explicit, exact name,
    synonym, similar name, type.

    Each step considers all roles before the next step begins. In a step the most
    similar pair is taken first (see ``similarity`` in ``column_names.py``). Ties are
    broken by exact spelling, then by the order of the roles, then by the commoner
    synonym, then by the name of the column. A column is used once. The order of the
    columns has no effect, and a higher threshold only removes mappings. Among more than
    1,000 columns names are not compared by similarity, which would take minutes.

    If types are known, a column of an unsuitable type is not taken by its name:
    `messages` are lists of turns, and `text`, `instruction` and `output` are strings.
    By type alone, the only list of turns is `messages`, and the only string column, or
    one four times as long as every other, is `text`.

    Attributes:
        min_fuzzy_score: Minimum similarity of two names that are matched by similarity,
            above 0 and at most 1.

    Example:
        >>> from tokenlake.data_pipeline import ColumnMapper
        >>> ColumnMapper().map(["text", "messages"], ["body", "conversation"]).columns
        {'text': 'body', 'messages': 'conversation'}
    """

    min_fuzzy_score: float = 0.7

    def __post_init__(self) -> None:
        if not 0.0 < self.min_fuzzy_score <= 1.0:
            raise ConfigError(
                f"min_fuzzy_score: got {self.min_fuzzy_score!r}, must be above 0 and at most 1; names with a lower "
                "similarity are never mapped"
            )

    def map(
        self,
        wanted: Iterable[str],
        columns: Iterable[str] | Mapping[str, Shape],
        *,
        explicit: Mapping[str, str] | None = None,
        lengths: Mapping[str, float] | None = None,
    ) -> ColumnMapping:
        """Find a column for every wanted name.

        Args:
            wanted: Roles such as ``text`` and ``messages``, or other names; repetitions
                count once.
            columns: Names of the existing columns, or mapping from name to type.
            explicit: Role -> column, for roles whose column is known; None: none.
            lengths: Column of strings -> mean number of its characters, for mapping by
                type; None: unknown.

        Raises:
            ConfigError: `explicit` names a column that does not exist, one column
                twice, or a name not wanted.
        """
        search = _Search(tuple(dict.fromkeys(wanted)), columns)
        search.take_explicit(explicit or {})
        search.take(
            "exact",
            lambda role, column: (
                role == column or normalized(role) == normalized(column) != ""
            ),
        )
        search.take(
            "synonym", lambda role, column: role_of(role) == role_of(column) is not None
        )
        if search.compares_letters:
            search.take(
                "fuzzy", lambda role, column: _fuzzy(role, column, self.min_fuzzy_score)
            )
        search.take_by_type(lengths or {})
        return search.result()

    def map_columns(
        self,
        source_columns: Iterable[str] | Mapping[str, Shape],
        target_schema: Iterable[str],
    ) -> Result[dict[str, str], TokenlakeError]:
        """Return {name of the schema: column} for every name of `target_schema`, or an
        error if one has no column.

        Args:
            source_columns: Names of the existing columns, or mapping from name to type.
            target_schema: Names to map, or mapping with these keys.
        """
        return attempt(lambda: self._all_mapped(source_columns, target_schema))

    def _all_mapped(
        self, columns: Iterable[str], wanted: Iterable[str]
    ) -> dict[str, str]:
        """Return role -> column for all roles; ConfigError if one has no column."""
        if not isinstance(columns, Mapping):
            columns = tuple(columns)
        mapping = self.map(wanted, columns)
        if not mapping.unmapped:
            return mapping.columns
        missing = mapping.unmapped[0]
        candidates = ", ".join(
            f"{candidate.column!r} ({candidate.score:.2f})"
            for candidate in missing.candidates
        )
        names = ", ".join(map(repr, columns)) or "none"
        raise ConfigError(
            f"column mapping: no column for {missing.role!r} among {names}; the nearest unused one: "
            f"{candidates or 'none'}. Rename one, or lower min_fuzzy_score",
            field_path=missing.role,
            expected=f"a column for {missing.role!r}",
            got=names,
        )


def fuzzy_match_columns(
    source_columns: Iterable[str], target_columns: Iterable[str], threshold: float = 0.7
) -> dict[str, str]:
    """Return {target: source column} for the targets that have one, by name, synonym
    and similarity.

    Args:
        source_columns: Names of the existing columns.
        target_columns: Names that are searched, such as ``text``.
        threshold: Minimum similarity of two names, above 0 and at most 1.

    Raises:
        ConfigError: `threshold` is not above 0 and at most 1.

    Example:
        >>> from tokenlake.data_pipeline import fuzzy_match_columns
        >>> fuzzy_match_columns(["promt", "answer_text"], ["prompt", "answer"])
        {'prompt': 'promt', 'answer': 'answer_text'}
    """
    return ColumnMapper(threshold).map(target_columns, tuple(source_columns)).columns


@final
class _Search:
    """A mapping while it is made, step by step.

    Args:
        roles: Names of the roles, each once.
        columns: Names of the columns, or mapping from name to type.
    """

    def __init__(
        self, roles: tuple[str, ...], columns: Iterable[str] | Mapping[str, Shape]
    ) -> None:
        self._roles = roles
        self._shapes: Mapping[str, Shape] = {}
        if isinstance(columns, Mapping):
            self._shapes = columns
        self._free = set(columns)
        self._all = frozenset(self._free)
        self._mapped: dict[str, MappedColumn] = {}

    @property
    def compares_letters(self) -> bool:
        """True if there are few enough columns to compare the letters of all names."""
        return len(self._all) <= _MOST_COMPARED

    def take_explicit(self, explicit: Mapping[str, str]) -> None:
        """Take the columns that the caller named."""
        for role, column in explicit.items():
            if role not in self._roles:
                raise ConfigError(
                    f"column mapping: {role!r} -> {column!r}, but {role!r} is not one of the names to map; expected "
                    f"one of {', '.join(map(repr, self._roles)) or 'nothing'}"
                )
            if column not in self._all:
                names = sorted(self._all)
                raise ConfigError(
                    f"column mapping: {role!r} -> {column!r}, but there is no column {column!r}"
                    f"{did_you_mean(column, names)} The columns are {', '.join(names) or 'none'}.",
                    got=column,
                )
            if column not in self._free:
                raise ConfigError(
                    f"column mapping: column {column!r} is mapped to two names; map it to one"
                )
            self._put(role, column, "explicit", 1.0)

    def take(self, how: How, score: Callable[[str, str], float]) -> None:
        """Take the pairs for which `score` (role, column) is above 0, the highest
        first.
        """
        pairs: list[tuple[float, bool, int, int, str, str]] = []
        for index, role in enumerate(self._roles):
            if role in self._mapped:
                continue
            for column in self._free:
                pair_score = (
                    float(score(role, column)) if self._fits(role, column) else 0.0
                )
                if pair_score > 0:
                    # Ties: exact spelling, order of the roles, commonness of the
                    # synonym, name of the column.
                    pairs.append(
                        (
                            -pair_score,
                            column != role,
                            index,
                            rank_of(column),
                            column,
                            role,
                        )
                    )
        for negative_score, _, _, _, column, role in sorted(pairs):
            if role not in self._mapped and column in self._free:
                self._put(role, column, how, -negative_score)

    def take_by_type(self, lengths: Mapping[str, float]) -> None:
        """Take the column that can only be `messages`, and the one that can only be
        `text`.
        """
        for role in self._roles:
            if role in self._mapped:
                continue
            column: str | None = None
            if role == "messages":
                column = self._only_chat()
            elif role == "text":
                column = self._only_text(lengths)
            if column is not None:
                self._put(role, column, "type", _best(role, column))

    def result(self) -> ColumnMapping:
        """Return the mapping, and candidates for the roles that have no column."""
        mapped: list[MappedColumn] = []
        unmapped: list[UnmappedRole] = []
        for role in self._roles:
            if role in self._mapped:
                mapped.append(self._mapped[role])
            else:
                unmapped.append(UnmappedRole(role, self._candidates_of(role)))
        return ColumnMapping(tuple(mapped), tuple(unmapped))

    def _candidates_of(self, role: str) -> tuple[Candidate, ...]:
        """Return the unused columns with the names most similar to a role."""
        if not self.compares_letters:
            return ()
        candidates = [Candidate(column, _best(role, column)) for column in self._free]
        candidates.sort(key=lambda candidate: (-candidate.score, candidate.column))
        return tuple(candidates[:_CANDIDATES])

    def _put(self, role: str, column: str, how: How, score: float) -> None:
        """Map a role to a column, which is not free any more."""
        self._mapped[role] = MappedColumn(role, column, how, score)
        self._free.remove(column)

    def _fits(self, role: str, column: str) -> bool:
        """Return whether a column has a type that a role can have; an unknown type
        fits.
        """
        shape = self._shapes.get(column)
        if shape is None or shape.kind == "null":
            return True
        kind = role_of(role)
        if kind == "messages":
            return shape.is_chat
        return shape.is_text or (kind not in _TEXT_ROLES and not shape.is_chat)

    def _only_text(self, lengths: Mapping[str, float]) -> str | None:
        """Return the free string column; of several, one whose texts have 100
        characters and are four times as long.
        """
        texts: list[str] = []
        for name in self._free:
            if name in self._shapes and self._shapes[name].is_text:
                # A column whose name says that it is something else is not taken for a
                # text.
                role = role_of(name)
                if role is None or not self._fits(role, name):
                    texts.append(name)
        if len(texts) == 1 and len(self._shapes) == 1:
            return texts[0]
        ordered = sorted(texts, key=lambda name: (-lengths.get(name, 0.0), name))
        if not ordered or lengths.get(ordered[0], 0.0) < 100:
            return None
        second_length = 0.0
        if len(ordered) > 1:
            second_length = lengths.get(ordered[1], 0.0)
        if lengths[ordered[0]] >= 4 * second_length:
            return ordered[0]
        return None

    def _only_chat(self) -> str | None:
        """Return the only free column of lists of turns; None if there is none, or
        several.
        """
        chats = [
            name
            for name in self._free
            if name in self._shapes and self._shapes[name].is_chat
        ]
        if len(chats) == 1:
            return chats[0]
        return None


def _fuzzy(role: str, column: str, least: float) -> float:
    """Return the best similarity of a column to any name of a role; 0 if it is below
    `least`.

    A column that belongs to another role by its name has the similarity 0.
    """
    other_role = role_of(column)
    if other_role is not None and other_role != role_of(role):
        return 0.0
    score = _best(role, column)
    if score < least:
        return 0.0
    return score


def _best(role: str, column: str) -> float:
    """Return the best similarity of a column to any name of a role."""
    return max(similarity(name, column) for name in names_of(role))
