"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.reports.store_pages.contents import ExportSummary as ExportSummary
from tokenlake.etl.reports.store_pages.contents import InputSet as InputSet
from tokenlake.etl.reports.store_pages.contents import StatementSummary as StatementSummary
from tokenlake.etl.reports.store_pages.contents import StoreContents as StoreContents
from tokenlake.etl.reports.store_pages.contents import VersionName as VersionName
from tokenlake.etl.reports.store_pages.contents import VersionState as VersionState
from tokenlake.etl.reports.store_pages.contents import VersionSummary as VersionSummary
from tokenlake.etl.reports.store_pages.graph_layout import PlacedBox as PlacedBox
from tokenlake.etl.reports.store_pages.graph_layout import place_boxes as place_boxes
from tokenlake.etl.reports.store_pages.lineage_drawing import STYLE as STYLE
from tokenlake.etl.reports.store_pages.lineage_drawing import render_lineage as render_lineage
from tokenlake.etl.reports.store_pages.lineage_graph import LineageGraph as LineageGraph
from tokenlake.etl.reports.store_pages.lineage_graph import build_graph as build_graph
from tokenlake.etl.reports.store_pages.places import ABOVE_VERSION as ABOVE_VERSION
from tokenlake.etl.reports.store_pages.places import DATASETS as DATASETS
from tokenlake.etl.reports.store_pages.places import INDEX as INDEX
from tokenlake.etl.reports.store_pages.places import LINEAGE as LINEAGE
from tokenlake.etl.reports.store_pages.places import lineage_place as lineage_place
from tokenlake.etl.reports.store_pages.places import rows_page as rows_page
from tokenlake.etl.reports.store_pages.places import version_page as version_page
from tokenlake.etl.reports.store_pages.row_browser import DecodedDocument as DecodedDocument
from tokenlake.etl.reports.store_pages.row_browser import DecodedRow as DecodedRow
from tokenlake.etl.reports.store_pages.row_browser import render_rows as render_rows
from tokenlake.etl.reports.store_pages.store_index import render_index as render_index
