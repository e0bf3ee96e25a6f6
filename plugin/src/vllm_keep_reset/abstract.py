"""Keep mode's parameter on vLLM's abstract methods, for whoever reads or implements them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def declare(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace an abstract or unimplemented `reset_prefix_cache`."""

    def reset_prefix_cache(
        self: object,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        keep_running_requests: bool = False,  # noqa: ARG001  (declared, not implemented)
    ) -> object:
        return original(self, reset_running_requests, reset_connector)

    reset_prefix_cache.__doc__ = original.__doc__
    if getattr(original, "__isabstractmethod__", False):
        return abstractmethod(reset_prefix_cache)
    return reset_prefix_cache
