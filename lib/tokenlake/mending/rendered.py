"""Files that follow from a manifest alone: the card, the configuration, the claim."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from tokenlake.build.textproject import config_yaml
from tokenlake.catalog import Claim
from tokenlake.catalog.claims import State
from tokenlake.manifest import Manifest
from tokenlake.report.card import render_card
from tokenlake.storage.layout import CARD, CONFIG


def rendered(manifest: Manifest, path: str) -> bytes | None:
    """Return what this release makes of a file that follows from the manifest; None for any other file."""
    if path == CARD:
        # It was written when the manifest did not list it yet.
        others = {name: entry for name, entry in manifest.other_files.items() if name != CARD}
        return render_card(replace(manifest, other_files=others)).encode()
    return config_yaml(manifest.config) if path == CONFIG else None


def claim_bytes(manifest: Manifest, damaged: bytes) -> bytes:
    """Return the claim of a version, in the state that its damaged bytes speak for.

    A version of an older release has a claim in its first state, others were committed from the second; where the
    damage leaves no trace of either, the second is as good.
    """
    base = Claim(
        dataset=manifest.dataset, version=manifest.version, fingerprint=manifest.fingerprint, meta={}
    )
    committing = base.turned("committing").to_bytes()
    forms = [committing, *(base.turned(state).to_bytes() for state in get_args(State) if state == "building")]
    return max(forms, key=lambda form: common(form, damaged))


def common(form: bytes, damaged: bytes) -> int:
    """Return how many bytes two texts begin with in common, and end with."""
    return _run(form, damaged) + _run(form[::-1], damaged[::-1])


def _run(form: bytes, damaged: bytes) -> int:
    pairs = zip(form, damaged, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(form), len(damaged)))
