"""Policies, quorums and presentations in any order, against a model written from docs/authority.md."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pauseledger import STORED, Actor, Policy, PresentCommand, Refusal
from pauseledger.infrastructure.stories import Stage, approve, asked

ARGUMENTS = {"amount": 7, "to": "Bob"}
ANSWERS = {
    "yes": {"decision": "approve"},
    "as asked": {"decision": "edit", "arguments": ARGUMENTS},
    "less": {"decision": "edit", "arguments": {"amount": 6, "to": "Bob"}},
    "no": {"decision": "reject", "reason": "too dear"},
    "never": {"decision": "reject", "reason": "too late"},
}
EFFECT = {"yes": "run", "as asked": "run", "less": "run less", "no": "reject", "never": "reject"}
PEOPLE = {
    "anne": Actor("anne"),
    "bob": Actor("bob", groups=["finance"]),
    "carl": Actor("carl"),
    "dora": Actor("dora", assurance="signed", groups=["finance"]),
    "aide": Actor("aide", on_behalf_of="carl"),
    "robot": Actor("robot", kind="service"),
}
ASKER = Actor("agent", kind="service", on_behalf_of="anne")
SIGHT = 60

likely = st.sampled_from(["yes", "as asked", "no"])
people, answers = st.sampled_from(sorted(PEOPLE)), st.sampled_from(sorted(ANSWERS))
open_policies = st.builds(
    Policy,
    name=st.just("policy"),
    quorum=st.sampled_from([2, 2, 2, 3, 1]),
    four_eyes=st.booleans(),
    kinds=st.sampled_from([("person",), ("person", "service")]),
)
strict_policies = st.builds(
    Policy,
    name=st.just("policy"),
    quorum=st.sampled_from([1, 2]),
    four_eyes=st.booleans(),
    least_assurance=st.sampled_from(["claimed", "claimed", "signed"]),
    groups=st.sampled_from([(), (), ("finance",)]),
    shown_within=st.sampled_from([None, SIGHT, SIGHT]),
)
policies = open_policies | strict_policies | st.none()
steps = st.lists(
    st.one_of(
        st.tuples(st.just("govern"), policies, st.booleans()),
        st.tuples(st.just("ask")),
        st.tuples(st.just("answer"), people, answers),
        st.tuples(st.just("answer"), people, answers),
        st.tuples(st.just("answer"), people, likely),
        st.tuples(st.just("answer"), people, likely),
        st.tuples(st.just("redeem"), people, likely),
        st.tuples(st.just("redeem"), people, answers),
        st.tuples(st.just("stored")),
        st.tuples(st.just("show"), people),
        st.tuples(st.just("wait"), st.sampled_from([1, SIGHT + 1])),
    ),
    min_size=8,
    max_size=30,
)


@dataclass
class Question:
    policy: Policy | None
    ended: bool = False
    votes: list[tuple[str, str]] = field(default_factory=list)
    answered: str | None = None
    consumed: bool = False

    @property
    def quorum(self):
        return self.policy.quorum if self.policy else 1

    def agreeing(self, said):
        return sum(EFFECT[given] == EFFECT[said] for _, given in self.votes)

    def missing(self):
        most = max((self.agreeing(said) for _, said in self.votes), default=0)
        return 0 if self.answered else self.quorum - most


def principals(name):
    actor = PEOPLE[name]
    return {actor.id, actor.on_behalf_of} - {None}


class Model:
    def __init__(self):
        self.policy, self.now, self.questions, self.seen = None, 0, [], {}
        self.spared = set()

    def govern(self, policy, ends_earlier):
        if policy != self.policy or (ends_earlier and self.spared - {policy, None}):
            self.spared = {policy} if ends_earlier else {*self.spared, policy}
            self.policy = policy
            for question in self.questions:
                question.ended = question.ended or (ends_earlier and question.policy is not None)

    def authority(self, question, name):
        policy, actor = question.policy, PEOPLE[name]
        if question.ended:
            return "policy_mismatch"
        if actor.assurance != "signed" and policy.least_assurance == "signed":
            return "actor_not_allowed"
        if actor.kind not in policy.kinds or (policy.groups and not set(policy.groups) & set(actor.groups)):
            return "actor_not_allowed"
        if policy.four_eyes and principals(name) & {"agent", "anne"}:
            return "asker_may_not_answer"
        if policy.shown_within is not None:
            at = self.seen.get((len(self.questions), name))
            if at is None:
                return "presentation_missing"
            if self.now - at > policy.shown_within:
                return "presentation_stale"
        return None

    def give(self, question, name, said, *, redeems):
        if question.policy is not None:
            objection = self.authority(question, name)
            if objection:
                return objection
        own = next((given for who, given in question.votes if principals(who) & principals(name)), None)
        several = question.quorum > 1
        if several and own not in (None, said) and not question.consumed:
            return "answered_twice"
        if question.consumed:
            return "already_consumed"
        if question.answered is not None:
            same = EFFECT[said] == EFFECT[question.answered] if several else said == question.answered
            if not same:
                return "already_answered"
        elif own is None or not several:
            question.votes.append((name, said))
            question.answered = said if question.agreeing(said) >= question.quorum else None
        return self.end(question, redeems=redeems)

    def end(self, question, *, redeems):
        if redeems and question.answered is None:
            return f"quorum_open {question.missing()}"
        question.consumed = redeems
        return "won" if redeems else f"{'answered' if question.answered else 'open'} {question.missing()}"

    def stored(self, question):
        if question.consumed:
            return "already_consumed"
        return self.end(question, redeems=True) if question.votes else "not_answered"


class World:
    """The ledger itself, given the same steps."""

    def __init__(self, ledger):
        self.ledger, self.questions, self.cites = ledger, [], {}

    async def do(self, step):
        try:
            return await getattr(self, step[0])(*step[1:])
        except Refusal as refusal:
            missing = getattr(refusal, "missing", None)
            return refusal.reason if missing is None else f"{refusal.reason} {missing}"

    async def govern(self, policy, ends_earlier):
        await self.ledger.capability.govern("approval", policy, by=Actor("carla"), ends_earlier=ends_earlier)

    async def ask(self):
        command = approve(arguments=ARGUMENTS, asked_by=ASKER, occurrence=len(self.questions))
        self.questions.append(await asked(self.ledger, command))

    def given(self, name):
        cited = self.cites.get((len(self.questions), name))
        return {"answered_by": PEOPLE[name], "cites": [cited] if cited else []}

    async def answer(self, name, said):
        receipt = await self.questions[-1].answer(ANSWERS[said], **self.given(name))
        return f"{receipt.state} {receipt.missing}"

    async def redeem(self, name, said):
        await self.questions[-1].redeem(ANSWERS[said], **self.given(name))
        return "won"

    async def stored(self):
        await self.questions[-1].redeem(STORED)
        return "won"

    async def show(self, name):
        question = self.questions[-1]
        command = PresentCommand(question.pause_id, axes=question.axes, to=PEOPLE[name], rendering="page")
        seen = await self.ledger.capability.presented(command)
        self.cites[len(self.questions), name] = seen.id
        return not seen.existing

    async def wait(self, seconds):
        self.ledger.wait(seconds=seconds)


async def play(story, folder):
    stage, model = Stage("memory:", Path(folder) / "keys"), Model()
    async with stage.ledger() as ledger:
        world = World(ledger)
        for step in story:
            said = await world.do(step)
            question = model.questions[-1] if model.questions else None
            match step:
                case ("govern", policy, ends_earlier):
                    model.govern(policy, ends_earlier)
                case ("ask",):
                    model.questions.append(Question(model.policy))
                case ("show", name):
                    if said:
                        model.seen[len(model.questions), name] = model.now
                case ("wait", seconds):
                    model.now += seconds
                case ("stored",):
                    assert said == model.stored(question), step
                case (what, name, answer):
                    assert said == model.give(question, name, answer, redeems=what == "redeem"), step
        for one, question in zip(world.questions, model.questions, strict=True):
            rows = stage.rows(one.pause_id)
            given = [row for row in rows if row.topic == "pause.answered@1"]
            assert len(given) == len(question.votes)
            made = [
                row.version
                for row, (_, said) in zip(given, question.votes, strict=True)
                if question.answered and EFFECT[said] == EFFECT[question.answered]
            ]
            ends = [row.header["answers"] for row in rows if row.topic == "pause.consumed@1"]
            assert ends == ([made] if question.consumed else [])
        assert all(
            row.header["rule"] for row in stage.rows() if row.topic == "pause.refused@1" and row.header["step"] == 4
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(open_policies | strict_policies, steps)
def test_any_story_comes_to_what_the_page_says(policy, story):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play([("govern", policy, True), ("ask",), *story], folder))
