"""What others may import from this package, and where each name is defined."""

from tokenlake.query.group_choice import spread as spread
from tokenlake.query.loss_tokens import LossShare as LossShare
from tokenlake.query.loss_tokens import loss_share as loss_share
from tokenlake.query.relation_names import relations as relations
from tokenlake.query.report import render_report as render_report
from tokenlake.query.report import store_report as store_report
from tokenlake.query.row_sample import sample_rows as sample_rows
from tokenlake.query.sequences import read_sequences as read_sequences
from tokenlake.query.texts_of_sources import text_accounts as text_accounts
