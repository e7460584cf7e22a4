"""What others may import from this package, and where each name is defined."""

from tokenlake.query.relation_names import relations as relations
from tokenlake.query.report import render_report as render_report
from tokenlake.query.report import store_report as store_report
from tokenlake.query.row_sample import sample_rows as sample_rows
from tokenlake.query.row_sample import spread as spread
from tokenlake.query.sequences import read_sequences as read_sequences
