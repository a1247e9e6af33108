"""What every kernel must do: a conformance suite for whoever writes one, over an agent that they make."""
# ruff: noqa: S101 - a suite asserts

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..domain.axes import Scope
from ..domain.commands import Actor, AnswerCommand, LapseAnswer, RecoverCommand
from ..domain.continuation import recognise
from ..domain.errors import AlreadyConsumed, AlreadyContinued, PauseWithdrawn, RoundOpen, TokenExpired
from ..domain.interactions import ASK_USER, AskUserAnsweredEvent
from ..domain.kernel_resume import ResumedTurn, continuing, resume_run, resume_stream, resume_stream_typed
from ..domain.rehydration import NOT_ANSWERED, NOT_DISPATCHED
from .kernels import Ended, Gate
from .keys import KeyFile
from .settings import LedgerSettings
from .wiring import Ledger, open_ledger

#: What the scripted model says next: a text, calls as (id, tool, arguments), or an error that it raises.
Reply = str | Exception | Sequence[tuple[str, str, Any]]
_Suite = TypeVar("_Suite")
_Given = ParamSpec("_Given")

SCOPE = Scope(tenant_id="acme")
SURFACES = ("run", "stream", "stream_typed")
QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging"]}]}
ANSWER_TEXT = "q1: Staging"
APPROVE = {"decision": "approve"}
REJECT = {"decision": "reject", "reason": "not on Friday"}
RESPOND = {"decision": "respond", "text": "I did it myself"}
#: What the agent's tools wait for unless a story says otherwise.
GATES: Mapping[str, Gate] = {"deploy": Gate(), "ask_user": Gate(ASK_USER)}


def by_call(results: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Put results together by the id of their call; a call with two of them fails."""
    found = list(results)
    assert len(dict(found)) == len(found), found
    return dict(found)


class Agent:
    """One process's agent in scope `SCOPE`, run by the kernel under test; its model plays what it was given.

    Its tools: `deploy(to)`, which gives `deployed to <to>` and is gated as `gates` say, by an approval of the ledger's
    own; `look()`, ungated, which gives `all quiet`; `ask_user`, gated as `gates` say. A call of a tool that is not
    there does not end its run.

    Attributes:
        ledger: Its ledger.
        kernel: The kernel.
        options: What every run of it is given on top.
        runs: What ran, in order: `to` for each run of `deploy`, `look` for each of `look`.
        effects: `deploy`'s side effects: the first `to` under each idempotency key.
    """

    ledger: Ledger
    kernel: Any
    options: Mapping[str, Any] = MappingProxyType({})
    runs: MutableSequence[str]
    effects: MutableMapping[str, str]

    @property
    def seen(self) -> Sequence[Mapping[str, Any]]:
        """For each call of the model: the results it was shown, each history's put together by `by_call`.

        Raises:
            NotImplementedError: the subclass does not say.
        """
        raise NotImplementedError

    async def ask(self, prompt: str = "Deploy.", run_id: str = "run-1", **more: Any) -> Ended:
        """Run to the end, or to a stop."""
        ended = await self.kernel.run(prompt, run_id=run_id, session_id="chat-7", **{**self.options, **more})
        assert isinstance(ended, Ended)
        return ended

    async def redeem(self, ended: Ended, answer: Any, at: int = 0) -> ResumedTurn:
        """Answer one of the calls it stopped at."""
        return await _redeem(self.ledger, ended, answer, at)

    async def redeem_all(self, ended: Ended, *answers: Any) -> ResumedTurn:
        """Answer them all, in their order; all but the last find the round open."""
        for at, answer in enumerate(answers[:-1]):
            assert isinstance(await _tried(self.redeem(ended, answer, at)), RoundOpen)
        return await self.redeem(ended, answers[-1], len(answers) - 1)

    async def recover(self, ended: Ended) -> ResumedTurn:
        """Take the turn up again."""
        command = RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes)
        return await self.ledger.capability.recover(command)

    async def go_on(self, surface: str, turn: ResumedTurn, **more: Any) -> list[Any]:
        """Go on with a turn, and give what came of it, item by item."""
        options = {**self.options, **more}
        if surface == "run":
            return [await resume_run(self.kernel, turn, **options)]
        resume = {"stream": resume_stream, "stream_typed": resume_stream_typed}[surface]
        return [item async for item in resume(self.kernel, turn, **options)]


def _played(
    story: Callable[Concatenate[_Suite, _Given], Awaitable[None]],
) -> Callable[Concatenate[_Suite, _Given], None]:
    """Let a story be a test without any plugin."""

    def test(suite: _Suite, /, *given: _Given.args, **named: _Given.kwargs) -> None:
        async def play() -> None:
            await story(suite, *given, **named)

        asyncio.run(play())

    # Its fixtures are the story's.
    functools.update_wrapper(test, story)
    return test


class KernelConformance:
    """Subclass it, and give `agent`. A fixture `store_url` names an empty store; `"memory:"` will do.

    Attributes:
        neighbours_run: Whether calls without a gate run before the stop, and keep their results; otherwise they do not
            run, and are told so.
    """

    neighbours_run = False

    def agent(
        self,
        ledger: Ledger,
        *replies: Reply,
        gates: Mapping[str, Gate] = GATES,
        effects: MutableMapping[str, str] | None = None,
    ) -> Agent:
        """Make an agent as another process would; `effects` is what earlier ones did to the world.

        Raises:
            NotImplementedError: the subclass gives none.
        """
        raise NotImplementedError

    @_played
    async def test_the_models_first_sight_holds_the_answer_on_its_call(self) -> None:
        """Whatever surface goes on; the answered event comes first on the typed stream, and nowhere else."""
        async with open_ledger("memory:") as ledger:
            for surface in SURFACES:
                ended = await self.agent(ledger, [("c1", "ask_user", QUESTION)]).ask(run_id=surface)
                going = self.agent(ledger, "Staging it is.")
                *items, last = await going.go_on(surface, await _redeem(ledger, ended, ANSWER))
                assert going.seen == [{"c1": ANSWER_TEXT}]
                assert isinstance(last, Ended)
                assert last.paused == ()
                assert (await _newest(ledger, ended)).end == "finished"
                told = [isinstance(item, AskUserAnsweredEvent) for item in items]
                assert told[:1] == ([True] if surface == "stream_typed" else [False][: len(told)])
                assert True not in told[1:]

    @_played
    async def test_the_delegates_typed_stream_and_the_entry_points_meet_the_same_kernel(self) -> None:
        """Whoever goes on in a loop of their own gives the model the same sight, and the same tools run."""
        async with open_ledger("memory:") as ledger:
            calls = [("c1", "deploy", {"to": "prod"}), ("c2", "ask_user", QUESTION)]
            by_hand, entered = self.agent(ledger, "done"), self.agent(ledger, "done")
            turn = await by_hand.redeem_all(await self.agent(ledger, calls).ask(run_id="1"), APPROVE, ANSWER)
            async with continuing(turn) as going:
                stream = by_hand.kernel.stream_typed(
                    turn.prompt,
                    run_id=turn.run_id,
                    session_id=turn.session_id,
                    history=going.history,
                    dispatch=turn.dispatch,
                    fence=turn.fence,
                    idempotency_key=turn.idempotency_key,
                    **by_hand.options,
                )
                items = [item async for item in stream]
            turn = await entered.redeem_all(await self.agent(ledger, calls).ask(run_id="2"), APPROVE, ANSWER)
            typed = await entered.go_on("stream_typed", turn)
            assert by_hand.seen == entered.seen == [{"c1": "deployed to prod", "c2": ANSWER_TEXT}]
            assert by_hand.runs == entered.runs == ["prod"]
            told = isinstance(typed[0], AskUserAnsweredEvent)
            assert told is (turn.outcome.name == ASK_USER)
            assert [type(item) for item in items] == [type(item) for item in typed[told:]]

    @_played
    async def test_each_decision_runs_what_it_says(self) -> None:
        """An approval and an edit run the call once under its pause's key; a rejection and a text run nothing."""
        edit: dict[str, Any] = {"decision": "edit", "arguments": {"to": "staging"}}
        decisions: list[tuple[dict[str, Any], str | None]] = [
            (APPROVE, "prod"),
            (edit, "staging"),
            (REJECT, None),
            (RESPOND, None),
        ]
        async with open_ledger("memory:") as ledger:
            for surface in SURFACES:
                for decision, to in decisions:
                    asking = self.agent(ledger, [("c1", "deploy", {"to": "prod"})])
                    ended = await asking.ask(run_id=f"{surface} {decision['decision']}")
                    assert ended.asked[0].request == {"tool": "deploy", "arguments": {"to": "prod"}}
                    going = self.agent(ledger, "done")
                    await going.go_on(surface, await _redeem(ledger, ended, decision))
                    assert [*asking.runs, *going.runs] == ([to] if to else [])
                    assert going.effects == ({str(ended.paused[0].pause_id): to} if to else {})
                    said = decision.get("reason") or decision.get("text") or f"deployed to {to}"
                    (seen,) = going.seen
                    assert said in str(seen["c1"])

    @_played
    async def test_every_call_of_a_stopped_message_has_one_result(self) -> None:
        """Answers, results of neighbours that finished, and for those that had none that they were not run."""
        calls = [
            ("c0", "look", {}),
            ("c1", "deploy", {"to": "x"}),
            ("c2", "ask_user", QUESTION),
            ("c3", "nowhere", {}),
            ("c4", "deploy", {"to": "y"}),
        ]
        async with open_ledger("memory:") as ledger:
            for surface in SURFACES:
                asking = self.agent(ledger, calls)
                ended = await asking.ask(run_id=surface)
                assert [command.axes.call_id for command in ended.asked] == ["c1", "c2", "c4"]
                assert asking.runs == (["look"] if self.neighbours_run else [])
                going = self.agent(ledger, "done")
                await going.go_on(surface, await going.redeem_all(ended, APPROVE, ANSWER, REJECT))
                assert going.runs == ["x"]
                (seen,) = going.seen
                assert seen.keys() == {"c0", "c1", "c2", "c3", "c4"}
                assert (seen["c1"], seen["c2"]) == ("deployed to x", ANSWER_TEXT)
                assert "not on Friday" in seen["c4"]
                assert seen["c0"] == ("all quiet" if self.neighbours_run else NOT_DISPATCHED)
                assert (seen["c3"] == NOT_DISPATCHED) is not self.neighbours_run

    @_played
    async def test_a_model_that_fails_leaves_the_turn_owed_and_the_effect_is_one(
        self, store_url: str, tmp_path: Path
    ) -> None:
        """Nobody is asked again; the tool of a recovered turn finds the same key and a higher fence."""
        async with _opened(store_url, tmp_path) as ledger:
            for surface in SURFACES:
                ended = await self.agent(ledger, [("c1", "deploy", {"to": "prod"})]).ask(run_id=surface)
                failing = self.agent(ledger, ConnectionError("hung up"))
                try:
                    await failing.go_on(surface, await _redeem(ledger, ended, APPROVE))
                except ConnectionError:
                    pass
                else:
                    raise AssertionError("the model's error did not come out")
                assert (await _newest(ledger, ended)).NAME == "pause.stalled"
                assert [item.pause_id async for item in ledger.owed(SCOPE)] == [ended.paused[0].pause_id]
                again = self.agent(ledger, "done", effects=failing.effects)
                await again.go_on(surface, await again.recover(ended))
                assert again.seen == [{"c1": "deployed to prod"}]
                assert again.effects == {str(ended.paused[0].pause_id): "prod"}
                assert (await _newest(ledger, ended)).end == "finished"

    @_played
    async def test_of_50_decisions_at_once_one_goes_on(self, store_url: str, tmp_path: Path) -> None:
        """Half of them approve; the 49 others are told that it is consumed, by whom and when."""
        async with _opened(store_url, tmp_path) as ledger:
            ended = await self.agent(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
            tried = await asyncio.gather(
                *(_redeem(ledger, ended, (APPROVE, REJECT)[n % 2]) for n in range(50)), return_exceptions=True
            )
            (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
            lost = [one for one in tried if isinstance(one, AlreadyConsumed) and one.at and one.by]
            assert len(lost) == len(tried) - 1
            going = self.agent(ledger, "done")
            await going.go_on("run", turn)
            assert going.runs == (["prod"] if turn.outcome.response == APPROVE else [])

    @_played
    async def test_answers_in_any_order_land_on_their_own_calls(self, store_url: str, tmp_path: Path) -> None:
        """Three pauses of a round, answered at once and in reverse; one continuation carries all three."""
        async with _opened(store_url, tmp_path) as ledger:
            for order in ("at once", "in reverse"):
                calls = [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in range(3)]
                ended = await self.agent(ledger, calls).ask(run_id=order)
                edits = [{"decision": "edit", "arguments": {"to": f"other {n}"}} for n in range(3)]
                if order == "at once":
                    answers = [_redeem(ledger, ended, edits[n], n) for n in range(3)]
                    tried = await asyncio.gather(*answers, return_exceptions=True)
                else:
                    tried = [await _tried(_redeem(ledger, ended, edits[n], n)) for n in (2, 1, 0)]
                (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
                assert len([one for one in tried if isinstance(one, RoundOpen)]) == len(tried) - 1
                going = self.agent(ledger, "done")
                await going.go_on("run", turn)
                assert going.seen == [{f"c{n}": f"deployed to other {n}" for n in range(3)}]
                assert going.effects == {str(ended.paused[n].pause_id): f"other {n}" for n in range(3)}

    @_played
    async def test_a_process_gone_right_after_the_last_answer_leaves_a_turn_to_recover(
        self, store_url: str, tmp_path: Path
    ) -> None:
        """The answers are kept, and nothing was consumed."""
        async with _opened(store_url, tmp_path) as ledger:
            ended = await self.agent(ledger, [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (0, 1)]).ask()
            for receipt, command in zip(ended.paused, ended.asked, strict=True):
                envelope = recognise(ledger.capability, receipt.token).envelope
                assert envelope is not None
                await ledger.capability.answer(AnswerCommand(envelope, APPROVE, **dict(command.axes)))
            going = self.agent(ledger, "done")
            await going.go_on("run", await going.recover(ended))
            assert going.seen == [{"c0": "deployed to place 0", "c1": "deployed to place 1"}]

    @_played
    async def test_where_nobody_answers_the_lapse_answer_stands(self) -> None:
        """And one that came in time stands beside a call that got none."""
        lapse = LapseAnswer({"decision": "reject", "reason": "nobody was there"})
        async with open_ledger("memory:") as ledger:
            call = ("c1", "deploy", {"to": "prod"})
            alone = await self.agent(ledger, [call], gates={**GATES, "deploy": Gate(closes_in=1, on_lapse=lapse)}).ask()
            brief = {**GATES, "deploy": Gate(closes_in=1)}
            beside = await self.agent(ledger, [call, ("c2", "ask_user", QUESTION)], gates=brief).ask(run_id="run-2")
            await asyncio.sleep(2.1)
            assert isinstance(await _tried(_redeem(ledger, alone, APPROVE)), TokenExpired)
            going = self.agent(ledger, "then not", "done")
            await going.go_on("run", await going.recover(alone))
            await going.go_on("run", await _redeem(ledger, beside, ANSWER, 1))
            first, second = going.seen
            assert "nobody was there" in first["c1"]
            assert second == {"c1": NOT_ANSWERED, "c2": ANSWER_TEXT}
            assert going.runs == []

    @_played
    async def test_a_new_stop_supersedes_the_old_question(self) -> None:
        """The old token is refused by that reason, and never lands on the new pause."""
        async with open_ledger("memory:") as ledger:
            first = await self.agent(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
            going = self.agent(ledger, [("c2", "deploy", {"to": "staging"})], "done")
            second = await going.ask("Staging first.", run_id="run-2", supersedes=first.paused[0].pause_id)
            assert isinstance(await _tried(_redeem(ledger, first, APPROVE)), PauseWithdrawn)
            await going.go_on("run", await _redeem(ledger, second, APPROVE))
            assert going.runs == ["staging"]

    @_played
    async def test_a_zombie_changes_nothing_and_there_is_no_third_run(self) -> None:
        """A worker outlives its lease, another recovers; the first then fails, or finishes."""
        async with open_ledger("memory:", LedgerSettings(lease=1)) as ledger:
            endings: list[Reply] = [ConnectionError("hung up"), "late"]
            calls = [("c1", "deploy", {"to": "prod"})]
            stopped = [await self.agent(ledger, calls).ask(run_id=f"run-{n}") for n in range(len(endings))]
            outlived = [await _redeem(ledger, ended, APPROVE) for ended in stopped]
            await asyncio.sleep(1.2)
            for ending, ended, turn in zip(endings, stopped, outlived, strict=True):
                zombie = self.agent(ledger, ending)
                rescuer = self.agent(ledger, "done", effects=zombie.effects)
                rescued = await rescuer.recover(ended)
                came = await _tried(zombie.go_on("run", turn))
                newest = await _newest(ledger, ended)
                assert newest.NAME == "pause.recovered" if isinstance(came, ConnectionError) else newest.late
                await rescuer.go_on("run", rescued)
                assert isinstance(await _tried(rescuer.recover(ended)), AlreadyContinued)
                assert zombie.effects == {str(ended.paused[0].pause_id): "prod"}
                story = [fact.NAME for fact in await ledger.story(ended.paused[0].pause_id)]
                assert story.count("pause.continued") == 1

    @_played
    async def test_a_second_stop_says_which_pause_is_next(self) -> None:
        """A continued run may call tools, and stop again."""
        async with open_ledger("memory:") as ledger:
            for surface in SURFACES:
                first = await self.agent(ledger, [("c1", "ask_user", QUESTION)]).ask(run_id=surface)
                going = self.agent(ledger, [("c2", "look", {})], [("c3", "deploy", {"to": "x"})], "done")
                *_, second = await going.go_on(surface, await _redeem(ledger, first, ANSWER))
                fact = await _newest(ledger, first)
                assert (fact.end, fact.next) == ("paused_again", (second.paused[0].pause_id,))
                await going.go_on(surface, await _redeem(ledger, second, APPROVE))
                assert going.seen[-1] == {"c1": ANSWER_TEXT, "c2": "all quiet", "c3": "deployed to x"}
                assert going.runs == ["look", "x"]

    @_played
    async def test_walking_away_from_a_stream_stalls_the_turn(self) -> None:
        """It is still owed."""
        async with open_ledger("memory:") as ledger:
            for opened in (resume_stream, resume_stream_typed):
                ended = await self.agent(ledger, [("c1", "deploy", {"to": "prod"})]).ask(run_id=opened.__name__)
                going = self.agent(ledger, [("c2", "look", {})], "one two three")
                stream = opened(going.kernel, await _redeem(ledger, ended, APPROVE), **going.options)
                await anext(stream)
                await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
                fact = await _newest(ledger, ended)
                assert (fact.NAME, fact.cause) == ("pause.stalled", "consumer_gone")

    @_played
    async def test_a_run_without_a_stop_is_no_pause(self) -> None:
        """On every surface the last item says how it ended."""
        async with open_ledger("memory:") as ledger:
            for surface in SURFACES:
                going = self.agent(ledger, [("c1", "look", {})], "quiet")
                opened = getattr(going.kernel, surface)("Look.", run_id="r", session_id=surface, **going.options)
                ended = await opened if surface == "run" else [item async for item in opened][-1]
                assert isinstance(ended, Ended)
                assert (ended.paused, ended.asked, going.runs) == ((), (), ["look"])
                assert going.seen[-1] == {"c1": "all quiet"}


def _opened(store_url: str, folder: Path) -> Ledger:
    KeyFile(folder / "keys").create()
    return open_ledger(store_url, LedgerSettings(keys_directory=folder / "keys"))


async def _redeem(ledger: Ledger, ended: Ended, answer: Any, at: int = 0) -> ResumedTurn:
    return await ledger.redeem(ended.paused[at].token, answer, axes=ended.asked[at].axes, by=Actor("maria"))


async def _tried(attempt: Awaitable[Any]) -> Any:
    """Give what came of it, an error too."""
    return (await asyncio.gather(attempt, return_exceptions=True))[0]


async def _newest(ledger: Ledger, ended: Ended) -> Any:
    return (await ledger.story(ended.paused[0].pause_id))[-1]
