"""Preferences: rows with better and worse answers become the ids that preference trainers read.

``judgement`` says what a row holds, ``sharedprompt`` finds what two answers begin with alike, ``renderer`` makes
texts, ``joining`` makes a prompt's ids and its answers' ids of the ids of these texts, ``table`` the columns.
"""
