"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.reports.card import recipe as recipe
from tokenlake.etl.reports.card import render_card as render_card
from tokenlake.etl.reports.croissant import RowFiles as RowFiles
from tokenlake.etl.reports.croissant import metadata as metadata
from tokenlake.etl.reports.dataset import account_table as account_table
from tokenlake.etl.reports.dataset import equations as equations
from tokenlake.etl.reports.dataset import expected_lengths as expected_lengths
from tokenlake.etl.reports.dataset import length_policy as length_policy
from tokenlake.etl.reports.dataset import mixed_text_table as mixed_text_table
from tokenlake.etl.reports.dataset import mixture_table as mixture_table
from tokenlake.etl.reports.dataset import order_table as order_table
from tokenlake.etl.reports.dataset import remarks as remarks
from tokenlake.etl.reports.dataset import sources_table as sources_table
from tokenlake.etl.reports.serve import serve_folder as serve_folder
from tokenlake.etl.reports.tables import Column as Column
from tokenlake.etl.reports.tables import Table as Table
from tokenlake.etl.reports.tables import facts as facts
from tokenlake.etl.reports.tables import label as label
from tokenlake.etl.reports.tables import listed as listed
from tokenlake.etl.reports.tables import number as number
from tokenlake.etl.reports.tables import to_html as to_html
from tokenlake.etl.reports.tables import to_markdown as to_markdown
