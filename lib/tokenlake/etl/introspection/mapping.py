"""From the roles a pipeline wants, such as `text`, to the columns of a dataset: by name, synonym, likeness and type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, final

from tokenlake.base.checks import did_you_mean
from tokenlake.base.result import Result, attempt
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.introspection.column_names import names_of, normalized, rank_of, role_of, similarity
from tokenlake.etl.introspection.shapes import Shape

How = Literal["explicit", "exact", "synonym", "fuzzy", "type"]

_MOST_COMPARED: Final = 1000  # columns up to which names are compared letter by letter
_CANDIDATES: Final = 3
_TEXT_ROLES: Final = frozenset({"text", "instruction", "output"})


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A column that a wanted name might mean, and how alike the names are (0 to 1)."""

    column: str
    score: float


@final
@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A wanted name and the column found for it.

    Attributes:
        role: the wanted name.
        column: the dataset's column.
        how: ``explicit`` (the caller said so), ``exact`` (the same name, however it is spelled), ``synonym``,
            ``fuzzy``, or ``type`` (by what it holds, whatever its name).
        score: how alike the names are, 0 to 1; 1.0 for explicit, exact and synonym.
    """

    role: str
    column: str
    how: How
    score: float


@final
@dataclass(frozen=True, slots=True)
class UnmappedRole:
    """A wanted name without a column, and the columns left over that come nearest, best first."""

    role: str
    candidates: tuple[Candidate, ...]


@final
@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Which column every wanted name means; both parts are in the order of the wanted names."""

    mapped: tuple[MappedColumn, ...]
    unmapped: tuple[UnmappedRole, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Return wanted name to column, for those that have one."""
        return {entry.role: entry.column for entry in self.mapped}

    def get(self, role: str) -> MappedColumn | None:
        """Return what was found for a wanted name, None if nothing was."""
        return next((entry for entry in self.mapped if entry.role == role), None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class ColumnMapper:
    """Mapping from roles such as `text` to columns, in steps: explicit, exact name, synonym, similar name, type.

    Each step considers all roles before the next step begins. In a step the most similar pair is taken first (see
    ``similarity`` in ``column_names.py``). Ties are broken by exact spelling, then by the order of the roles, then by
    the commoner synonym, then by the name of the column. A column is used once. The order of the columns has no effect,
    and a higher threshold only removes mappings. Among more than 1,000 columns names are not compared by similarity,
    which would take minutes.

    If types are known, a column of an unsuitable type is not taken by its name: `messages` are lists of turns, and
    `text`, `instruction` and `output` are strings. By type alone, the only list of turns is `messages`, and the only
    string column, or one four times as long as every other, is `text`.

    Attributes:
        min_fuzzy_score: Minimum similarity of two names that are matched by similarity, above 0 and at most 1.

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
            wanted: Roles such as ``text`` and ``messages``, or other names; repetitions count once.
            columns: Names of the existing columns, or mapping from name to type.
            explicit: Role -> column, for roles whose column is known; None: none.
            lengths: Column of strings -> mean number of its characters, for mapping by type; None: unknown.

        Raises:
            ConfigError: `explicit` names a column that does not exist, one column twice, or a name not wanted.
        """
        search = _Search(tuple(dict.fromkeys(wanted)), columns)
        search.take_explicit(explicit or {})
        search.take(
            "exact", lambda role, column: role == column or normalized(role) == normalized(column) != ""
        )
        search.take("synonym", lambda role, column: role_of(role) == role_of(column) is not None)
        if search.compares_letters:
            search.take("fuzzy", lambda role, column: _fuzzy(role, column, self.min_fuzzy_score))
        search.take_by_type(lengths or {})
        return search.result()

    def map_columns(
        self, source_columns: Iterable[str] | Mapping[str, Shape], target_schema: Iterable[str]
    ) -> Result[dict[str, str], TokenlakeError]:
        """Return {name of the schema: column} for every name of `target_schema`, or an error if one has no column.

        Args:
            source_columns: Names of the existing columns, or mapping from name to type.
            target_schema: Names to map, or mapping with these keys.
        """
        return attempt(lambda: self._all_mapped(source_columns, target_schema))

    def _all_mapped(self, columns: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
        columns = columns if isinstance(columns, Mapping) else tuple(columns)
        found = self.map(wanted, columns)
        if not found.unmapped:
            return found.columns
        missing = found.unmapped[0]
        near = ", ".join(f"{each.column!r} ({each.score:.2f})" for each in missing.candidates)
        has = ", ".join(map(repr, columns)) or "none"
        raise ConfigError(
            f"column mapping: no column for {missing.role!r} among {has}; the nearest unused one: {near or 'none'}. "
            "Rename one, or lower min_fuzzy_score",
            field_path=missing.role,
            expected=f"a column for {missing.role!r}",
            got=has,
        )


def fuzzy_match_columns(
    source_columns: Iterable[str], target_columns: Iterable[str], threshold: float = 0.7
) -> dict[str, str]:
    """Return {target: source column} for the targets that have one, by name, synonym and similarity.

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
    """One mapping in the making."""

    def __init__(self, wanted: tuple[str, ...], columns: Iterable[str] | Mapping[str, Shape]) -> None:
        self._wanted = wanted
        self._shapes: Mapping[str, Shape] = columns if isinstance(columns, Mapping) else {}
        self._free = set(columns)
        self._all = frozenset(self._free)
        self._found: dict[str, MappedColumn] = {}

    @property
    def compares_letters(self) -> bool:
        """Whether there are few enough columns to compare each name with all that are wanted."""
        return len(self._all) <= _MOST_COMPARED

    def take_explicit(self, explicit: Mapping[str, str]) -> None:
        """Take what the caller said."""
        for role, column in explicit.items():
            if role not in self._wanted:
                raise ConfigError(
                    f"column mapping: {role!r} -> {column!r}, but {role!r} is not one of the names to map; expected "
                    f"one of {', '.join(map(repr, self._wanted)) or 'nothing'}"
                )
            if column not in self._all:
                known = sorted(self._all)
                raise ConfigError(
                    f"column mapping: {role!r} -> {column!r}, but there is no column {column!r}"
                    f"{did_you_mean(column, known)} The columns are {', '.join(known) or 'none'}.",
                    got=column,
                )
            if column not in self._free:
                raise ConfigError(f"column mapping: column {column!r} is mapped to two names; map it to one")
            self._put(role, column, "explicit", 1.0)

    def take(self, how: How, score: Callable[[str, str], float]) -> None:
        """Take the pairs for which `score` (role, column) is above 0, the highest first."""
        pairs = [
            (-found, column != role, self._wanted.index(role), rank_of(column), column, role)
            for role in self._wanted
            for column in self._free
            if role not in self._found
            and self._fits(role, column)
            and (found := float(score(role, column))) > 0
        ]
        for negative, _, _, _, column, role in sorted(pairs):
            if role not in self._found and column in self._free:
                self._put(role, column, how, -negative)

    def take_by_type(self, lengths: Mapping[str, float]) -> None:
        """Take the column that can only be `messages`, and the one that can only be `text`."""
        for role in self._wanted:
            if role in self._found or role not in {"messages", "text"}:
                continue
            if role == "messages":
                chats = [name for name in self._free if name in self._shapes and self._shapes[name].is_chat]
                column = chats[0] if len(chats) == 1 else None
            else:
                column = self._only_text(lengths)
            if column is not None:
                self._put(role, column, "type", _best(role, column))

    def result(self) -> ColumnMapping:
        """Return what was found and what was not."""
        unmapped: list[UnmappedRole] = []
        for role in (role for role in self._wanted if role not in self._found):
            compared = self._free if self.compares_letters else ()
            nearest = sorted((-_best(role, column), column) for column in compared)[:_CANDIDATES]
            unmapped.append(UnmappedRole(role, tuple(Candidate(name, -score) for score, name in nearest)))
        mapped = tuple(self._found[role] for role in self._wanted if role in self._found)
        return ColumnMapping(mapped, tuple(unmapped))

    def _put(self, role: str, column: str, how: How, score: float) -> None:
        self._found[role] = MappedColumn(role, column, how, score)
        self._free.remove(column)

    def _fits(self, role: str, column: str) -> bool:
        shape = self._shapes.get(column)
        if shape is None or shape.kind == "null":
            return True
        kind = role_of(role)
        if kind == "messages":
            return shape.is_chat
        return shape.is_text or (kind not in _TEXT_ROLES and not shape.is_chat)

    def _only_text(self, lengths: Mapping[str, float]) -> str | None:
        """The free string column; among several one whose texts are four times as long, and 100 characters."""
        strings = [name for name in self._free if name in self._shapes and self._shapes[name].is_text]
        # A name that says something else than this is not taken for a text.
        texts = [name for name in strings if (role := role_of(name)) is None or not self._fits(role, name)]
        if len(texts) == 1 and len(self._shapes) == 1:
            return texts[0]
        ordered = sorted(texts, key=lambda name: (-lengths.get(name, 0.0), name))
        if not ordered or lengths.get(ordered[0], 0.0) < 100:
            return None
        second = lengths.get(ordered[1], 0.0) if len(ordered) > 1 else 0.0
        return ordered[0] if lengths[ordered[0]] >= 4 * second else None


def _fuzzy(role: str, column: str, least: float) -> float:
    """The best similarity to any name of the role; a column that plainly is something else has none."""
    kind = role_of(column)
    if kind is not None and kind != role_of(role):
        return 0.0
    score = _best(role, column)
    return score if score >= least else 0.0


def _best(role: str, column: str) -> float:
    return max(similarity(name, column) for name in names_of(role))
