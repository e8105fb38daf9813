"""Which rollout a request belongs to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import RequestError
from rolltape.gateway.address import Address, KeyRing, resolve, split_path
from rolltape.record import is_rollout_id

KEYS = KeyRing("control-secret")
CHAT = "/v1/chat/completions"


def address(path: str, headers: dict[str, str] | None = None, *, auth="open", untagged="serve") -> Address:
    return resolve(split_path(path), headers or {}, KEYS, auth=auth, untagged=untagged)


@pytest.mark.parametrize(
    "path",
    [
        f"/rollout/R1{CHAT}",
        f"/ng-rollout/R1/training-token-capture{CHAT}",
        "/rollout/R1/chat/completions",
        "/rollout/R1/v1/v1/chat/completions",
        "/rollout/R1//v1/chat/completions",
    ],
)
def test_every_form_of_the_prefix_captures_to_the_rollout(path):
    opted_in = "training-token-capture" in path
    assert address(path) == Address(CHAT, "R1", captured=True, opted_in=opted_in)


def test_the_gym_prefix_without_its_segment_is_an_ordinary_call():
    assert address(f"/ng-rollout/R1{CHAT}") == Address(CHAT, "R1", captured=False)


def test_a_segment_that_only_begins_like_the_capture_segment_is_not_it():
    where = split_path("/ng-rollout/R1/training-token-capture-not/v1/models")
    assert (where.captured, where.path) == (False, "/training-token-capture-not/v1/models")


def test_a_call_that_names_no_rollout_is_served_uncaptured_or_refused_by_choice():
    assert address(CHAT) == Address(CHAT, None, captured=False)
    with pytest.raises(RequestError) as refused:
        address(CHAT, untagged="refuse")
    assert (refused.value.status, refused.value.code) == (400, "untagged")


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "x-goog-api-key"])
def test_the_key_names_the_rollout_in_each_protocols_header(header):
    key = KEYS.key("task.7-0")
    value = f"Bearer {key}" if header == "authorization" else key
    assert address(CHAT, {header: value}) == Address(CHAT, "task.7-0", captured=True)


def test_the_header_names_the_rollout():
    assert address(CHAT, {"x-rolltape-rollout": "R9"}) == Address(CHAT, "R9", captured=True)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/rollout/R1{CHAT}", {"x-rolltape-rollout": "R2"}),
        (f"/rollout/R1{CHAT}", {"authorization": f"Bearer {KEYS.key('R2')}"}),
        (CHAT, {"authorization": f"Bearer {KEYS.key('R2')}", "x-rolltape-rollout": "R1"}),
        (f"/ng-rollout/R1{CHAT}", {"x-rolltape-rollout": "R2"}),
    ],
)
def test_two_different_ids_on_one_request_are_refused(path, headers):
    with pytest.raises(RequestError) as refused:
        address(path, headers)
    assert (refused.value.status, refused.value.code) == (400, "contradictory_rollout_id")


@pytest.mark.parametrize("bad", ["", ".hidden", "-x", "a b", "a%2Fb", "..", "x" * 201, "ümlaut", "a%00", "a:b"])
def test_a_bad_id_is_refused_and_never_rewritten(bad):
    with pytest.raises(RequestError) as refused:
        address(f"/rollout/{bad}{CHAT}")
    assert (refused.value.status, refused.value.code) == (400, "invalid_rollout_id")


def test_keys_mode_takes_only_a_key_as_proof():
    for headers in ({}, {"x-rolltape-rollout": "R1"}, {"authorization": "Bearer dummy"}):
        with pytest.raises(RequestError) as refused:
            address(f"/rollout/R1{CHAT}", headers, auth="keys")
        assert refused.value.status == 401
    key = {"authorization": f"Bearer {KEYS.key('R1')}"}
    assert address(f"/rollout/R1{CHAT}", key, auth="keys").rollout_id == "R1"


def test_a_forged_key_is_refused_in_either_mode():
    forged = KEYS.key("R1")[:-1] + ("0" if KEYS.key("R1")[-1] != "0" else "1")
    for auth in ("open", "keys"):
        with pytest.raises(RequestError) as refused:
            address(CHAT, {"x-api-key": forged}, auth=auth)
        assert refused.value.status == 401


def test_the_control_token_may_call_the_model_uncaptured_in_keys_mode():
    assert address(CHAT, {"authorization": "Bearer control-secret"}, auth="keys") == Address(CHAT, None, captured=False)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True))
def test_a_key_proves_exactly_the_rollout_it_was_made_for(rollout_id):
    assert KEYS.rollout_of(KEYS.key(rollout_id)) == rollout_id
    assert KeyRing("another").key(rollout_id) != KEYS.key(rollout_id)


@given(st.text(max_size=30))
def test_any_path_segment_is_a_valid_id_or_a_refusal(segment):
    segment = segment.replace("/", "")
    if is_rollout_id(segment):
        assert address(f"/rollout/{segment}{CHAT}").rollout_id == segment
    else:
        with pytest.raises(RequestError):
            address(f"/rollout/{segment}{CHAT}")


def test_a_dummy_key_in_one_header_does_not_hide_the_real_one_in_another():
    headers = {"authorization": "Bearer sk-dummy", "x-api-key": KEYS.key("R1")}
    for auth in ("open", "keys"):
        assert address(CHAT, headers, auth=auth) == Address(CHAT, "R1", captured=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEYS.key('R1')}", "x-api-key": KEYS.key("R2")},
        {"x-api-key": KEYS.key("R1"), "x-goog-api-key": KEYS.key("R2")},
        {"authorization": f"Bearer {KEYS.key('R1')}, Bearer {KEYS.key('R2')}"},
        {"x-rolltape-rollout": "R1, R2"},
    ],
)
def test_two_rollouts_in_any_headers_of_one_request_are_refused(headers):
    with pytest.raises(RequestError) as refused:
        address(CHAT, headers)
    assert (refused.value.status, refused.value.code) == (400, "contradictory_rollout_id")


def test_a_forged_key_beside_a_true_one_is_refused():
    with pytest.raises(RequestError) as refused:
        address(CHAT, {"authorization": f"Bearer {KEYS.key('R1')}", "x-api-key": "rt-R1.0000"}, auth="keys")
    assert refused.value.status == 401


def test_a_header_that_is_repeated_with_the_same_rollout_names_it():
    assert address(CHAT, {"x-rolltape-rollout": "R1, R1"}) == Address(CHAT, "R1", captured=True)
