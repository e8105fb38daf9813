"""Google's schema objects as JSON Schema, which is what chat templates and grammars know.

A `Schema` is a subset of OpenAPI's: its types are in capitals, and `nullable` takes the place of a second type. What
is JSON Schema already (`parametersJsonSchema`) passes untouched.
"""

from typing import Any

from rolltape.chat import Json

WHOLE = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
"""Counts, which protobuf's JSON may hold as text."""


def json_schema(value: Any) -> Any:
    """`value`, a `Schema`, as JSON Schema; whatever is in it and no schema stays as it is."""
    if not isinstance(value, dict):
        return value
    out: Json = {}
    for name, inner in value.items():
        match name:
            case "type" if isinstance(inner, str):
                out["type"] = inner.lower()
            case "properties" | "$defs" | "defs" if isinstance(inner, dict):
                out[name] = {key: json_schema(each) for key, each in inner.items()}
            case "items" | "additionalProperties":
                out[name] = json_schema(inner)
            case "anyOf" | "any_of" if isinstance(inner, list):
                out["anyOf"] = [json_schema(each) for each in inner]
            case "nullable" | "propertyOrdering" | "property_ordering":
                continue
            case _:
                out[name] = int(inner) if name in WHOLE and isinstance(inner, str) and inner.isdigit() else inner
    if value.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out
