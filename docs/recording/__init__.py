"""Recording of a build in a terminal, as an animated picture.

``python -m docs.recording`` writes docs/recording.svg.

The commands really run, in a pseudo-terminal. `session.py` runs them and presses
Ctrl-C, `screen.py` turns their output into screens, and `film.py` draws the screens.
"""
