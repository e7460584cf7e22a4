"""Mapping from the roles of a pipeline, such as `text`, to the columns of a dataset.

Columns are found by name, synonym, similarity and type, in this order.
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
"""Step that found the column of a role."""

_MOST_COMPARED: Final = 1000  # columns up to which names are compared letter by letter
_CANDIDATES: Final = 3  # columns that are named for a role without a column
_TEXT_ROLES: Final = frozenset({"text", "instruction", "output"})  # roles of strings
_LONG_TEXT: Final = 100  # mean characters from which a column may be the text
_LENGTH_RATIO: Final = 4  # times the length of the next column, to be clearly the text


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
        for entry in self.mapped:
            if entry.role == role:
                return entry
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class ColumnMapper:
    """Mapping from roles such as `text` to columns, in steps.

    The steps are: explicit, exact name, synonym, similar name, type.

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
        # The steps from the surest to the least sure one.
        search = _Search(tuple(dict.fromkeys(wanted)), columns)
        search.take_explicit(explicit or {})
        search.take("exact", _exact_score)
        search.take("synonym", _synonym_score)
        if search.compares_letters:
            min_score = self.min_fuzzy_score
            search.take(
                "fuzzy", lambda role, column: _fuzzy_score(role, column, min_score)
            )
        search.take_by_type(lengths or {})
        return search.result()

    def map_columns(
        self,
        source_columns: Iterable[str] | Mapping[str, Shape],
        target_schema: Iterable[str],
    ) -> Result[dict[str, str], TokenlakeError]:
        """Return {name of the schema: column} for all names, or an error.

        It is an error if a name of `target_schema` has no column.

        Args:
            source_columns: Names of the existing columns, or mapping from name to type.
            target_schema: Names to map, or mapping with these keys.
        """
        return attempt(lambda: self._all_mapped(source_columns, target_schema))

    def _all_mapped(
        self, columns: Iterable[str], wanted: Iterable[str]
    ) -> dict[str, str]:
        """Return role -> column for all roles; ConfigError if one has no column."""
        # An iterator can be read only once, and the error names the columns, too.
        if not isinstance(columns, Mapping):
            columns = tuple(columns)
        mapping = self.map(wanted, columns)
        if not mapping.unmapped:
            return mapping.columns
        # One missing role is enough for the error; the others follow once it is
        # repaired.
        missing = mapping.unmapped[0]
        candidates: list[str] = []
        for candidate in missing.candidates:
            candidates.append(f"{candidate.column!r} ({candidate.score:.2f})")
        column_names = ", ".join(map(repr, columns)) or "none"
        raise ConfigError(
            f"column mapping: no column for {missing.role!r} among {column_names}; the nearest unused one: "
            f"{', '.join(candidates) or 'none'}. Rename one, or lower min_fuzzy_score",
            field_path=missing.role,
            expected=f"a column for {missing.role!r}",
            got=column_names,
        )


def fuzzy_match_columns(
    source_columns: Iterable[str], target_columns: Iterable[str], threshold: float = 0.7
) -> dict[str, str]:
    """Return {target: source column} for the targets that have a column.

    Columns are found by name, synonym and similarity.
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
                column_names = sorted(self._all)
                raise ConfigError(
                    f"column mapping: {role!r} -> {column!r}, but there is no column {column!r}"
                    f"{did_you_mean(column, column_names)} The columns are {', '.join(column_names) or 'none'}.",
                    got=column,
                )
            if column not in self._free:
                raise ConfigError(
                    f"column mapping: column {column!r} is mapped to two names; map it to one"
                )
            self._put(role, column, "explicit", 1.0)

    def take(self, how: How, score: Callable[[str, str], float]) -> None:
        """Take the pairs whose `score` (role, column) is above 0, the best first."""
        # Sorted tuples: the best score, then exact spelling, the order of the roles,
        # the commonness of the synonym, and the name of the column.
        pairs: list[tuple[float, bool, int, int, str, str]] = []
        for role_index, role in enumerate(self._roles):
            if role in self._mapped:
                continue
            for column in self._free:
                if not self._fits(role, column):
                    continue
                pair_score = score(role, column)
                if pair_score > 0:
                    is_other_spelling = column != role
                    rank = rank_of(column)
                    pairs.append(
                        (-pair_score, is_other_spelling, role_index, rank, column, role)
                    )
        # A pair is left out if its role or its column belongs to a better one.
        for negative_score, _, _, _, column, role in sorted(pairs):
            if role not in self._mapped and column in self._free:
                self._put(role, column, how, -negative_score)

    def take_by_type(self, lengths: Mapping[str, float]) -> None:
        """Take the only possible column of `messages`, and the only one of `text`."""
        for role in self._roles:
            if role in self._mapped:
                continue
            column: str | None = None
            if role == "messages":
                column = self._only_chat()
            elif role == "text":
                column = self._only_text(lengths)
            if column is not None:
                # The score is that of the name, although the type decided.
                self._put(role, column, "type", _best_similarity(role, column))

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
        candidates: list[Candidate] = []
        for column in self._free:
            candidates.append(Candidate(column, _best_similarity(role, column)))
        candidates.sort(key=lambda candidate: (-candidate.score, candidate.column))
        return tuple(candidates[:_CANDIDATES])

    def _put(self, role: str, column: str, how: How, score: float) -> None:
        """Map a role to a column, which is not free any more."""
        self._mapped[role] = MappedColumn(role, column, how, score)
        self._free.remove(column)

    def _fits(self, role: str, column: str) -> bool:
        """Return True if a column has a type that a role can have.

        An unknown type fits.
        """
        shape = self._shapes.get(column)
        if shape is None or shape.kind == "null":
            return True
        # Conversations are for `messages` alone; the roles of texts need strings.
        known_role = role_of(role)
        if known_role == "messages":
            return shape.is_chat
        return shape.is_text or (known_role not in _TEXT_ROLES and not shape.is_chat)

    def _only_text(self, lengths: Mapping[str, float]) -> str | None:
        """Return the string column that is clearly the text.

        It is the only column, or one whose texts have 100 characters on average and are
        four times as long as those of any other free string column.
        """
        string_columns: list[str] = []
        for column in self._free:
            if column in self._shapes and self._shapes[column].is_text:
                # A column whose name says that it is something else is not taken for a
                # text.
                role = role_of(column)
                if role is None or not self._fits(role, column):
                    string_columns.append(column)
        if not string_columns:
            return None
        if len(string_columns) == 1 and len(self._shapes) == 1:
            return string_columns[0]

        # The longest column, and the one after it. Names break ties, so that the order
        # of the columns has no effect.
        string_columns.sort(key=lambda column: (-lengths.get(column, 0.0), column))
        longest = string_columns[0]
        longest_length = lengths.get(longest, 0.0)
        second_length = 0.0
        if len(string_columns) > 1:
            second_length = lengths.get(string_columns[1], 0.0)
        if (
            longest_length < _LONG_TEXT
            or longest_length < _LENGTH_RATIO * second_length
        ):
            return None
        return longest

    def _only_chat(self) -> str | None:
        """Return the only free column of lists of turns; None if there are several."""
        chats: list[str] = []
        for column in self._free:
            if column in self._shapes and self._shapes[column].is_chat:
                chats.append(column)
        if len(chats) == 1:
            return chats[0]
        return None


def _exact_score(role: str, column: str) -> float:
    """Return 1 if a role and a column have one name, however it is spelled."""
    if role == column:
        return 1.0
    # Names without letters have no words, and are not equal to each other.
    role_name = normalized(role)
    return float(role_name != "" and role_name == normalized(column))


def _synonym_score(role: str, column: str) -> float:
    """Return 1 if a column's name is a synonym of a role."""
    known_role = role_of(role)
    return float(known_role is not None and known_role == role_of(column))


def _fuzzy_score(role: str, column: str, least_score: float) -> float:
    """Return the similarity of a column to a role; 0 if it is too small.

    A column that belongs to another role by its name has the similarity 0.
    """
    other_role = role_of(column)
    if other_role is not None and other_role != role_of(role):
        return 0.0
    score = _best_similarity(role, column)
    if score < least_score:
        return 0.0
    return score


def _best_similarity(role: str, column: str) -> float:
    """Return the best similarity of a column to any name of a role."""
    return max(similarity(name, column) for name in names_of(role))
