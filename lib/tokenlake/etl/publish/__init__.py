"""Publishing of a version in a dataset repository of the Hugging Face Hub.

::

    state     nothing to do, or the tag is missing, or a commit is    decision.py
    secrets   any secret in texts or metadata refuses the push        secret_scan.py
    contents  shards in groups, compared with the manifest and sent   upload.py
    commit    all files at once, on top of the state; then compared   upload.py
    tag       v3, under which `revision="v3"` finds the version       push.py

A push that is interrupted leaves nothing visible, and the same command sends the rest.
Shards are copied to this machine one group at a time, so that the disk never holds more
than one group. The copy that was compared is the copy that is sent, so a store that
changes during the push cannot change the published bytes.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
