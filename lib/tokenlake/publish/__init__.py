"""Publishing: a committed version, byte for byte and nothing else, in a repository of the Hugging Face Hub."""

from tokenlake.publish.hub import push_to_hub
from tokenlake.publish.push import PushProgress, PushReport, push
from tokenlake.publish.repository import HubTarget
from tokenlake.publish.scan import Finding

__all__ = ["Finding", "HubTarget", "PushProgress", "PushReport", "push", "push_to_hub"]
