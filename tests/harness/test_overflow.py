"""What the gateway says of a prompt that outgrew the context is what each harness looks for to make room."""

import re

import pytest

from rolltape import registry
from rolltape.engines.llamacpp.engine import _too_long
from rolltape.harness import builtin_profiles

PROFILES = [profile for profile in builtin_profiles().values() if profile.calls.overflow]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_an_overflow_is_said_in_words_that_the_harness_knows(profile) -> None:
    protocol = registry.load("protocol", profile.protocol)()
    told = protocol.encode_error(_too_long(8192, 9000))
    assert told.status == 400
    assert re.search(profile.calls.overflow, told.body.decode())


def test_those_that_make_room_have_told_what_they_look_for() -> None:
    assert {"cline", "opencode", "pi", "qwen-code"} <= {profile.name for profile in PROFILES}
