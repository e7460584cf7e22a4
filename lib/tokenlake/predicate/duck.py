"""DuckDB as a calculator: it sees one record batch at a time and nothing else of this machine."""

from __future__ import annotations

import atexit
import json
import re
import threading
from functools import lru_cache
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError

_SETTINGS: Final = {
    "threads": "1",
    # of one batch of records; nothing is spilled to a disk
    "memory_limit": "2GB",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # a name must never find a Python variable of ours
    "python_enable_replacements": "false",
}
_ROWS: Final = "tokenlake rows"  # no identifier that anybody writes
_UNDERLINED: Final = re.compile(r"(LINE \d+: )(.*)\n( *)(\^+)")
_FUNCTIONS: Final = "SELECT lower(function_name), function_type, stability FROM duckdb_functions()"


@final
class Engine:
    """One in-memory database of one thread with a locked configuration; usable from several threads."""

    def __init__(self) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise MissingExtraError("`where` needs duckdb: pip install 'tokenlake[etl]'") from error
        self._lock = threading.Lock()
        self._error: Any = duckdb.Error
        self._connection: Any = duckdb.connect(":memory:", config=dict(_SETTINGS))
        self._connection.execute("SET TimeZone = 'UTC'")
        draw_nothing(self._connection)
        self._connection.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Let go of DuckDB."""
        with self._lock:
            self._connection.close()
            del self._connection, self._error

    def parse(self, statement: str) -> dict[str, Any]:
        """Return DuckDB's own syntax tree of a SELECT; ConfigError with its sentence if it has none."""
        try:
            with self._lock:
                found = self._connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        except (self._error, UnicodeError) as error:
            raise ConfigError(str(error)) from error
        tree = json.loads(found[0][0])
        if tree["error"]:
            raise ConfigError(str(tree["error_message"]))
        return tree

    def functions(self) -> list[tuple[str, str, str | None]]:
        """Return (name, kind, stability) of every function there is."""
        with self._lock:
            return self._connection.execute(_FUNCTIONS).fetchall()

    def evaluate(self, expression: str, rows: pa.RecordBatch) -> pa.ChunkedArray[Any]:
        """Return the value of an expression for every record, in order.

        Raises:
            ConfigError: DuckDB cannot compute it; the message is its sentence and the place it names.
        """
        query = f'SELECT (\n{expression}\n) FROM "{_ROWS}"'
        with self._lock:
            try:
                self._connection.register(_ROWS, rows)
                return self._connection.sql(query).to_arrow_table().column(0)
            except self._error as error:
                raise ConfigError(_sentence(str(error))) from error
            finally:
                self._connection.unregister(_ROWS)


def draw_nothing(connection: Any) -> None:
    """Turn off DuckDB's progress bar, which goes into the standard output of programs that have no file (`python -c`).

    Only where it is on: in Jupyter without ipywidgets it is off, and every setting of it is refused.
    """
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchone()[0]:
        connection.execute("SET enable_progress_bar = false")


@lru_cache(maxsize=1)
def engine() -> Engine:
    """Return this process's engine; making it imports DuckDB, which costs a tenth of a second."""
    made = Engine()
    atexit.register(_close)
    return made


def _close() -> None:
    engine().close()
    engine.cache_clear()


def _sentence(message: str) -> str:
    """``Conversion Error: Could not ... (at `x > 'abc'`)``: no line numbers of a query nobody wrote."""
    what = message.split("\n", 1)[0].strip()
    found = _UNDERLINED.search(message)
    if not found:
        return what
    prefix, line, blanks, carets = found.groups()
    start = len(blanks) - len(prefix)
    place = line[max(start, 0) : start + len(carets)].strip()
    return f"{what} (at `{place}`)" if place else what
