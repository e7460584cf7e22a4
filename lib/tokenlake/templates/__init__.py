"""Chat templates: programs that come with tokenizers and configurations, run in a process that is bounded.

=====================  =============================================================================
here, imported by all  :mod:`template`, :mod:`process`: what callers have of a template
there, in the process  :mod:`serving`, :mod:`program`, :mod:`sandbox`, :mod:`learning`, :mod:`outline`
on both sides          :mod:`rendered`
=====================  =============================================================================
"""

from tokenlake.templates.rendered import Limits, RenderedChat
from tokenlake.templates.template import ChatTemplate

__all__ = ["ChatTemplate", "Limits", "RenderedChat"]
