"""Preferences: rows with better and worse answers become the ids that preference trainers read.

``judgement`` says what a row holds, ``sharedprompt`` finds what two answers begin with alike, ``renderer`` makes
texts, ``joining`` makes a prompt's ids and its answers' ids of the ids of these texts, ``table`` the columns.
"""

from tokenlake.transforms.preference.joining import Joined, Joiner
from tokenlake.transforms.preference.renderer import PreferenceRenderer
from tokenlake.transforms.preference.rowwise import PreferenceRows
from tokenlake.transforms.preference.table import preference_batch

__all__ = ["Joined", "Joiner", "PreferenceRenderer", "PreferenceRows", "preference_batch"]
