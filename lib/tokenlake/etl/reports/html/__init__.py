"""The HTML page of a report: the page, its figures, and the parts of a manifest.

A page is one file that loads nothing, runs nothing, and forbids both to the browser.
Figures are SVG shapes that stretch with the page; the words beside them are HTML, which
does not stretch.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
