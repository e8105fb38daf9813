"""Which rollout a request belongs to. Pure: paths and headers in, an address or a refusal out.

A rollout is named by a path prefix, by its API key or by a header; all that are present must agree. Ids are checked in
the raw path, before any percent-decoding, and never rewritten: an id that arrives changed is another rollout.

Loopback is no trust boundary - the agent has a shell there - so in `keys` mode only the key counts as proof. Keys are
HMACs of the id under the control token: nothing to store, nothing to leak from the store.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs

from rolltape.errors import RequestError
from rolltape.record import is_rollout_id

HEADER = "x-rolltape-rollout"
_QUERY_KEY = "x-goog-api-key"
_PREFIX = re.compile(
    r"^/(?:rollout/(?P<ours>[^/]*)|ng-rollout/(?P<gym>[^/]*)(?P<segment>/training-token-capture(?=/|$))?)(?P<rest>/.*|$)"
)
_DOUBLED = re.compile(r"^(?:/v1)+(?=/v1(?:beta)?/)")
_BARE = ("/chat/completions", "/completions", "/responses", "/messages", "/models")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a request goes. `rollout_id` None = untagged; `captured` False = serve it without a record.

    `opted_in` True = the path itself says that its agent opted in, whatever else is known of the rollout.
    """

    path: str
    rollout_id: str | None
    captured: bool
    opted_in: bool = False


@dataclass(frozen=True, slots=True)
class PathAddress:
    """What the path alone says. `named` is the raw id segment, None without a prefix, not yet checked."""

    path: str
    named: str | None
    captured: bool
    opted_in: bool = False


def split_path(raw_path: str) -> PathAddress:
    """Take the address prefix off. Clients double slashes and `/v1`, or leave `/v1` out; all mean one route."""
    match = _PREFIX.match(raw_path)
    if match is None:
        return PathAddress(_tidy(raw_path), None, False)
    named = match["ours"] if match["ours"] is not None else match["gym"]
    captured = match["ours"] is not None or match["segment"] is not None
    return PathAddress(_tidy(match["rest"]), named, captured, opted_in=match["segment"] is not None)


def _tidy(path: str) -> str:
    path = re.sub(r"/{2,}", "/", path) or "/"
    path = _DOUBLED.sub("", path)
    return f"/v1{path}" if path.startswith(_BARE) else path


class KeyRing:
    """Makes and checks the API keys of rollouts: `rt-<id>.<mac>`."""

    def __init__(self, control_token: str) -> None:
        self._control_token = control_token.encode()
        self._secret = hmac.digest(self._control_token, b"rolltape rollout keys v1", "sha256")

    def key(self, rollout_id: str) -> str:
        return f"rt-{rollout_id}.{self._mac(rollout_id)}"

    def _mac(self, rollout_id: str) -> str:
        return hmac.new(self._secret, rollout_id.encode(), hashlib.sha256).hexdigest()[:32]

    def rollout_of(self, key: str) -> str | None:
        """The rollout that `key` proves, None if it is no key of ours. Raises 401 for a forged one."""
        if not key.startswith("rt-"):
            return None
        rollout_id, _, mac = key[3:].rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(rollout_id).encode()):
            raise RequestError(401, "invalid_api_key", "this API key was not made by this gateway")
        return rollout_id

    def is_control(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._control_token)


def with_query_key(headers: Mapping[str, str], query: str) -> Mapping[str, str]:
    """The headers, with a key that stands in the query (`?key=`, as Google's clients may send it) among them."""
    keys = parse_qs(query).get("key", []) if "key=" in query else []
    return {**headers, _QUERY_KEY: ",".join([*_values(headers, _QUERY_KEY), *keys])} if keys else headers


def presented_keys(headers: Mapping[str, str]) -> list[str]:
    """All API keys of a request, wherever their protocols put them. A harness may send a dummy beside the real one."""
    credentials = (text.partition(" ") for text in _values(headers, "authorization"))
    keys = [key.strip() for scheme, _, key in credentials if scheme.lower() == "bearer"]
    return [*keys, *_values(headers, "x-api-key"), *_values(headers, _QUERY_KEY)]


def _values(headers: Mapping[str, str], name: str) -> list[str]:
    """The values of a header that may be there more than once: neither ids nor keys hold a comma."""
    return [value.strip() for value in headers[name].split(",")] if name in headers else []


def resolve(
    where: PathAddress,
    headers: Mapping[str, str],
    keys: KeyRing,
    *,
    auth: Literal["open", "keys"],
    untagged: Literal["serve", "refuse"],
) -> Address:
    """The address of a request. Raises `RequestError`: 400 for a bad or contradictory id, 401 for a missing key."""
    presented = presented_keys(headers)
    proven = {name for key in presented if (name := keys.rollout_of(key)) is not None}
    named = {*proven, *_values(headers, HEADER), *([] if where.named is None else [where.named])}
    for name in sorted(named):
        if not is_rollout_id(name):
            raise RequestError(
                400,
                "invalid_rollout_id",
                f"{name[:210]!r} is no rollout id: at most 200 letters, digits, dots, dashes and underscores, "
                "the first a letter or digit",
            )
    if len(named) > 1:
        raise RequestError(400, "contradictory_rollout_id", f"one request names several rollouts: {sorted(named)}")
    if auth == "keys" and not proven and not any(map(keys.is_control, presented)):
        raise RequestError(401, "invalid_api_key", "this gateway wants the API key of a rollout")
    rollout_id = named.pop() if named else None
    if rollout_id is None and untagged == "refuse":
        raise RequestError(400, "untagged", "this gateway serves only calls that name their rollout")
    captured = rollout_id is not None and (where.captured or where.named is None)
    return Address(where.path, rollout_id, captured, opted_in=where.opted_in)
