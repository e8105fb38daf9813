"""Twenty edits of each cause in recorded traffic, rendered by a real template and tokenizer: position and cause."""

import pytest

from rolltape.rebuild.breaks import Cause

from . import edits, kit


def shared(sequence: list[int], prompt: list[int]) -> int:
    """How many leading ids both have, counted one by one."""
    differing = (i for i, (a, b) in enumerate(zip(sequence, prompt, strict=False)) if a != b)
    return next(differing, min(len(sequence), len(prompt)))


@pytest.mark.parametrize("cause", list(Cause))
def test_of_twenty_edits_every_position_is_exact_and_at_least_nineteen_causes_are_right(cause):
    told = []
    for name, case in edits.cases(cause):
        found = kit.explained(case.before, case.last)
        prompt = case.last.prompt_token_ids.tolist()
        sequences = [entry.sequence.tolist() for entry in case.before]
        assert found.first_divergence == max(shared(ids, prompt) for ids in sequences), name
        at = found.first_divergence
        (nearest,) = (entry for entry in case.before if entry.model_call_id == found.nearest)
        assert shared(nearest.sequence.tolist(), prompt) == at
        assert (found.was and found.was.id, found.now and found.now.id) == (
            [*nearest.sequence.tolist(), None][at],
            [*prompt, None][at],
        )
        told.append((found.cause, name, found.evidence))

    assert len(told) == 20
    wrong = [one for one in told if one[0] is not cause]
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize("cause", list(Cause))
def test_without_the_texts_of_tokens_a_cause_is_the_right_one_or_unknown(cause):
    told = [(kit.explained(case.before, case.last, texts=False).cause, name) for name, case in edits.cases(cause)]

    assert not [one for one in told if one[0] not in (cause, Cause.UNKNOWN)]
    if cause is not Cause.TOKENIZER_BOUNDARY:  # the one that nothing else can tell
        assert sum(found is cause for found, _ in told) >= 18


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.UNKNOWN, Cause.TOOLS_CHANGED)])
def test_the_place_is_a_message_of_the_role_that_was_edited(cause):
    roles = {
        Cause.REASONING_STRIPPED: {"assistant"},
        Cause.TOOL_ARGUMENTS_RESERIALISED: {"assistant"},
        Cause.DEFAULT_ADDED: {"assistant"},
        Cause.TOKENIZER_BOUNDARY: {"assistant"},
        Cause.SYSTEM_PROMPT_VOLATILE: {"system", "developer"},
        Cause.IMAGE: {"user"},
    }.get(cause, {"system", "developer", "user", "assistant", "tool"})
    for name, case in edits.cases(cause):
        found = kit.explained(case.before, case.last)
        if found.cause is cause:
            assert found.message is not None, name
            assert found.role in roles, name


def test_other_seeds_do_as_well():
    right = total = 0
    for cause in Cause:
        for _, case in edits.cases(cause, count=4, seed=7):
            total += 1
            right += kit.explained(case.before, case.last).cause is cause
    assert right >= 0.95 * total
