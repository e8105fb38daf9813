"""Which call a rollout ended with.

The result may name it, or its output may hold the ids of replies. Witnesses must agree. Without any, it is the last
agent call that nothing extends and that is not known to have been undelivered: good enough to order rows by and to
pick a chain, never to settle which of two attempts the harness used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.rebuild.attempts import Attempts, Standing
from rolltape.rebuild.policy import DEFAULT_KIND, KindPolicy, kind_of
from rolltape.rebuild.tree import CallTree
from rolltape.record import Delivery


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What the harness's result says about its last call; None and () = nothing.

    `call_id`: a model call id (`_ng_terminal_model_call_id`). `response_id`: the id of a reply as the harness saw it
    (`terminal_response_id`). `reply_ids`: ids of replies in the harness's own output, in its order.
    """

    call_id: str | None = None
    response_id: str | None = None
    reply_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Attribution:
    """`method`: explicit, declared, response_id, last_agent_call or none. `call_id`: None if no call is known.

    `chain`: delivered (the call is in the tree), not_captured, disputed or "" (there is no call). `chosen` are the
    nodes that the harness is known to have used.
    """

    method: str
    call_id: str | None
    reason: str
    chain: str
    chosen: frozenset[str] = frozenset()

    @property
    def disputed(self) -> bool:
        return self.chain == "disputed"

    def to_json(self) -> dict[str, str | None]:
        return {"method": self.method, "call_id": self.call_id, "reason": self.reason, "chain": self.chain}


@dataclass(frozen=True, slots=True)
class _Said:
    method: str
    node: str | None
    reason: str = ""


def hear(witnesses: Witnesses, tree: CallTree) -> Attribution:
    """What the witnesses say; `method` is none where there are none, or none that knows a captured call."""
    replies = _replies(tree)
    named = [_by_call(witnesses.call_id, tree), _by_response(witnesses.response_id, tree, replies)]
    said = [one for one in named if one is not None]
    seen = [node for node in (_single(replies.get(reply), tree) for reply in witnesses.reply_ids) if node is not None]
    nodes = {one.node for one in said if one.node is not None}
    chosen = frozenset(nodes | set(seen))
    if len(nodes) > 1 or (nodes and seen and not nodes & set(seen)):
        return Attribution(said[0].method, None, "witness_disagreement", "disputed", chosen)
    missing = next((one for one in said if one.node is None), None)
    if missing:
        return Attribution(missing.method, None, missing.reason, "not_captured", chosen)
    if said:
        return Attribution(said[0].method, said[0].node, said[0].reason, "delivered", chosen)
    if seen:
        return Attribution("response_id", seen[-1], "", "delivered", chosen)
    return Attribution("none", None, "response_id_no_match" if witnesses.reply_ids else "no_witness", "")


def attribute(heard: Attribution, tree: CallTree, attempts: Attempts, policy: KindPolicy) -> Attribution:
    """`heard`, or the last agent call where nobody spoke."""
    if heard.method != "none":
        return heard
    standing = (Standing.STANDS, Standing.REJECTED)
    trained = [c for c in tree.nodes if policy.trains(tree.entries[c]) and attempts.standing[c] in standing]
    agents = [call for call in trained if kind_of(tree.entries[call]) == DEFAULT_KIND] or trained
    extended = {parent for call in agents if (parent := tree.parents[call]) is not None}
    arrived = [call for call in agents if tree.entries[call].delivery is not Delivery.UNDELIVERED]
    last = max(
        (call for call in arrived or agents if call not in extended),
        key=lambda call: (tree.entries[call].created_at, call),
        default=None,
    )
    if last is None:
        return heard
    return Attribution("last_agent_call", last, heard.reason, "delivered")


def _replies(tree: CallTree) -> dict[str, list[str]]:
    replies: dict[str, list[str]] = {}
    for call, entry in tree.entries.items():
        if entry.response_id:
            replies.setdefault(entry.response_id, []).append(call)
    return replies


def _by_call(call: str | None, tree: CallTree) -> _Said | None:
    if call is None:
        return None
    if call not in tree.entries:
        return _Said("explicit", None, "explicit_terminal_not_captured")
    return _settled("explicit", call, tree)


def _by_response(response: str | None, tree: CallTree, replies: dict[str, list[str]]) -> _Said | None:
    if response is None:
        return None
    calls = replies.get(response, [])
    if not calls:
        return _Said("declared", None, "declared_terminal_not_captured")
    if len({tree.node_for(call) for call in calls}) > 1:
        return _Said("declared", None, "declared_ambiguous")
    return _settled("declared", calls[0], tree)


def _settled(method: str, call: str, tree: CallTree) -> _Said:
    """A named call that sampled nothing usable stands for what it was asked after: the sampling that it ended."""
    node = tree.node_for(call)
    if node in tree.prompts:
        return _Said(method, node)
    return _Said(method, tree.parents.get(call), f"named_call_{_why_no_node(call, tree)}")


def _why_no_node(call: str, tree: CallTree) -> str:
    entry = tree.entries[call]
    if entry.outcome != "completed":
        return str(entry.outcome)
    return "sampled_nothing" if entry.ids_exact else "damaged"


def _single(calls: Sequence[str] | None, tree: CallTree) -> str | None:
    nodes = {tree.node_for(call) for call in calls or ()} & set(tree.prompts)
    return nodes.pop() if len(nodes) == 1 else None
