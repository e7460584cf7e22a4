"""``python -m tests.seeds``: the table as Markdown, and how many promises are kept."""

from __future__ import annotations

from collections import Counter

from tests.seeds.table import table
from tokenlake.etl.reports import Table, label, to_markdown

if __name__ == "__main__":
    promises = table()
    rows = [
        (str(one.number), one.state, one.text, ", ".join(one.tests) or one.reason)
        for one in promises
    ]
    columns = (label("number"), label("state"), label("promise"), label("shown by"))
    print(to_markdown(Table(columns, tuple(rows))))
    print(
        ", ".join(
            f"{count} {state}"
            for state, count in sorted(Counter(one.state for one in promises).items())
        )
    )
