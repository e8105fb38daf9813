"""Digests that are continued from other calls are those of the whole prompts."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rolltape.rebuild.digests import prompts
from rolltape.rebuild.policy import KindPolicy
from rolltape.rebuild.tree import grow
from rolltape.record import TokenEntry
from rolltape.tokens import digest

from .calls import call
from .test_properties import by_default, rollouts


@by_default
@given(rollouts(), st.sampled_from([1, 2, 3, 4096]))
def test_a_prompt_has_one_digest_whatever_was_hashed_before_it(entries: list[TokenEntry], mark: int) -> None:
    found = dict(prompts(grow(entries, KindPolicy()), mark))
    assert found == {entry.model_call_id: digest(entry.prompt_token_ids) for entry in entries}


def test_prompts_that_each_leave_the_one_before_are_hashed_once() -> None:
    """Each turn a reminder stands at the end of the prompt, and is gone in the next: no prompt extends another."""
    history, reminder = np.arange(1_000, 401_000, dtype=np.int32), np.arange(50, dtype=np.int32)
    entries = [
        call(f"c{turn:03d}", np.concatenate([history[: 1_000 * turn], reminder + turn]), [7]) for turn in range(1, 400)
    ]
    tree = grow(entries, KindPolicy())
    start = time.process_time()
    found = dict(prompts(tree))
    continued = time.process_time() - start
    start = time.process_time()
    whole = {entry.model_call_id: digest(entry.prompt_token_ids) for entry in entries}
    assert found == whole
    assert continued < (time.process_time() - start) / 2
