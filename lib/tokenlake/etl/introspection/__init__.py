"""What a source holds, and a configuration that builds from it, without reading all of the source.

:class:`~tokenlake.etl.introspection.introspector.DatasetIntrospector` opens a few of the files and reads their first
records; :class:`~tokenlake.etl.introspection.mapping.ColumnMapper` knows what columns are usually called.
"""
