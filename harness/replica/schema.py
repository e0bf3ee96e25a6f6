"""What a server says of its own routes: the part that matters here of its OpenAPI document."""

from __future__ import annotations

import msgspec

from harness.replica.client import NOT_JSON, reach
from harness.target import Endpoint


class Parameter(msgspec.Struct):
    """A parameter; one given by reference has no name here."""

    name: str = ""


class Operation(msgspec.Struct):
    """A route under one method."""

    parameters: list[Parameter] = []


class Path(msgspec.Struct):
    """A route."""

    post: Operation | None = None


class Schema(msgspec.Struct):
    """The document."""

    paths: dict[str, Path]

    def operation(self, route: str) -> Operation | None:
        """What ``POST route`` takes; None if there is no such route."""
        return self.paths.get(route, Path()).post


async def read_schema(endpoint: Endpoint) -> Schema | None:
    """The document at ``/openapi.json``; None if there is none, or one of another shape.

    Raises:
        TargetError: the endpoint does not answer.
    """
    response = await reach(endpoint, "/openapi.json")
    if not response.is_success:
        return None
    try:
        return msgspec.json.decode(response.content, type=Schema)
    except NOT_JSON:
        return None
