"""From records of units to a version: units that are reused, and the one commit point.

Finished units of this claim and equal units of other versions are found again. Once
every unit has its record and all other files are in place, the manifest appears.

This is guaranteed, whichever process dies, sleeps or is slow, and whatever the clocks
say: of a build that commits and a ``gc`` that sweeps the same version, one succeeds and
the other changes nothing that counts.

- ``gc`` deletes nothing before the claim says ``swept``, and a swept claim never
  changes again. A commit first changes the claim from the very bytes that it read into
  ``committing``. Both are compare-and-swap: where the commit's succeeds, nothing was
  deleted until then.
- From ``committing`` on, the claim no longer stops anybody, as a process may sleep
  between its swap and its manifest longer than any grace period. So ``gc`` takes such a
  claim only after it created a closing note in the place of the manifest
  (:mod:`tokenlake.runtime.store.claims`). The manifest is created there, create-only:
  either the note fails, or the manifest does.
- Equal builds of one version do the same swap and create the same manifest; the later
  one finds both done.

So a manifest that is visible names files that no sweep deletes, and a swept number
never has a manifest.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
