"""SQL expressions over the fields of a record.

DuckDB parses and computes them, and they are checked to be pure.

DuckDB sees one record batch at a time and nothing else of this machine. The value of an
expression must depend on the record alone, so that every run, range and worker comes to
the same one.
"""

from __future__ import annotations

import atexit
import json
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError

CLOSED: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # a name must never find a Python variable of ours
    "python_enable_replacements": "false",
}
"""Settings of every DuckDB of ours: it runs no code and reads no data that it is not
given.
"""

_SETTINGS: Final = {
    "threads": "1",
    # enough for one batch of records; nothing is spilled to a disk
    "memory_limit": "2GB",
    "enable_external_access": "false",
    **CLOSED,
}
_ROWS: Final = "tokenlake rows"  # an identifier that nobody writes
_UNDERLINED: Final = re.compile(r"(LINE \d+: )(.*)\n( *)(\^+)")
_FUNCTIONS: Final = (
    "SELECT lower(function_name), function_type, stability FROM duckdb_functions()"
)


Node = dict[str, Any]
"""Node of DuckDB's syntax tree."""
Path = tuple[str, ...]
"""Names of a field and of fields inside it, from the top."""
_NOUNS: Final = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its position",
    "DEFAULT": "DEFAULT",
}
# Macros are SQL of DuckDB's own. These are pure; others read the clock, the session or
# the catalog.
_PURE_MACROS: Final = frozenset(
    {"date_add", "days_in_month", "fdiv", "fmod", "if", "json", "nullif", "split_part"}
    | {
        "map_contains_entry",
        "map_contains_value",
        "md5_number_lower",
        "md5_number_upper",
    }
)
_PURE_FAMILIES: Final = ("list_", "array_")
# Consistent in one process, another value in the next.
_FUNCTIONS_OF_THE_BUILD: Final = frozenset({"version"})
# Names that SQL takes for a function if there is no column of that name; quoted, they
# are columns.
_CLOCKS: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
_WHERE: Final = "SELECT 1 WHERE "
_EXPECTED: Final = (
    "`where` is one SQL expression over the fields of one record, "
    "such as \"lang = 'py' and length(text) > 200\""
)


@final
class ConditionDatabase:
    """One in-memory database of one thread with a locked configuration.

    Threads may share it.
    """

    def __init__(self) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "`where` needs duckdb: pip install 'tokenlake[etl]'"
            ) from error
        self._lock = threading.Lock()
        self._error: Any = duckdb.Error
        self._connection: Any = duckdb.connect(":memory:", config=dict(_SETTINGS))
        # Dates and times are in UTC, whatever the machine's zone is.
        self._connection.execute("SET TimeZone = 'UTC'")
        draw_nothing(self._connection)
        self._connection.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Close DuckDB."""
        with self._lock:
            self._connection.close()
            del self._connection, self._error

    def parse(self, statement: str) -> dict[str, Any]:
        """Return DuckDB's own syntax tree of a SELECT.

        Raises:
            ConfigError: The statement cannot be parsed; the message is DuckDB's.
        """
        try:
            with self._lock:
                result_rows = self._connection.execute(
                    "SELECT json_serialize_sql(?)", [statement]
                ).fetchall()
        except (self._error, UnicodeError) as error:
            raise ConfigError(str(error)) from error
        tree = json.loads(result_rows[0][0])
        if tree["error"]:
            raise ConfigError(str(tree["error_message"]))
        return tree

    def functions(self) -> list[tuple[str, str, str | None]]:
        """Return (name, kind, stability) of every function that DuckDB has."""
        with self._lock:
            return self._connection.execute(_FUNCTIONS).fetchall()

    def evaluate(self, expression: str, rows: pa.RecordBatch) -> pa.ChunkedArray[Any]:
        """Return the value of an expression for every record, in order.

        Args:
            expression: SQL expression over the columns of `rows`.
            rows: Records.

        Raises:
            ConfigError: DuckDB cannot compute it; the message is DuckDB's, with the
                place that it names.
        """
        # On lines of its own: a comment at the end of the expression would otherwise
        # hide the rest of the query.
        query = f'SELECT (\n{expression}\n) FROM "{_ROWS}"'
        with self._lock:
            try:
                self._connection.register(_ROWS, rows)
                return self._connection.sql(query).to_arrow_table().column(0)
            except self._error as error:
                raise ConfigError(_message_with_place(str(error))) from error
            finally:
                self._connection.unregister(_ROWS)


def draw_nothing(connection: Any) -> None:
    """Turn off DuckDB's progress bar.

    It is printed to the standard output of programs without a file (`python -c`).

    Only where it is on: in Jupyter without ipywidgets it is off, and every setting of
    it is refused.
    """
    setting = "SELECT current_setting('enable_progress_bar')"
    is_on = connection.execute(setting).fetchone()[0]
    if is_on:
        connection.execute("SET enable_progress_bar = false")


@lru_cache(maxsize=1)
def engine() -> ConditionDatabase:
    """Return this process's database.

    The first call imports DuckDB, which takes a tenth of a second.
    """
    database = ConditionDatabase()

    def close() -> None:
        database.close()
        engine.cache_clear()

    atexit.register(close)
    return database


def _message_with_place(message: str) -> str:
    """Return a message of DuckDB with the place that it underlines.

    The lines of a query that nobody wrote are left out.

    Example: ``Conversion Error: Could not ... (at `x > 'abc'`)``.
    """
    sentence = message.split("\n", 1)[0].strip()
    underlined = _UNDERLINED.search(message)
    if not underlined:
        return sentence
    # Carets stand below the place, behind the prefix and the blanks.
    prefix, line, blanks, carets = underlined.groups()
    place_start = len(blanks) - len(prefix)
    underlined_text = line[max(place_start, 0) : place_start + len(carets)].strip()
    if not underlined_text:
        return sentence
    return f"{sentence} (at `{underlined_text}`)"


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression.

    Attributes:
        sql: Expression as it was written.
        tree: Expression as DuckDB's syntax tree.
        columns: Top-level fields that it looks at, sorted.
        paths: Fields that it looks at, from the top: ``meta.lang`` is ("meta", "lang").
    """

    sql: str
    tree: Node
    columns: tuple[str, ...]
    paths: tuple[Path, ...]


@lru_cache(maxsize=256)
def parse(sql: str) -> Expression:
    """Parse and check an expression, once per process.

    Raises:
        ConfigError: The text is not one expression, not a pure function of a record, or
            names no field.
    """
    try:
        # It must be one whole expression both bare and in parentheses: in parentheses
        # no clause can follow it (``true ORDER BY x``); bare it cannot close them
        # (``true) UNION (...``).
        tree = _where_clause(sql, f"{_WHERE}(\n{sql}\n)")
        bare_tree = _where_clause(sql, f"{_WHERE}\n{sql}\n")
        if not tree or _without_places(tree) != _without_places(bare_tree):
            raise _refused(sql, "it is more than one expression")
        paths = sorted(set(_paths(tree, frozenset(), sql)))
    except RecursionError as error:
        raise _refused(sql, "it is nested too deeply") from error
    # It must look at fields, whose names differ in more than case.
    columns = sorted({path[0] for path in paths})
    if not columns:
        raise _refused(sql, "it uses no field, so it would keep all records or none")
    name_of_folded: dict[str, str] = {}
    for name in columns:
        other_name = name_of_folded.setdefault(name.lower(), name)
        if other_name != name:
            raise _refused(
                sql, f"SQL cannot distinguish the fields {other_name!r} and {name!r}"
            )
    return Expression(sql, tree, tuple(columns), tuple(paths))


def _where_clause(sql: str, statement: str) -> Node | None:
    """Return the syntax tree of the condition in a statement that holds `sql`."""
    try:
        statements = engine().parse(statement)["statements"]
    except ConfigError as error:
        raise _refused(sql, str(error)) from error
    if len(statements) != 1:
        raise _refused(sql, "it is more than one expression")
    return statements[0]["node"].get("where_clause")


def _without_places(tree: Any) -> Any:
    """Return a tree without the places in the text."""
    if isinstance(tree, dict):
        node: Node = tree
        # Positions differ between the two forms of an expression, which otherwise are
        # alike.
        return {
            key: _without_places(value)
            for key, value in node.items()
            if not key.startswith("query_location")
        }
    if isinstance(tree, list):
        items: list[Any] = tree
        return [_without_places(item) for item in items]
    return tree


def _paths(node: Node, bound: frozenset[str], sql: str) -> Iterator[Path]:
    """Yield the fields that a tree looks at.

    Args:
        node: Tree.
        bound: Parameters of the lambdas around it, in lower case.
        sql: The whole expression, for messages.

    Raises:
        ConfigError: A node is not allowed.
    """
    path = field_path(node)
    # Any node but a field: its operands are looked at.
    if path is None:
        if node["class"] == "LAMBDA":
            bound |= _parameters(node, sql)
        for child in _children(node, sql):
            yield from _paths(child, bound, sql)
        return
    field_name = path[0]
    # A parameter of a lambda is no field.
    if field_name.lower() in bound:
        return
    if node["class"] == "COLUMN_REF" and field_name.lower() in _CLOCKS:
        byte_offset = node["query_location"] - len(f"{_WHERE}(\n")
        is_quoted = sql.encode()[byte_offset : byte_offset + 1] == b'"'
        if not is_quoted:
            raise _refused(
                sql,
                f'{field_name} is the current time, so runs would differ; quote it ("{field_name}") if it is a field',
            )
    yield path


def field_path(node: Node) -> Path | None:
    """Return the names in ``a``, ``a.b`` or ``a['b'].c``; None for any other node."""
    if node["class"] == "COLUMN_REF":
        return tuple(node["column_names"])
    is_extract = node["type"] in ("STRUCT_EXTRACT", "ARRAY_EXTRACT")
    if is_extract and len(node["children"]) == 2:
        inner, key_node = node["children"]
        path = field_path(inner)
        if (
            path
            and key_node["class"] == "CONSTANT"
            and key_node["literal"]["kind"] == "STRING"
        ):
            return (*path, key_node["literal"]["text"])
    return None


def _children(node: Node, sql: str) -> Iterable[Node]:
    """Return the operands of a node.

    Raises:
        ConfigError: A predicate may not hold such a node.
    """
    # A list of what is allowed: a node of a later release of DuckDB is refused.
    match node["class"]:
        case "CONSTANT":
            return ()
        case "CONJUNCTION":
            return node["children"]
        case "OPERATOR" if node["type"] != "GROUPING_FUNCTION":
            return node["children"]
        case "COMPARISON":
            return node["left"], node["right"]
        case "BETWEEN":
            return node["input"], node["lower"], node["upper"]
        case "CAST" | "COLLATE":
            return (node["child"],)
        case "LAMBDA":
            return (node["expr"],)
        case "CASE":
            operands: list[Node] = []
            for check in node["case_checks"]:
                operands += (check["when_expr"], check["then_expr"])
            if node["else_expr"]:
                operands.append(node["else_expr"])
            return operands
        case "FUNCTION":
            _require_pure(node, sql)
            return [argument["expression"] for argument in node["arguments"]]
        case kind:
            raise _refused(sql, f"{_NOUNS.get(kind, kind.lower())} is not allowed")


def _parameters(node: Node, sql: str) -> frozenset[str]:
    """Return the names of a lambda's parameters, in lower case."""
    if node["syntax_type"] != "LAMBDA_KEYWORD":
        # `a -> 'b'` may be JSON and `x -> x + 1` a lambda: DuckDB decides it by the
        # types.
        raise _refused(
            sql, "`->` is not allowed; write `lambda x: ...`, or json_extract(a, 'b')"
        )
    left = node["lhs"]
    parameters = [left]
    if left["class"] != "COLUMN_REF":
        parameters = [argument["expression"] for argument in left["arguments"]]
    return frozenset(parameter["column_names"][0].lower() for parameter in parameters)


def _require_pure(node: Node, sql: str) -> None:
    """Raise ConfigError unless a function's value depends on its arguments alone."""
    function_name = node["function_name"].lower()
    # ``a.lower()`` may be a method of the field `a` or a function of the schema `a`:
    # only plain calls are allowed.
    if node["schema"] or node["catalog"]:
        parts = [
            part for part in (node["catalog"], node["schema"], function_name) if part
        ]
        qualified_name = ".".join(parts)
        raise _refused(
            sql,
            f"{qualified_name}(...) is not allowed; write {function_name}(...) with the field as its argument",
        )
    # Only DuckDB's own functions that return the same value for the same arguments are
    # allowed.
    function_kinds = _kinds().get(function_name)
    if function_kinds is None:
        raise _refused(
            sql,
            f"{function_name}(...) is not a function of one record that DuckDB knows",
        )
    is_aggregate = not function_kinds.isdisjoint({("aggregate", ""), ("window", "")})
    if is_aggregate and ("scalar", "CONSISTENT") not in function_kinds:
        raise _refused(
            sql,
            f"{function_name}(...) is an aggregate over many records, which is not allowed",
        )
    is_pure_macro = function_name in _PURE_MACROS or function_name.startswith(
        _PURE_FAMILIES
    )
    is_pure_function = (
        function_kinds == {("scalar", "CONSISTENT")}
        and function_name not in _FUNCTIONS_OF_THE_BUILD
    )
    if not is_pure_macro and not is_pure_function:
        raise _refused(
            sql,
            f"{function_name}(...) does not depend on the record alone, so runs would differ",
        )


@lru_cache(maxsize=1)
def _kinds() -> dict[str, set[tuple[str, str]]]:
    """Return the kinds of every function: (kind, stability of a scalar one).

    Keys are names of functions.
    """
    kinds_of_function: dict[str, set[tuple[str, str]]] = {}
    for name, kind, stability in engine().functions():
        if kind == "scalar":
            kinds_of_function.setdefault(name, set()).add((kind, stability or ""))
        elif kind in ("macro", "aggregate", "window"):
            kinds_of_function.setdefault(name, set()).add((kind, ""))
    return kinds_of_function


def _refused(sql: str, reason: str) -> ConfigError:
    """Return the error for an expression that cannot be used."""
    return ConfigError(
        f"where: {sql!r} cannot be used: {reason}. {_EXPECTED}.", where=sql
    )
