"""Objects at URLs: ranged reading, retries, one file per protocol; what inputs and read-only stores share.

A new store is a client in a file of its own (:class:`tokenlake.store.remote.objects.BucketClient`, each method one
request), its scheme in :mod:`tokenlake.store.remote.url` and a line in :mod:`tokenlake.store.remote.filesystems`.
"""
