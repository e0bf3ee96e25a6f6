"""The wire: stamped HTTP, server-sent events, and requests that become records.

``transport`` and its ``connection`` stamp bytes as they arrive; ``sse`` and ``chunks`` read them
once the response has ended; ``outcome`` judges; ``completions`` makes a ``RequestRecord`` of an
``Arrival``.
"""

from __future__ import annotations
