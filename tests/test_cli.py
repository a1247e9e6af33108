"""The command line in this process: every command, every shape, every exit code, and nothing secret in what failed."""

import io
import json
import re
import shlex
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pauseledger
import psycopg
import pytest
from pauseledger.domain.errors import LedgerTooNew
from pauseledger.infrastructure import cli, cli_shapes, sqlite
from pauseledger.infrastructure.cli_inputs import Inputs, the_open_call
from pauseledger.infrastructure.keys import SETTLES
from pauseledger.infrastructure.standing import standing

GIVE = Path(__file__).parent / "transcripts" / "give"
TWO_CALLS = GIVE / "openai-chat--deepseek-reasoning-text-and-two.json"
ONE_CALL = GIVE / "openai-chat--legacy-function-call.json"
CALLS = json.loads(TWO_CALLS.read_text())["reserved_call_ids"]
AXES = ("--tenant", "acme", "--session", "s1", "--run", "r1")
CALL = ("--call", CALLS[0])
QUESTION = "Which of the two names, the secret one?"
REQUEST = {"questions": [{"question": QUESTION, "options": [{"label": "Anne-7c1f"}, {"label": "Bob"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Anne-7c1f"]}]}
OTHER_ANSWER = {"answers": [{"question_id": "q1", "selections": ["Bob"]}]}


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        assert self.out.count("\n") == 1, self.out
        assert self.out.isascii()
        return json.loads(self.out)


class Commands:
    """Runs commands in this process, on a store and keys of the test's own."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.store = f"sqlite:///{folder / 'ledger.db'}"

    def __call__(self, *arguments, stdin=None):
        if stdin is not None:
            self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Ran(code, *self._capsys.readouterr())

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def pause(self, *more, turn=TWO_CALLS, call=CALL):
        request = self.file("request.json", REQUEST)
        asked = ("--interaction", "ask_user", "--request", request, "--turn", turn)
        return self("pause", *AXES, *call, *asked, *more, "--json")

    def redeem(self, token, *more, answer=ANSWER, axes=(*AXES, *CALL)):
        return self("redeem", "-", "--response", self.file("answer.json", answer), *axes, *more, stdin=token.encode())

    def rows(self, topic):
        with sqlite3.connect(self.folder / "ledger.db") as database:
            return database.execute("SELECT count(*) FROM stored_events WHERE topic = ?", (topic,)).fetchone()[0]


@pytest.fixture
def pl(tmp_path, monkeypatch, capsys):
    commands = Commands(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("PAUSELEDGER_STORE", commands.store)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.delenv("PAUSELEDGER_KEYS", raising=False)
    monkeypatch.delenv("PAUSELEDGER_TOKEN", raising=False)
    return commands


class TestPause:
    def test_prints_one_object_with_the_token(self, pl):
        ran = pl.pause()
        assert ran.code == 0
        assert list(ran.json) == ["outcome", "pause_id", "token", "existing", "closes_at"]
        assert ran.json["outcome"] == "paused"
        assert ran.json["existing"] is False
        assert ran.json["token"].startswith("plp1")

    def test_finds_the_same_again(self, pl):
        first, second = pl.pause().json, pl.pause().json
        assert second["existing"] is True
        assert second["pause_id"] == first["pause_id"]

    def test_takes_the_only_open_call_from_the_turn(self, pl):
        paused = pl.pause(turn=ONE_CALL, call=()).json
        shown = pl("show", paused["pause_id"], "--json").json
        assert shown["facts"][0]["call_id"] == "@0"

    def test_takes_the_call_that_has_no_result_yet(self, pl):
        turn = json.loads(TWO_CALLS.read_text())
        turn["messages"].append({"role": "tool", "tool_call_id": CALLS[0], "content": "4"})
        paused = pl.pause(turn=pl.file("turn.json", turn), call=()).json
        assert pl("show", paused["pause_id"], "--json").json["facts"][0]["call_id"] == CALLS[1]

    def test_asks_which_call_where_there_are_several(self, pl):
        ran = pl.pause(call=())
        assert ran.code == 2
        assert ran.json["outcome"] == "usage"
        assert all(call in ran.json["says"] for call in CALLS)

    def test_pauses_a_round(self, pl):
        request = pl.file("request.json", REQUEST)
        asked = ("--interaction", "ask_user", "--turn", TWO_CALLS, "--request", request, "--request", request)
        ran = pl("pause", *AXES, "--call", CALLS[0], "--call", CALLS[1], *asked, "--json")
        assert ran.code == 0
        assert list(ran.json) == ["outcome", "round", "pauses"]
        assert [one["call_id"] for one in ran.json["pauses"]] == CALLS
        assert ran.json["round"] == ran.json["pauses"][0]["pause_id"]
        first, second = (one["token"] for one in ran.json["pauses"])
        kept = pl.redeem(first, "--json")
        assert kept.code == 0
        assert kept.json["outcome"] == "open"
        assert kept.json["open"] == [CALLS[1]]
        last = pl.redeem(second, "--json", axes=(*AXES, "--call", CALLS[1]), answer=OTHER_ANSWER)
        assert last.json["outcome"] == "resumed"
        assert [entry["content"] for entry in last.json["history"][-2:]] == ["q1: Anne-7c1f", "q1: Bob"]

    def test_needs_a_request_for_each_call(self, pl):
        ran = pl.pause("--call", CALLS[1])
        assert (ran.code, ran.json["outcome"]) == (2, "usage")

    def test_keeps_the_text_of_a_turn(self, pl):
        text = b'[ {"role":"user","content":"1.0\\u0041"},\n{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]} ]'
        bare = pl.file("bare.json", text)
        within = pl.file(
            "within.json", b'{"a": [1, {"messages": 2}], "messages" :  ' + text + b' , "format":"openai-chat"}'
        )
        assert Inputs().turn(str(bare), "openai-chat").messages == text
        assert Inputs().turn(str(within), None).messages == text
        assert pl.pause("--format", "openai-chat", turn=bare, call=("--call", "c")).code == 0
        assert pl.pause(turn=within, call=()).json["existing"] is True

    @pytest.mark.parametrize("name", ["messages", "items", "contents"])
    def test_takes_a_list_by_any_of_its_names(self, pl, name):
        turn = Inputs().turn(str(pl.file("t.json", {"x": None, name: [1, [2]], "format": "f"})), None)
        assert (turn.format, turn.messages) == ("f", b"[1, [2]]")

    @pytest.mark.parametrize("shape", [{}, {"messages": {}}, {"items": []}])
    def test_takes_no_other_object(self, pl, shape):
        both = {**json.loads(TWO_CALLS.read_text()), **shape}
        if "items" not in shape:
            del both["messages"]
        ran = pl.pause("--format", "openai-chat", turn=pl.file("t.json", {**both, **shape}))
        assert (ran.code, ran.json["outcome"], ran.json["name"]) == (2, "rejected", "turn_broken")

    def test_the_format_is_stated_once(self, pl):
        assert pl.pause("--format", "langchain").json["outcome"] == "usage"
        assert pl.pause("--format", "openai-chat").code == 0
        bare = pl.file("bare.json", json.loads(TWO_CALLS.read_text())["messages"])
        ran = pl.pause(turn=bare)
        assert (ran.code, "--format" in ran.json["says"]) == (2, True)

    def test_every_option_arrives(self, pl):
        options = {
            "--opens-in": 5, "--closes-in": 50, "--on-lapse": pl.file("lapse.json", OTHER_ANSWER), "--idempotency-key": "k",
            "--run-started": "2026-01-02T03:04:05Z", "--queue": "desk", "--priority": 3, "--assignee": "maria",
            "--group": "staff", "--label": "kind=game", "--agent": "dice", "--occurrence": 4,
        }  # fmt: skip
        paused = pl.pause(
            *(text for option in options.items() for text in option), "--sub-tenant", "", "--namespace", "n"
        )
        assert paused.code == 0, paused.out
        fact = pl("show", paused.json["pause_id"], "--json", "--content").json["facts"][0]
        assert fact["scope"] == {"tenant_id": "acme", "sub_tenant_id": "", "namespace": "n"}
        opens, closes = (datetime.fromisoformat(fact[name]) for name in ("opens_at", "closes_at"))
        assert closes - opens == timedelta(seconds=45)
        assert fact["on_lapse"]["action"] == "answer"
        assert fact["routing"]["queue"] == "desk"
        assert fact["routing"]["priority"] == 3
        assert len(fact["routing"]["assignees"]) == len(fact["routing"]["groups"]) == 1
        assert fact["labels"] == {"kind": "game"}
        assert fact["agent"]["name"] == "dice"
        assert fact["occurrence"] == 4
        assert any('"maria"' in content["text"] for content in fact["contents"])

    def test_supersedes_an_earlier_one(self, pl):
        old = pl.pause().json["pause_id"]
        assert pl.pause("--occurrence", "1", "--supersedes", old).code == 0
        assert pl("show", old, "--json").json["state"] == "withdrawn"

    def test_a_conflict_says_what_differs(self, pl):
        first = pl.pause().json
        ran = pl.pause("--closes-in", 60)
        assert ran.code == 3
        assert ran.json == {"outcome": "conflict", "pause_id": first["pause_id"], "differs": "window length"}

    def test_a_closed_one_names_the_next_occurrence(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        ran = pl.pause()
        assert ran.code == 3
        assert ran.json == {"outcome": "closed", "pause_id": paused["pause_id"], "state": "owed", "next_occurrence": 1}

    @pytest.mark.parametrize(
        ("raw", "name"),
        [(b'{"a":1,"a":2}', "duplicate_key"), (b"[NaN]", "nan"), (b"{", "not_json"), (b'"\xff"', "not_utf8")],
    )
    def test_what_cannot_be_carried_is_rejected_by_name(self, pl, raw, name):
        given = pl.file("bad.json", raw)
        ran = pl("pause", *AXES, *CALL, "--interaction", "ask_user", "--request", given, "--turn", TWO_CALLS, "--json")
        assert (ran.code, ran.json["outcome"], ran.json["name"]) == (2, "rejected", name)
        turn = pl.file("turn.json", raw if raw.startswith(b"{") else b'{"messages":' + raw + b"}")
        assert pl.pause(turn=turn).json["name"] == name


class TestRedeem:
    def test_prints_what_a_host_goes_on_with(self, pl):
        paused = pl.pause().json
        ran = pl.redeem(paused["token"], "--by", "maria", "--json")
        assert ran.code == 0
        told = ran.json
        assert list(told) == [
            "outcome", "pause_id", "run_id", "interrupt_id", "tool_call_id", "response", "dispatch", "fence",
            "idempotency_key", "history", "time_to_resolve_seconds",
        ]  # fmt: skip
        assert told["outcome"] == "resumed"
        assert told["pause_id"] == told["idempotency_key"] == paused["pause_id"]
        assert told["interrupt_id"] == told["tool_call_id"] == CALLS[0]
        assert (told["run_id"], told["fence"], told["response"], told["dispatch"]) == ("r1", 1, ANSWER, [])
        assert told["history"][:-2] == json.loads(TWO_CALLS.read_text())["messages"]
        assert told["history"][-2]["content"] == "q1: Anne-7c1f"
        assert told["time_to_resolve_seconds"] >= 0

    def test_an_approved_call_is_left_for_the_host_to_run(self, pl):
        request = pl.file("r.json", {"tool": "roll_dice", "arguments": {"sides": 6}})
        asked = ("--interaction", "approval", "--request", request, "--turn", TWO_CALLS)
        token = pl("pause", *AXES, "--call", CALLS[1], *asked, "--json").json["token"]
        axes = (*AXES, "--call", CALLS[1])
        told = pl.redeem(token, "--json", axes=axes, answer={"decision": "edit", "arguments": {"sides": 8}}).json
        assert len(told["dispatch"]) == 1
        dispatch = told["dispatch"][0]
        assert (dispatch["interrupt_id"], dispatch["tool"], dispatch["arguments"]) == (
            CALLS[1],
            "roll_dice",
            {"sides": 8},
        )
        assert [entry["tool_call_id"] for entry in told["history"] if "tool_call_id" in entry][-1] == CALLS[0]

    def test_in_words_it_says_how_to_go_on(self, pl):
        paused = pl.pause().json
        ran = pl.redeem(paused["token"])
        assert ran.err == ""
        last = ran.out.splitlines()[-1]
        assert last.startswith("now go on with the turn, then: pauseledger settle ")
        assert (
            pl(*shlex.split(last.partition(": ")[2])[1:]).out == f"settled: pause {paused['pause_id']} is continued\n"
        )

    def test_what_an_operator_recovered_is_settled_as_it_says(self, pl):
        paused = pl.pause("--namespace", "two words").json
        pl.redeem(paused["token"], axes=(*AXES, *CALL, "--namespace", "two words"))
        for whom in (("--operator", "olga's"), (*AXES, *CALL, "--namespace", "two words")):
            fence = pl("recover", paused["pause_id"], "--operator", "olga's", "--force", "--json").json["fence"]
            assert pl("settle", paused["pause_id"], "--fence", fence, "--end", "stalled", *whom).code == 0
            last = pl("recover", paused["pause_id"], *whom).out.splitlines()[-1]
            settle = shlex.split(last.partition(": ")[2])[1:]
            settle[settle.index("finished")] = "stalled"
            assert pl(*settle).code == 0
        stalled = pl("show", paused["pause_id"]).out.splitlines()[-1]
        assert stalled == f"next    pauseledger recover {paused['pause_id']} --operator NAME"
        assert "pauseledger recover PAUSE" in pl("stranded", "--tenant", "acme", "--namespace", "two words").out

    def test_standard_input_is_given_once_and_an_empty_file_is_named(self, pl):
        token = pl.pause().json["token"]
        ran = pl("redeem", "-", "--response", "-", *AXES, *CALL, stdin=f"{token}\n{{}}".encode())
        assert (ran.code, "2 inputs are standard input (-), which can be read once" in ran.err) == (2, True)
        asked = ("pause", *AXES, *CALL, "--interaction", "ask_user")
        ran = pl(*asked, "--request", "-", "--turn", "-", stdin=b"{}")
        assert (ran.code, "which can be read once" in ran.err) == (2, True)
        empty = pl.file("empty.json", b"\n")
        for given in (("--request", empty, "--turn", TWO_CALLS), ("--request", pl.file("r", REQUEST), "--turn", empty)):
            ran = pl(*asked, *given)
            assert (ran.code, f"({empty}) is empty" in ran.err) == (2, True)
        broken = pl.file("broken.json", b"{'a'")
        ran = pl(*asked, "--request", broken, "--turn", TWO_CALLS)
        assert ran.err == f"not_json: in the request ({broken}): write JSON text (RFC 8259)\n"

    def test_a_pause_that_is_over_says_what_can_still_be_done(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        for command in ("withdraw", "reissue"):
            ran = pl(command, paused["pause_id"], *AXES, *CALL)
            assert (ran.code, "is owed; " in ran.err, "settle it as abandoned" in ran.err) == (3, True, True)
        pl("settle", paused["pause_id"], "--fence", 1, "--end", "finished", *AXES, *CALL)
        ran = pl("reissue", paused["pause_id"], *AXES, *CALL)
        assert (ran.code, "is continued; " in ran.err, "another occurrence" in ran.err) == (3, True, True)

    @pytest.mark.parametrize(
        ("change", "reason", "axis"),
        [
            (("--tenant", "evil"), "scope_mismatch", "scope"),
            (("--namespace", ""), "scope_mismatch", "scope"),
            (("--session", "x"), "session_mismatch", "session"),
            (("--run", "x"), "run_mismatch", "run"),
            (("--call", "x"), "call_mismatch", "call"),
        ],
    )
    def test_each_axis_refuses_by_its_own_name(self, pl, change, reason, axis):
        paused = pl.pause().json
        ran = pl.redeem(paused["token"], "--json", axes=(*AXES, *CALL, *change))
        assert ran.code == 3
        wanted = {"outcome": "refused", "reason": reason, "axis": axis, "step": 2, "pause_id": paused["pause_id"]}
        assert wanted.items() <= ran.json.items()
        assert ran.json["recorded"] is True
        assert pl.rows("pause.refused@1") == 1
        assert pl.rows("pause.consumed@1") == 0

    def test_the_second_is_told_who_was_first(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"], "--by", "maria")
        ran = pl.redeem(paused["token"], "--json")
        assert (ran.code, ran.json["reason"], ran.json["consumed_by"]) == (3, "already_consumed", "maria")
        assert pl.rows("pause.consumed@1") == 1

    def test_an_answer_that_does_not_fit_is_refused_on_record(self, pl):
        ran = pl.redeem(pl.pause().json["token"], "--json", answer={"answers": []})
        assert (ran.code, ran.json["reason"], ran.json["recorded"]) == (3, "response_invalid", True)

    def test_an_answer_that_is_no_sound_json_is_rejected_before_anything_is_redeemed(self, pl):
        token = pl.pause().json["token"]
        bad = pl.file("bad.json", b'{"decision":"approve","decision":"reject"}')
        ran = pl("redeem", token, "--response", bad, *AXES, *CALL, "--json")
        assert (ran.code, ran.json["outcome"], ran.json["name"]) == (2, "rejected", "duplicate_key")
        assert pl.rows("pause.refused@1") == 0

    def test_a_forged_token_and_a_foreign_string(self, pl):
        token = pl.pause().json["token"]
        forged = pl.redeem(token[:-1] + ("0" if token[-1] != "0" else "1"), "--json")
        assert (forged.code, forged.json["reason"], forged.json["recorded"]) == (3, "token_forged", False)
        foreign = pl.redeem("somebody-elses", "--json")
        assert foreign.code == 3
        assert foreign.json == {"outcome": "not_redeemable", "reason": "not_a_capability_token"}

    def test_the_token_comes_from_where_it_was_put(self, pl, monkeypatch):
        token = pl.pause().json["token"]
        answer = pl.file("answer.json", ANSWER)
        where = ("--response", answer, *AXES, "--call", "x", "--json")
        refused = [pl("redeem", token, *where), pl("redeem", "-", *where, stdin=f"{token}\n".encode())]
        assert pl("redeem", *where).code == 2
        monkeypatch.setenv("PAUSELEDGER_TOKEN", token)
        refused.append(pl("redeem", *where))
        assert [ran.json["reason"] for ran in refused] == ["call_mismatch"] * 3

    def test_standard_input_is_read_once(self, pl):
        token = pl.pause().json["token"]
        ran = pl("redeem", token, "--response", "-", *AXES, *CALL, "--json", stdin=json.dumps(ANSWER).encode())
        assert ran.json["outcome"] == "resumed"
        ran = pl("redeem", "-", "--response", "-", *AXES, *CALL, "--json", stdin=b"{}")
        assert (ran.code, ran.json["outcome"]) == (2, "usage")

    def test_every_axis_has_to_be_given(self, pl):
        token = pl.pause().json["token"]
        for missing in range(0, 8, 2):
            axes = [*AXES, *CALL]
            del axes[missing : missing + 2]
            ran = pl.redeem(token, "--json", axes=axes)
            assert (ran.code, ran.json["outcome"]) == (2, "usage")
            assert (*AXES, *CALL)[missing] in ran.json["says"]
        ran = pl.redeem(token, "--json", axes=(*AXES, *CALL, "--tenant", " "))
        assert (ran.code, ran.json["outcome"]) == (2, "misconfigured")


class TestAnswerNowContinueLater:
    def test_an_answer_is_kept_and_redeemed_later(self, pl):
        paused = pl.pause().json
        where = ("answer", paused["token"], *AXES, *CALL, "--json", "--response")
        kept = pl(*where, pl.file("a.json", ANSWER), "--by", "maria")
        assert kept.code == 0
        wanted = {"outcome": "answered", "pause_id": paused["pause_id"], "state": "answered"}
        assert wanted.items() <= kept.json.items()
        assert isinstance(kept.json["position"], int)
        late = pl(*where, pl.file("a.json", OTHER_ANSWER)).json
        assert (late["reason"], late["answered_by"]) == ("already_answered", "maria")
        ran = pl("redeem", paused["token"], "--stored", *AXES, *CALL, "--json")
        assert (ran.code, ran.json["response"]) == (0, ANSWER)

    def test_an_answer_is_either_given_or_stored(self, pl):
        token = pl.pause().json["token"]
        assert pl("redeem", token, *AXES, *CALL, "--json").json["outcome"] == "usage"
        both = pl.redeem(token, "--stored", "--json")
        assert (both.code, both.json["outcome"]) == (2, "usage")

    def test_answering_a_foreign_string(self, pl):
        pl("migrate")
        ran = pl("answer", "x", *AXES, *CALL, "--response", pl.file("a.json", ANSWER), "--json")
        assert (ran.code, ran.json["outcome"]) == (3, "not_redeemable")


class TestAfterwards:
    def test_a_turn_is_settled_under_its_fence(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        ran = pl("settle", paused["pause_id"], *AXES, *CALL, "--fence", 1, "--end", "finished", "--json")
        assert ran.code == 0
        assert {"outcome": "settled", "pause_id": paused["pause_id"], "state": "continued"}.items() <= ran.json.items()

    def test_a_turn_that_paused_again_names_where(self, pl):
        paused, following = pl.pause().json, uuid4()
        pl.redeem(paused["token"])
        ended = ("--fence", 1, "--end", "paused_again", "--next", following)
        assert pl("settle", paused["pause_id"], *AXES, *CALL, *ended).code == 0
        assert f"paused again in {following}" in pl("show", paused["pause_id"]).out

    def test_a_stalled_turn_is_recovered_in_the_shape_of_a_redemption(self, pl):
        paused = pl.pause().json
        redeemed = pl.redeem(paused["token"], "--json").json
        where = (paused["pause_id"], *AXES, *CALL, "--json")
        held = pl("recover", *where)
        assert held.code == 3
        assert {"outcome": "not_recoverable", "reason": "lease_held", "fence": 1}.items() <= held.json.items()
        pl("settle", *where, "--fence", 1, "--end", "stalled", "--error-type", "TimeoutError")
        assert 'failed with "TimeoutError"' in pl("show", paused["pause_id"]).out
        recovered = pl("recover", *where)
        assert recovered.code == 0
        assert list(recovered.json) == list(redeemed)
        same = {**redeemed, "outcome": "recovered", "fence": 2}
        assert recovered.json == same

    def test_an_operator_ends_a_lease_and_is_recorded(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        assert pl("recover", paused["pause_id"], *AXES, *CALL, "--force", "--json").json["outcome"] == "usage"
        for stated in (AXES[:2], CALL):
            ran = pl("recover", paused["pause_id"], *stated, "--operator", "olga", "--json")
            assert (ran.code, ran.json["outcome"]) == (2, "usage")
        ran = pl("recover", paused["pause_id"], "--operator", "olga", "--force", "--json")
        assert (ran.code, ran.json["fence"]) == (0, 2)
        assert '"olga"' in pl("show", paused["pause_id"]).out

    @pytest.mark.parametrize("command", ["recover", "settle"])
    def test_nothing_is_owed_before_an_answer(self, pl, command):
        paused = pl.pause().json
        more = ("--fence", 1, "--end", "finished") if command == "settle" else ()
        ran = pl(command, paused["pause_id"], *AXES, *CALL, *more, "--json")
        assert ran.code == 3
        assert ran.json == {"outcome": "not_recoverable", "reason": "not_consumed", "pause_id": paused["pause_id"]}

    def test_what_was_continued_is_not_recovered(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        pl("settle", paused["pause_id"], "--operator", "olga", "--fence", 1, "--end", "finished")
        ran = pl("recover", paused["pause_id"], *AXES, *CALL, "--json")
        assert (ran.code, ran.json["reason"]) == (3, "already_continued")

    def test_a_question_is_taken_back(self, pl):
        paused = pl.pause().json
        ran = pl("withdraw", paused["pause_id"], *AXES, *CALL, "--reason", "moved_on", "--note", "a secret", "--json")
        assert (ran.code, ran.json["outcome"], ran.json["state"]) == (0, "withdrawn", "withdrawn")
        assert "a secret" not in pl("show", paused["pause_id"]).out
        assert "a secret" in pl("show", paused["pause_id"], "--content").out
        assert pl.redeem(paused["token"], "--json").json["reason"] == "withdrawn"

    def test_axes_are_judged_without_a_token_too(self, pl):
        paused = pl.pause().json
        ran = pl("withdraw", paused["pause_id"], *AXES, "--call", "x", "--json")
        assert (ran.code, ran.json["reason"]) == (3, "call_mismatch")

    def test_a_token_is_minted_again(self, pl):
        paused = pl.pause().json
        ran = pl("reissue", paused["pause_id"], *AXES, *CALL, "--ends-earlier", "--closes-in", 60, "--json")
        assert ran.code == 0
        assert list(ran.json) == ["outcome", "pause_id", "token", "closes_at"]
        assert ran.json["closes_at"] < paused["closes_at"]
        assert pl.redeem(paused["token"], "--json").json["reason"] == "token_superseded"
        assert pl.redeem(ran.json["token"], "--json").code == 0

    def test_a_window_that_is_open_does_not_lapse(self, pl):
        paused = pl.pause().json
        ran = pl("lapse", paused["pause_id"], *AXES, *CALL, "--json")
        assert ran.code == 3
        assert ran.json == {"outcome": "window_open", "pause_id": paused["pause_id"], "closes_at": paused["closes_at"]}


class TestShow:
    def test_tells_the_story_without_what_people_wrote(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"], "--by", "maria")
        pl.redeem(paused["token"], "--by", "late")
        ran = pl("show", paused["pause_id"], "--json")
        assert ran.code == 0
        assert list(ran.json) == ["outcome", "pause_id", "state", "facts", "sentences"]
        assert (ran.json["outcome"], ran.json["state"]) == ("shown", "owed")
        topics = [fact["topic"] for fact in ran.json["facts"]]
        assert topics == ["pause.paused@1", "pause.answered@1", "pause.consumed@1", "pause.refused@1"]
        assert [fact["version"] for fact in ran.json["facts"]] == [1, 2, 3, 1]
        assert len(ran.json["sentences"]) == 4
        in_words = pl("show", paused["pause_id"])
        for told in (ran.out, in_words.out):
            assert "Anne-7c1f" not in told
            assert QUESTION not in told
            assert paused["token"] not in told
        *told, after = in_words.out.splitlines()[1:]
        assert told == ran.json["sentences"]
        assert after.endswith(f"once the lease has ended: pauseledger recover {paused['pause_id']} --operator NAME")

    def test_content_is_shown_where_asked_for(self, pl):
        paused = pl.pause().json
        pl.redeem(paused["token"])
        ran = pl("show", paused["pause_id"], "--content", "--json")
        contents = [content for fact in ran.json["facts"] for content in fact["contents"]]
        assert any(QUESTION in content["text"] for content in contents)
        assert any(json.loads(content["text"]) == ANSWER for content in contents if "json" in content["media_type"])
        assert QUESTION in ran.json["sentences"][0]

    def test_an_unknown_pause_is_not_in_this_store(self, pl):
        pl("migrate")
        ran = pl("show", uuid4(), "--json")
        assert (ran.code, ran.json["reason"]) == (3, "request_missing")

    def test_what_was_altered_is_told_and_leaves_with_5(self, pl):
        paused = pl.pause().json
        with sqlite3.connect(pl.folder / "ledger.db") as database:
            database.execute("DROP TRIGGER stored_events_no_update")
            (state,) = database.execute("SELECT state FROM stored_events").fetchone()
            database.execute("UPDATE stored_events SET state = ?", (state.replace(b'"s1"', b'"s2"'),))
        ran = pl("show", paused["pause_id"], "--json")
        assert ran.code == 5
        assert {"outcome": "corrupt", "stream": paused["pause_id"], "version": 1}.items() <= ran.json.items()

    def test_user_text_cannot_move_the_terminal_or_be_taken_for_markup(self, pl):
        evil = "[red]x[/red]\x1b[2J\u202e"
        request = pl.file(
            "request.json", {"questions": [{"question": evil, "options": [{"label": f"l{evil}"}, {"label": "m"}]}]}
        )
        asked = ("--interaction", "ask_user", "--request", request, "--turn", TWO_CALLS)
        named = ("--tenant", f"t{evil}", "--session", f"s{evil}", "--run", "r")
        paused = pl("pause", *named, *CALL, *asked, "--json").json
        answered = {"answers": [{"question_id": "q1", "selections": [f"l{evil}"]}]}
        redeemed = pl.redeem(paused["token"], axes=(*named, *CALL), answer=answered)
        assert "\\u202e" in redeemed.out
        assert not {"\x1b", "\u202e"} & set(redeemed.out)
        told = pl("show", paused["pause_id"], "--content").out
        assert "[red]x[/red]\\u001b[2J\\u202e" in told
        assert not {"\x1b", "\u202e"} & set(told)


class TestKeys:
    def test_the_first_key_mints_and_the_next_opens(self, pl):
        first, second = pl("keys", "new", "--json").json, pl("keys", "new", "--json").json
        assert (first["outcome"], first["state"], second["state"]) == ("key_made", "mints", "opens")
        listed = pl("keys", "list", "--json").json
        assert listed["outcome"] == "keys"
        assert [key["kid"] for key in listed["keys"] if key["use"] == "tokens"] == [first["kid"], second["kid"]]
        assert [key["state"] for key in listed["keys"] if key["use"] == "vault"] == ["mints"]
        assert set(listed["keys"][0]) == {"kid", "state", "made_at", "stopped_minting_at", "use"}

    def test_a_key_is_retired_only_when_no_pause_needs_it(self, pl, monkeypatch):
        paused = pl.pause().json
        old = pl("keys", "list", "--json").json["keys"][0]["kid"]
        assert pl("keys", "retire", old, "--json").json["outcome"] == "misconfigured"
        new = pl("keys", "new", "--json").json["kid"]
        promoted = pl("keys", "promote", new, "--json")
        assert (promoted.code, promoted.json["outcome"], promoted.json["state"]) == (0, "key_promoted", "mints")
        monkeypatch.setattr(
            "pauseledger.infrastructure.keys._now", lambda: datetime.now(UTC) + SETTLES + timedelta(seconds=1)
        )
        needed = pl("keys", "retire", old, "--json")
        assert (needed.code, needed.json["outcome"]) == (2, "misconfigured")
        assert paused["pause_id"] in needed.json["says"]
        assert pl.redeem(paused["token"]).code == 0
        retired = pl("keys", "retire", old, "--json")
        assert (retired.code, retired.json["outcome"], retired.json["state"]) == (0, "key_retired", "retired")
        assert pl.redeem(paused["token"], "--json").json["reason"] == "token_forged"

    def test_keys_of_the_environment_are_changed_where_they_are_set(self, pl, monkeypatch):
        monkeypatch.setenv("PAUSELEDGER_KEYS", "0badcafe:" + "A" * 43)
        assert pl("keys", "new", "--json").json["outcome"] == "misconfigured"
        ran = pl("keys", "list", "--json")
        assert [key["kid"] for key in ran.json["keys"]] == ["0badcafe"]
        assert "AAAA" not in ran.out

    def test_retiring_scans_what_it_cannot_read_as_a_reason_to_stop(self):
        with pytest.raises(LedgerTooNew):
            standing([LedgerTooNew("pause.dreamt@1")], made_before=datetime.now(UTC), now=datetime.now(UTC))


class TestTheLedgerItself:
    def test_after_a_restore_older_tokens_are_superseded_until_minted_again(self, pl):
        paused = pl.pause().json
        ran = pl("restored", "--json")
        assert (ran.code, ran.json["outcome"]) == (0, "restored")
        assert pl.redeem(paused["token"], "--json").json["reason"] == "token_superseded"
        assert pl.redeem(pl.pause().json["token"], "--json").code == 0

    def test_tables_are_made_once(self, pl):
        first, second = pl("migrate", "--json"), pl("migrate", "--json")
        assert first.json["done"]
        assert second.json == {"outcome": "migrated", "store": "sqlite", "done": []}
        assert pl("migrate", "--runtime-role", "app", "--json").code == 2

    def test_a_role_is_given_what_it_needs_on_postgresql(self, pl, pg_dsn):
        role = f"app_{uuid4().hex}"
        with psycopg.connect(pg_dsn, autocommit=True) as database:
            database.execute(f"CREATE ROLE {role}")
        ran = pl("migrate", "--store", pg_dsn, "--runtime-role", role, "--json")
        assert ran.code == 0, ran.out
        assert ran.json["store"] == "postgresql"
        assert role in ran.json["done"][-1]

    @pytest.mark.parametrize("url", ["mysql://x", "sqlite://host/x"])
    def test_a_store_that_is_none(self, pl, url):
        ran = pl("show", uuid4(), "--store", url, "--json")
        assert (ran.code, ran.json["outcome"]) == (2, "misconfigured")

    def test_a_store_that_cannot_speak_leaves_with_4(self, pl):
        ran = pl("show", uuid4(), "--store", f"sqlite:///{pl.folder}", "--json")
        assert (ran.code, ran.json["outcome"], ran.json["store_outcome"]) == (4, "unavailable", "not_started")

    def test_a_store_that_is_newer_leaves_with_4(self, pl):
        pl("migrate")
        with sqlite3.connect(pl.folder / "ledger.db") as database:
            database.execute("UPDATE ledger SET schema_revision = 99")
        ran = pl("show", uuid4(), "--json")
        assert (ran.code, ran.json["outcome"], ran.json["topic"]) == (4, "too_new", "schema@99")

    def test_a_server_that_is_not_there_is_told_in_one_line(self, pl):
        ran = pl("migrate", "--store", f"postgresql://nobody@/none?host={pl.folder}")
        assert (ran.code, len(ran.err.splitlines()), "\\u" in ran.err) == (4, 1, False)

    def test_a_second_interruption_leaves_no_traceback(self, monkeypatch):
        def again(arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli, "run", again)
        with pytest.raises(SystemExit) as left:
            cli.main(["show"])
        assert left.value.code == 130

    def test_the_version_is_told(self, pl):
        assert pl("--version").out == f"pauseledger {pauseledger.__version__}\n"


class TestInteractionsOfTheHost:
    MODULE = b"""
from pauseledger import Interaction
SCHEMA = {"type": "object"}
MINE = Interaction(name="mine", request_schema=SCHEMA, response_schema=SCHEMA, as_text=str)
LIST = [MINE]
OTHER = [MINE, 3]
"""

    @pytest.mark.parametrize("name", ["MINE", "LIST"])
    def test_are_loaded_from_beside_the_caller(self, pl, monkeypatch, name):
        monkeypatch.chdir(pl.folder)
        pl.file(f"host_{name}.py", self.MODULE)
        request = pl.file("request.json", {})
        asked = ("--interaction", "mine", "--request", request, "--turn", TWO_CALLS)
        ran = pl("pause", *AXES, *CALL, *asked, "--interactions", f"host_{name}:{name}", "--json")
        assert ran.code == 0, ran.out
        unknown = pl("pause", *AXES, *CALL, *asked, "--json")
        assert (unknown.code, unknown.json["outcome"]) == (2, "misconfigured")
        assert pl.redeem(ran.json["token"], "--json", answer={}).json["reason"] == "interaction_unregistered"

    @pytest.mark.parametrize(
        ("named", "says"),
        [
            ("absent_module:X", "PYTHONPATH"),
            ("host_odd:ABSENT", "has no 'ABSENT'"),
            ("host_odd", "give module:name"),
            (":MINE", "give module:name"),
            ("host_odd:OTHER", "neither an Interaction nor a list"),
            ("host_odd:SCHEMA", "neither an Interaction nor a list"),
        ],
    )
    def test_anything_else_is_a_configuration_error(self, pl, monkeypatch, named, says):
        pl("migrate")
        monkeypatch.chdir(pl.folder)
        pl.file("host_odd.py", self.MODULE)
        ran = pl("show", uuid4(), "--interactions", named, "--json")
        assert (ran.code, ran.json["outcome"], says in ran.json["says"]) == (2, "misconfigured", True)


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        "arguments",
        [("nonsense",), ("show",), ("show", "no-uuid"), ("keys",), ("show", "--nonsense"), ("keys", "promote")],
    )
    def test_a_command_line_that_cannot_be_read_leaves_with_2(self, pl, arguments):
        as_json, in_words = pl(*arguments, "--json"), pl(*arguments)
        assert (as_json.code, as_json.json["outcome"], as_json.err) == (2, "usage", "")
        assert (in_words.code, in_words.out) == (2, "")
        assert "--help" in in_words.err

    def test_a_file_that_is_not_there(self, pl):
        ran = pl("redeem", "x", "--response", pl.folder / "absent.json", *AXES, *CALL, "--json")
        assert (ran.code, ran.json["outcome"]) == (2, "usage")
        assert "absent.json" in ran.json["says"]

    @pytest.mark.parametrize(
        "more", [("--label", "x"), ("--run-started", "yesterday"), ("--run-started", "2026-01-01T00:00:00")]
    )
    def test_options_that_say_nothing(self, pl, more):
        assert pl.pause(*more).code == 2

    def test_arguments_that_are_no_text(self, pl):
        ran = pl("show", "\udcff", "--json")
        assert (ran.code, ran.json["outcome"]) == (2, "usage")

    def test_a_fault_of_our_own_is_told_by_kind_and_place_alone(self, pl, monkeypatch):
        def fails(*_):
            raise RuntimeError("holds the token plp1secret")

        pl("migrate")
        monkeypatch.setattr(sqlite.SQLiteRecorder, "load", fails)
        as_json, in_words = pl("show", uuid4(), "--json"), pl("show", uuid4())
        assert (as_json.code, as_json.json["outcome"], as_json.json["error"]) == (1, "fault", "RuntimeError")
        assert as_json.json["where"].startswith("test_cli.py:")
        assert in_words.code == 1
        assert "secret" not in as_json.out + in_words.out + in_words.err
        assert "Traceback" not in in_words.err

    def test_an_interruption_leaves_as_shells_expect(self, pl, monkeypatch):
        def interrupts(*_):
            raise KeyboardInterrupt

        pl("migrate")
        monkeypatch.setattr(sqlite.SQLiteRecorder, "load", interrupts)
        ran = pl("show", uuid4(), "--json")
        assert (ran.code, ran.json["outcome"]) == (130, "interrupted")

    @pytest.mark.parametrize("command", [["pause"], ["redeem"], ["check"], ["export"], ["hold", "place"]])
    def test_help_tells_a_commands_own_options_before_those_of_all(self, pl, command):
        told = re.findall(r"^  (--[a-z-]+)", pl(*command, "--help").out, re.MULTILINE)
        own, of_all = told[: told.index("--store")], told[told.index("--store") :]
        assert own
        assert of_all[-1] == "--json"
        assert not set(own) & {"--keys-dir", "--views", "--pooled"}

    def test_help_is_printed_where_nothing_is_asked(self, pl):
        for ran in (pl(), pl("--help"), pl("pause", "--help")):
            assert ran.code == 0
            assert "Usage" in ran.out

    def test_main_leaves_with_the_exit_code(self, pl, monkeypatch):
        pl("migrate")
        monkeypatch.setattr("sys.argv", ["pauseledger", "show", str(uuid4())])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 3

    def test_nothing_secret_stands_in_what_failed(self, pl):
        token = pl.pause().json["token"]
        answer = pl.file("answer.json", ANSWER)
        secret = json.loads((pl.folder / "keys" / "keys.json").read_text())["keys"][0]["secret"]
        said = (*AXES, *CALL, "--response", answer)
        pl("redeem", token, *said)
        failures = [
            pl("show", token),
            pl("show", str(UUID(int=1)), token, "loose words of a note"),
            pl("redeem", token, token, *said),
            pl("redeem", token, *said),
            pl("redeem", token, *AXES, "--call", "x", "--response", answer),
            pl("redeem", token + "x", *said),
            pl("redeem", f"--token={token}", *said),
            pl("answer", token, *AXES, *CALL, "--response", pl.file("bad.json", b'{"Anne-7c1f":1,"Anne-7c1f":2}')),
            pl.pause("--run-started", token),
            pl("settle", UUID(int=1), *AXES, *CALL, "--fence", 1, "--end", token),
            pl("settle", UUID(int=1), *AXES, *CALL, "--fence", token, "--end", "finished"),
        ]
        for ran in failures:
            assert ran.code in {2, 3}
            told = ran.out + ran.err
            assert told
            assert not [
                secret for secret in (token[4:40], secret, "Anne-7c1f", QUESTION, "loose words") if secret in told
            ]


def test_every_outcome_that_is_not_done_has_its_exit_code():
    assert set(cli_shapes.EXITS.values()) == {1, 2, 3, 4, 5, 130}


def test_the_open_call_of_a_turn_that_is_none(pl):
    for raw, name in ((b"[", "not_json"), (b'"x"', "turn_broken"), (b"[]", "turn_broken")):
        ran = pl.pause("--format", "openai-chat", turn=pl.file("t.json", raw), call=())
        assert (ran.code, ran.json["name"]) == (2, name)
    assert the_open_call(Inputs().turn(str(ONE_CALL), None), str(ONE_CALL)) == "@0"
