"""The control API: what a trainer, a runner or a person tells the gateway and asks of it, in JSON.

`shapes` are the bodies, `operations` makes routes of annotated methods, `api` has the methods, and `document` tells
them as OpenAPI: the annotations that decode a body are those that the document shows.
"""

from typing import Any

from rolltape.gateway.control.api import Control
from rolltape.gateway.control.document import openapi
from rolltape.gateway.control.operations import operations

__all__ = ["Control", "document"]


def document() -> dict[str, Any]:
    """The OpenAPI document, as JSON values."""
    return openapi(operations(Control))
