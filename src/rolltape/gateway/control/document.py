"""The control API as an OpenAPI 3.1 document. Pure: made of the operations and of the schemas of their bodies."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from rolltape.gateway.control.operations import Operation
from rolltape.gateway.control.shapes import ErrorBody, Readiness, RolloutId

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "Something in the request is not what it must be; the message names it.",
    401: "The control token is missing or wrong.",
    404: "The store holds nothing of this rollout.",
    408: "The body did not arrive in time.",
    409: "There is a rollout of this id.",
    410: "The rollout was retired: its consumer holds the result.",
    413: "The body is too large.",
    500: "The gateway failed in a way that nobody foresaw.",
    501: "Another's transport keeps what is asked for, or nobody does.",
    503: "The store cannot do it now.",
}


def openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    """The whole document, as JSON values."""
    told = tuple(operations)
    types = [ErrorBody, *(kind for one in told for kind in (one.takes, one.gives) if _is_struct(kind))]
    schemas, components = msgspec.json.schema_components([*types, RolloutId], ref_template=_REF)
    named = dict(zip(types, schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for one in told:
        paths.setdefault(one.path, {})[one.method.lower()] = _told(one, named, schemas[-1])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rolltape control API",
            "version": version("rolltape"),
            "description": "Rollouts, from announcement to retirement, and the policy that is served.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"control": {"type": "http", "scheme": "bearer", "description": "The control token."}},
        },
    }


def _told(one: Operation, named: dict[Any, Any], rollout_id: Any) -> dict[str, Any]:
    errors = {str(status): _answer(_ERRORS[status], _json(named[ErrorBody])) for status in one.errors}
    text = {"text/plain": {"schema": {"type": "string"}}}
    given = _json(named.get(one.gives, {"type": "object"})) if one.gives is not bytes else text
    answers = {"200": _answer("Done.", given), **errors}
    if one.gives is Readiness:
        answers["503"] = _answer("Not ready.", given)
    told: dict[str, Any] = {"operationId": one.name, "summary": one.summary, "responses": answers}
    parameters = [{"name": "rollout_id", "in": "path", "required": True, "schema": rollout_id}] * one.of_one_rollout
    for name, words in one.query.items():
        parameters.append({"name": name, "in": "query", "schema": {"enum": list(words), "default": words[0]}})
    if parameters:
        told["parameters"] = parameters
    if one.takes is not None:
        told["requestBody"] = {"required": bool(_required(one.takes)), "content": _json(named[one.takes])}
    if one.guarded:
        told["security"] = [{"control": []}]
    return told


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content}


def _required(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
