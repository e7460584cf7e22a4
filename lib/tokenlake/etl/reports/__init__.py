"""Tables, cards and reports about a dataset, for people, programs and pages.

A :class:`Table` holds raw values, and each :class:`Column` knows how to write one. The
terminal (``reports/terminal.py``), :func:`to_markdown` and :func:`to_html` show the
written form; :meth:`Table.records` gives programs the raw values. All but the terminal
are pure functions: the same input gives the same text.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
