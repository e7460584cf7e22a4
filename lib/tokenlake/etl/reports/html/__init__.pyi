"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.reports.html.account_flow import flow as flow
from tokenlake.etl.reports.html.document import PageScript as PageScript
from tokenlake.etl.reports.html.document import folded as folded
from tokenlake.etl.reports.html.document import page as page
from tokenlake.etl.reports.html.figures import COLOURS as COLOURS
from tokenlake.etl.reports.html.figures import areas as areas
from tokenlake.etl.reports.html.figures import bars as bars
from tokenlake.etl.reports.html.figures import coloured as coloured
from tokenlake.etl.reports.html.figures import doubling as doubling
from tokenlake.etl.reports.html.figures import legend as legend
from tokenlake.etl.reports.html.figures import stack as stack
from tokenlake.etl.reports.html.manifest_parts import Sections as Sections
from tokenlake.etl.reports.html.manifest_parts import lineage as lineage
from tokenlake.etl.reports.html.manifest_parts import manifest_sections as manifest_sections
from tokenlake.etl.reports.html.manifest_parts import tiles as tiles
