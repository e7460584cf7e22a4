"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.introspection.column_names import SYNONYMS as SYNONYMS
from tokenlake.etl.introspection.column_names import role_of as role_of
from tokenlake.etl.introspection.column_names import similarity as similarity
from tokenlake.etl.introspection.column_names import words_of as words_of
from tokenlake.etl.introspection.inspection import DatasetMetadata as DatasetMetadata
from tokenlake.etl.introspection.inspection import Group as Group
from tokenlake.etl.introspection.inspection import Inspection as Inspection
from tokenlake.etl.introspection.introspector import DatasetIntrospector as DatasetIntrospector
from tokenlake.etl.introspection.introspector import inspect as inspect
from tokenlake.etl.introspection.mapping import ColumnMapper as ColumnMapper
from tokenlake.etl.introspection.mapping import fuzzy_match_columns as fuzzy_match_columns
from tokenlake.etl.introspection.shapes import Shape as Shape
from tokenlake.etl.introspection.shapes import shape_of_value as shape_of_value
