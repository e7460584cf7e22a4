"""What a source holds, and a configuration that builds from it, without reading all of the source.

:class:`~tokenlake.inspect.introspector.DatasetIntrospector` opens a few of the files and reads their first records;
:class:`~tokenlake.inspect.mapping.ColumnMapper` knows what columns are usually called.
"""
