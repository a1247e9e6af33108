"""Recorded turns come back unchanged, and results stand where and how the provider wants them."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pauseledger.domain.errors import InteractionConfigurationError, PauseRejected
from pauseledger.domain.turn import Transcripts
from pauseledger.infrastructure import turns
from pauseledger.infrastructure.transcripts import known
from pauseledger.infrastructure.transcripts.anthropic import Anthropic
from pauseledger.infrastructure.transcripts.gemini import Gemini
from pauseledger.infrastructure.transcripts.langchain import LangChain
from pauseledger.infrastructure.transcripts.openai_chat import OpenAIChat
from pauseledger.infrastructure.transcripts.openai_responses import OpenAIResponses
from pauseledger.infrastructure.transcripts.pydantic_ai import PydanticAI

HERE = Path(__file__).parent / "transcripts"
spec = importlib.util.spec_from_file_location("transcript_rules", HERE / "validate.py")
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)

TURNS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((HERE / "give").glob("*.json"))}
CONTROLS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((HERE / "controls").glob("*.json"))}
SMALL = [turn for turn in TURNS.values() if len(json.dumps(turn)) < 20_000]

#: The turns that hold the result of their first call already.
HALF_DONE = [
    TURNS[name]
    for name in (
        "anthropic--partial-mcp-tools",
        "gemini--two-no-id-first-done",
        "langchain--openai-chat-long-94k-partial",
        "openai-chat--long-94k-partial",
        "pydantic-ai--openai-chat-partial-executed",
    )
]

NOT_RUN = "This call was not dispatched."
ANSWER = 'Ja, 🙂 "gern"\n'

every_turn = pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())


def text(entries):
    return json.dumps(list(entries), ensure_ascii=False)


def codec(turn):
    return known().of(turn["format"])


def entries_of(turn):
    return turn[rules.KEY[turn["format"]]]


def open_calls(turn):
    return [call for call in codec(turn).reserved(entries_of(turn)) if not call.done]


def results_for(calls):
    return {call.index: NOT_RUN if place else ANSWER for place, call in enumerate(calls)}


def rejected(turn_format, entries):
    with pytest.raises(PauseRejected) as error:
        known().of(turn_format).reserved(entries)
    assert error.value.name == "turn_broken"
    return str(error.value)


def chat(*after, **assistant):
    calls = [{"id": name, "type": "function", "function": {"name": "ask", "arguments": "{}"}} for name in ("a", "b")]
    return [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": calls} | assistant,
        *after,
    ]


def tool(name, content="r"):
    return {"role": "tool", "tool_call_id": name, "content": content}


def lc(*after, **data):
    calls = [{"name": "ask", "args": {}, "id": name, "type": "tool_call"} for name in ("a", "b")]
    ai = {"content": "", "type": "ai", "tool_calls": calls, "invalid_tool_calls": []} | data
    return [{"type": "human", "data": {"content": "u"}}, {"type": "ai", "data": ai}, *after]


def lc_tool(name):
    return {"type": "tool", "data": {"content": "r", "tool_call_id": name}}


def held(turn_format, entry):
    """The list inside an entry that results are added to, where the format has one."""
    return entry.get({"anthropic": "content", "gemini": "parts", "pydantic-ai": "parts"}.get(turn_format))


def added(turn_format, before, folded):
    """Everything that was given is still there, to the very text; give what was added to it, result by result."""
    same = len(before) - 1 if len(folded) == len(before) else len(before)
    assert all(kept is given for kept, given in zip(folded[:same], before[:same], strict=True))
    assert text(folded[:same]) == text(before[:same])
    more = list(folded[same:])
    if len(folded) == len(before) and text(folded) == text(before):
        return []
    if len(folded) == len(before):
        old, new = before[-1], more.pop()
        kept = len(held(turn_format, old))
        assert list(new) == list(old)
        key = "content" if turn_format == "anthropic" else "parts"
        assert text([new | {key: new[key][:kept]}]) == text([old])
        return new[key][kept:]
    return [part for entry in more for part in (held(turn_format, entry) or [entry])]


# ---------------------------------------------------------------- recorded turns


def test_there_are_recorded_turns_of_every_format():
    formats = [turn["format"] for turn in TURNS.values()]
    assert {name: formats.count(name) for name in known().names()} == {
        "anthropic": 11, "gemini": 10, "langchain": 10, "openai-chat": 10, "openai-responses": 10, "pydantic-ai": 9,
    }  # fmt: skip
    assert (len(TURNS), len(CONTROLS)) == (60, 47)


@every_turn
def test_the_open_calls_are_the_recorded_ones_in_their_order(turn):
    calls = open_calls(turn)
    assert [call.id for call in calls] == turn["reserved_call_ids"]
    assert [call.tool for call in calls] == [call["name"] for call in turn["reserved_calls"]]


@every_turn
def test_calls_are_numbered_as_the_message_lists_them_done_ones_included(turn):
    calls = codec(turn).reserved(entries_of(turn))
    assert [call.index for call in calls] == list(range(len(calls)))
    assert [call.index for call in calls if call.done] == ([0] if turn in HALF_DONE else [])


@every_turn
def test_a_strict_provider_takes_the_folded_turn(turn):
    folded = codec(turn).fold(entries_of(turn), results_for(open_calls(turn)))
    strict = {"one_result_content": True, "merge_same_role": False}
    assert rules.check(turn["format"], list(folded), turn, strict) == []


@every_turn
def test_the_strict_rules_notice_a_result_left_out(turn):
    calls = open_calls(turn)
    folded = codec(turn).fold(entries_of(turn), results_for(calls[:-1]))
    assert "missing_result" in {problem["code"] for problem in rules.check(turn["format"], list(folded), turn)}


@every_turn
def test_nothing_but_the_results_differs(turn):
    given = entries_of(turn)
    before, entries = text(given), list(given)
    calls = open_calls(turn)
    folded = codec(turn).fold(entries, results_for(calls))
    assert len(added(turn["format"], given, folded)) == len(calls)
    assert text(given) == before == text(entries)
    assert len(folded) == len(given) or turn.get("partial") != "last_entry_extended"
    assert codec(turn).fold(given, {}) == tuple(given)


def shape(turn_format, result, bare):
    """What of a result has to be as it was recorded; clients differ in the rest."""
    if turn_format == "langchain":
        free = ("content", "additional_kwargs")
        data = [(key, None if key in free else value) for key, value in result["data"].items()]
        return list(result), data
    if turn_format == "pydantic-ai":
        return {key: result[key] for key in ("tool_name", "tool_call_id", "outcome", "part_kind")}
    if turn_format == "gemini":
        said = result["functionResponse"]
        # A client that made up ids has them on both sides; these calls have none.
        keys = set(said) - ({"id"} if bare else set())
        return set(result), keys, said["name"], bare or said.get("id"), type(said["response"])
    own = {"openai-chat": {"name"}, "anthropic": {"is_error", "cache_control"}}.get(turn_format, set())
    names = ("role", "type", "tool_call_id", "call_id", "tool_use_id")
    return {key: result[key] for key in names if key in result}, set(result) - own


@pytest.mark.parametrize("name", CONTROLS)
def test_results_have_the_shape_of_the_recorded_continuation(name):
    turn, control = TURNS[name], CONTROLS[name]
    turn_format, calls, given = turn["format"], open_calls(turn), entries_of(turn)
    folded = codec(turn).fold(given, results_for(calls))
    ours = added(turn_format, given, folded)
    start = len(given) - (turn.get("partial") == "last_entry_extended")
    told = list(control[rules.KEY[turn_format]][start:])
    recorded = [part for entry in told for part in (held(turn_format, entry) or [entry])]
    recorded = recorded[len(held(turn_format, given[-1])) if start < len(given) else 0 :][: len(calls)]
    bare = calls[0].id is None
    assert [shape(turn_format, entry, bare) for entry in ours] == [shape(turn_format, one, bare) for one in recorded]
    if turn_format in ("anthropic", "gemini", "pydantic-ai"):
        key = "kind" if turn_format == "pydantic-ai" else "role"
        assert folded[-1][key] == told[0][key]


@every_turn
def test_calls_folded_one_by_one_from_the_last_stay_valid(turn):
    entries = entries_of(turn)
    calls = open_calls(turn)
    for call in reversed(calls):
        entries = codec(turn).fold(entries, {call.index: ANSWER})
        if turn is TURNS["gemini--three-same-name-no-id"] and call is not calls[0]:
            # Only order tells these apart, so what comes out of order is not written yet.
            assert entries == tuple(entries_of(turn))
    if turn is TURNS["gemini--three-same-name-no-id"]:
        return
    assert rules.check(turn["format"], list(entries), turn) == []
    assert "result already" in rejected(turn["format"], entries)
    assert codec(turn).fold(entries, {}) == entries


def test_the_demos_turn_is_one_of_the_recorded():
    shipped = Path(turns.__file__).with_name("dice_game.json").read_bytes()
    assert shipped == (HERE / "give" / "openai-chat--deepseek-reasoning-text-and-two.json").read_bytes()


# ---------------------------------------------------------------- single rules


def test_results_come_in_the_order_of_the_calls_however_they_are_given():
    folded = OpenAIChat().fold(chat(), {1: "second", 0: "first"})
    assert [entry["content"] for entry in folded[2:]] == ["first", "second"]
    folded = LangChain().fold(lc(), {1: "second", 0: "first"})
    assert [entry["data"]["content"] for entry in folded[2:]] == ["first", "second"]


def test_a_call_left_out_stays_open():
    folded = OpenAIChat().fold(chat(), {1: "second"})
    assert [call.done for call in OpenAIChat().reserved(folded)] == [False, True]


def test_a_result_is_folded_after_those_that_are_there():
    folded = OpenAIChat().fold(chat(tool("b")), {0: "first"})
    assert [entry["tool_call_id"] for entry in folded[2:]] == ["b", "a"]


def test_a_legacy_function_call_is_answered_by_its_name():
    turn = TURNS["openai-chat--legacy-function-call"]
    (call,) = OpenAIChat().reserved(turn["messages"])
    assert (call.id, call.address) == (None, "@0")
    assert OpenAIChat().fold(turn["messages"], {0: "sunny"})[2:] == (
        {"role": "function", "name": "get_current_weather", "content": "sunny"},
    )
    with pytest.raises(InteractionConfigurationError):
        OpenAIChat().fold(turn["messages"], {0: [{"type": "text", "text": "sunny"}]})


def test_a_function_message_with_another_name_is_no_result_of_a_legacy_call():
    messages = TURNS["openai-chat--legacy-function-call"]["messages"]
    rejected("openai-chat", [*messages, {"role": "function", "name": "other", "content": ""}])
    rejected("openai-chat", [*messages, {"role": "tool", "tool_call_id": "get_current_weather", "content": ""}])


def test_invalid_calls_of_langchain_are_reserved_after_the_parsed_ones():
    bad = {"name": None, "args": "{", "id": "c", "error": "not JSON", "type": "invalid_tool_call"}
    entries = lc(invalid_tool_calls=[bad])
    calls = LangChain().reserved(entries)
    assert [(call.id, call.tool) for call in calls] == [("a", "ask"), ("b", "ask"), ("c", None)]
    folded = LangChain().fold(entries, dict.fromkeys(range(3), "r"))
    assert rules.check("langchain", list(folded), {"messages": entries}) == []
    assert folded[-1]["data"]["name"] is None


def test_a_message_put_together_from_chunks_reserves_like_any_other():
    entries = lc()
    entries[1]["type"] = entries[1]["data"]["type"] = "AIMessageChunk"
    assert [call.id for call in LangChain().reserved(entries)] == ["a", "b"]


def test_content_parts_are_given_verbatim():
    parts = [{"type": "text", "text": "a", "extra": None}, {"type": "text", "text": ""}]
    assert OpenAIChat().fold(chat(), {0: parts})[-1]["content"] is parts
    parts = ["a", {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert LangChain().fold(lc(), {0: parts})[-1]["data"]["content"] is parts


@pytest.mark.parametrize("content", [None, {}, 1, [], ["a"], [{"type": "text"}], [{"type": "image_url"}]])
def test_openai_chat_refuses_other_content(content):
    with pytest.raises(InteractionConfigurationError):
        OpenAIChat().fold(chat(), {0: content})


@pytest.mark.parametrize("content", [None, {}, 1, [1], [None], [["a"]]])
def test_langchain_refuses_other_content(content):
    with pytest.raises(InteractionConfigurationError):
        LangChain().fold(lc(), {0: content})


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_a_result_for_a_call_that_is_not_open_is_the_hosts_mistake(index):
    for codec_, entries in ((OpenAIChat(), chat(tool("a"))), (LangChain(), lc(lc_tool("a")))):
        with pytest.raises(InteractionConfigurationError):
            codec_.fold(entries, {index: "r"})


def test_two_calls_with_one_id_cannot_be_told_apart():
    twice = [{"id": "a", "type": "function", "function": {"name": "ask", "arguments": "{}"}}] * 2
    entries = chat(tool_calls=twice)
    with pytest.raises(PauseRejected) as error:
        known().read("openai-chat", b"", entries)
    assert error.value.name == "call_ambiguous"


BROKEN_CHAT = {
    "no messages": [],
    "not a list": {"role": "assistant"},
    "not objects": ["SECRET"],
    "no role": [{"content": "SECRET"}, *chat()],
    "a role that is no text": [*chat(), {"role": ["SECRET"]}],
    "no assistant": [{"role": "user", "content": "SECRET"}],
    "no calls": chat(tool_calls=None),
    "an empty list of calls": chat(tool_calls=[]),
    "calls that are no list": chat(tool_calls={"id": "SECRET"}),
    "calls that are no list beside a legacy one": chat(tool_calls="SECRET", function_call={"name": "SECRET"}),
    "a call that is no object": chat(tool_calls=["SECRET"]),
    "a legacy call without a name": chat(tool_calls=None, function_call={"name": "", "arguments": ""}),
    "a call without an id": chat(tool_calls=[{"type": "function", "function": {"name": "SECRET"}}]),
    "an empty id": chat(tool_calls=[{"id": "", "type": "function", "function": {"name": "SECRET"}}]),
    "an id that is no text": chat(tool_calls=[{"id": 7, "type": "function", "function": {"name": "SECRET"}}]),
    "a call that names no tool": chat(tool_calls=[{"id": "SECRET", "type": "function", "function": {}}]),
    "a tool whose name is no text": chat(tool_calls=[{"id": "SECRET", "function": {"name": ["x"]}}]),
    "every call done": chat(tool("a"), tool("b")),
    "a user message after": chat({"role": "user", "content": "SECRET"}),
    "a user message between": chat(tool("a"), {"role": "user", "content": "SECRET"}, tool("b")),
    "a system message after a result": chat(tool("a"), {"role": "system", "content": "SECRET"}),
    "a result of another call": chat(tool("SECRET")),
    "a result without an id": chat({"role": "tool", "content": "SECRET"}),
    "a result whose id is no text": chat({"role": "tool", "tool_call_id": {}, "content": "SECRET"}),
    "a result given twice": chat(tool("a", "SECRET"), tool("a", "SECRET")),
    "a message of another role that names a call": chat({"role": "user", "tool_call_id": "a", "content": "SECRET"}),
    "a legacy result": chat({"role": "function", "name": "ask", "content": "SECRET"}),
    "an answer without calls after": chat(tool("a"), tool("b"), {"role": "assistant", "content": "SECRET"}),
}


@pytest.mark.parametrize("entries", BROKEN_CHAT.values(), ids=BROKEN_CHAT.keys())
def test_a_broken_turn_of_openai_chat_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("openai-chat", entries)


BROKEN_LANGCHAIN = {
    "no messages": [],
    "not objects": ["SECRET"],
    "no data": [*lc(), {"type": "tool", "tool_call_id": "a"}],
    "a type that is no text": [*lc(), {"type": ["SECRET"], "data": {}}],
    "no assistant": [{"type": "human", "data": {"content": "SECRET"}}],
    "no calls": lc(tool_calls=[]),
    "neither list": lc(tool_calls=None, invalid_tool_calls=None),
    "calls that are no list": lc(tool_calls={"id": "SECRET"}),
    "invalid calls that are no list": lc(invalid_tool_calls="SECRET"),
    "a call that is no object": lc(tool_calls=["SECRET"]),
    "a call without an id": lc(tool_calls=[{"name": "SECRET", "args": {}, "id": None}]),
    "an empty id": lc(tool_calls=[{"name": "SECRET", "args": {}, "id": ""}]),
    "an id that is no text": lc(tool_calls=[{"name": "SECRET", "args": {}, "id": 7}]),
    "an invalid call without an id": lc(invalid_tool_calls=[{"name": "SECRET", "args": "{", "id": None}]),
    "a name that is no text": lc(tool_calls=[{"name": ["SECRET"], "args": {}, "id": "a"}]),
    "every call done": lc(lc_tool("a"), lc_tool("b")),
    "a human message after": lc({"type": "human", "data": {"content": "SECRET"}}),
    "a message of another type that names a call": lc({"type": "human", "data": {"tool_call_id": "a"}}),
    "a result of another call": lc(lc_tool("SECRET")),
    "a result without an id": lc({"type": "tool", "data": {"content": "SECRET"}}),
    "a result whose id is no text": lc(lc_tool(["a"])),
    "a result given twice": lc(lc_tool("a"), lc_tool("a")),
    "an answer without calls after": lc(lc_tool("a"), lc_tool("b"), {"type": "ai", "data": {"content": "SECRET"}}),
}


@pytest.mark.parametrize("entries", BROKEN_LANGCHAIN.values(), ids=BROKEN_LANGCHAIN.keys())
def test_a_broken_turn_of_langchain_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("langchain", entries)


# ---------------------------------------------------------------- single rules: openai-responses


def items(*more):
    return [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "rs_1", "summary": []}, *more]


def call(name, kind="function_call", /, **fields):
    return {"type": kind, "call_id": name, "name": "ask", "arguments": "{}"} | fields


def out(name, kind="function_call_output", /, **fields):
    return {"type": kind, "call_id": name, "output": "r"} | fields


def reserved_ids(turn_format, entries):
    return [(call.id, call.done) for call in known().of(turn_format).reserved(entries)]


def test_a_round_of_items_begins_after_the_last_output_that_left_no_call_open():
    assert reserved_ids("openai-responses", items(call("a"), out("a"), call("b"))) == [("b", False)]
    assert reserved_ids("openai-responses", items(call("a"), call("b"), out("b"))) == [("a", False), ("b", True)]
    eager = items(call("a"), call("b"), out("b"), call("c"))
    assert reserved_ids("openai-responses", eager) == [("a", False), ("b", True), ("c", False)]


def test_items_that_somebody_else_wrote_begin_a_round():
    for between in ({"role": "user", "content": "u"}, {"type": "additional_tools", "role": "developer", "tools": []}):
        assert reserved_ids("openai-responses", items(call("a"), between, call("b"))) == [("b", False)]


def test_reasoning_and_text_between_calls_stay_in_one_round():
    second = {"type": "reasoning", "id": "rs_2", "summary": []}
    said = {"type": "message", "role": "assistant", "content": []}
    entries = items(call("a"), second, call("b"), said)
    folded = OpenAIResponses().fold(entries, {0: "first", 1: "second"})
    assert [item["call_id"] for item in folded[6:]] == ["a", "b"]
    assert rules.check("openai-responses", list(folded), {"items": entries}) == []


def test_what_the_provider_runs_itself_is_no_reserved_call():
    hosted = {"type": "shell_call", "call_id": "h", "action": {}, "environment": {"type": "container_reference"}}
    server = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}
    entries = items(
        {"type": "web_search_call", "id": "ws"}, server, found, call("a"), hosted, out("h", "shell_call_output")
    )
    assert reserved_ids("openai-responses", entries) == [("a", False)]


KINDS = {
    "function_call": {"type": "function_call_output", "call_id": "x", "output": "no"},
    "custom_tool_call": {"type": "custom_tool_call_output", "call_id": "x", "output": "no"},
    "tool_search_call": {"type": "function_call_output", "call_id": "x", "output": "no"},
    "local_shell_call": {"type": "local_shell_call_output", "call_id": "x", "output": "no"},
    "shell_call": {
        "type": "shell_call_output",
        "call_id": "x",
        "output": [{"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 1}}],
    },
    "apply_patch_call": {"type": "apply_patch_call_output", "call_id": "x", "status": "failed", "output": "no"},
    "mcp_approval_request": {
        "type": "mcp_approval_response",
        "approval_request_id": "x",
        "approve": False,
        "reason": "no",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_text_answers_each_kind_of_call_by_its_own_output_and_never_approves_or_claims_success(kind):
    entries = items(call("a"), call("x", kind, id="x", execution="client"), call("b"))
    folded = OpenAIResponses().fold(entries, {0: "yes", 1: "no", 2: "yes"})
    assert [item.get("call_id") for item in folded[5:]] == ["a", None if "mcp" in kind else "x", "b"]
    assert folded[6] == KINDS[kind]
    assert rules.check("openai-responses", list(folded), {"items": entries}) == []


WHOLE = {
    "tool_search_call": out("x", "tool_search_output", execution="client", tools=[]),
    "local_shell_call": {"type": "local_shell_call_output", "id": "x", "output": "r"},
    "shell_call": out("x", "shell_call_output", output=[], max_output_length=9),
    "apply_patch_call": {"type": "apply_patch_call_output", "call_id": "x", "status": "completed"},
    "computer_call": out("x", "computer_call_output", output={"type": "computer_screenshot", "image_url": "data:,"}),
    "mcp_approval_request": {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True},
}


@pytest.mark.parametrize("kind", WHOLE)
def test_who_let_such_a_call_through_gives_its_output_item_whole(kind):
    entries = items(call("x", kind, id="x" if kind.startswith("mcp") else "i", execution="client"))
    folded = OpenAIResponses().fold(entries, {0: [WHOLE[kind]]})
    assert folded[-1] is WHOLE[kind]
    assert rules.check("openai-responses", list(folded), {"items": entries}) == []
    for other in (
        [],
        [WHOLE[kind], WHOLE[kind]],
        [out("other")],
        [{**WHOLE[kind], "type": "x"}],
        ["x"],
        [{}],
        {},
        None,
    ):
        with pytest.raises(InteractionConfigurationError):
            OpenAIResponses().fold(entries, {0: other})
    for name in ("id", "call_id", "approval_request_id"):
        if name in WHOLE[kind]:
            with pytest.raises(InteractionConfigurationError):
                OpenAIResponses().fold(entries, {0: [{**WHOLE[kind], name: "y"}]})


def test_a_computer_call_is_reserved_and_takes_no_text():
    entries = items({"type": "computer_call", "call_id": "x", "action": {}})
    assert [(call.id, call.tool) for call in OpenAIResponses().reserved(entries)] == [("x", None)]
    with pytest.raises(InteractionConfigurationError, match="screenshot"):
        OpenAIResponses().fold(entries, {0: "SECRET"})


def test_an_output_names_the_program_that_called_as_its_call_does():
    by = {"type": "program", "caller_id": "p"}
    assert OpenAIResponses().fold(items(call("a", caller=by)), {0: "r"})[-1]["caller"] == by


BROKEN_RESPONSES = {
    "no items": [],
    "not a list": {"type": "function_call"},
    "not objects": ["SECRET"],
    "neither type nor role": [{"content": "SECRET"}, *items(call("a"))],
    "a type that is no text": [{"type": ["SECRET"]}, *items(call("a"))],
    "no calls": items({"type": "message", "role": "assistant", "content": "SECRET"}),
    "a call without an id": items(call(None)),
    "an empty id": items(call("")),
    "an id that is no text": items(call(["SECRET"])),
    "a function without a name": items(call("a", name=None)),
    "a custom tool without a name": items(call("a", "custom_tool_call", name="")),
    "a client's search without an id": items(call(None, "tool_search_call", execution="client")),
    "every call done": items(call("a"), out("a")),
    "a user message after": items(call("a"), {"role": "user", "content": "SECRET"}),
    "an output of another call": items(call("a"), out("SECRET")),
    "an output without an id": items(call("a"), out(None)),
    "an output before its call": items(out("b"), call("a"), out("b"), call("b")),
    "an output of another kind": items(call("a"), call("b"), out("a", "custom_tool_call_output")),
    "an output given twice": items(call("a"), call("b"), out("a"), out("a")),
    "reasoning that led to nothing": items(call("a"), {"type": "reasoning", "id": "rs_2", "summary": ["SECRET"]}),
    "reasoning before an output": items(call("a"), call("b"), {"type": "reasoning", "id": "rs_2"}, out("a")),
}


@pytest.mark.parametrize("entries", BROKEN_RESPONSES.values(), ids=BROKEN_RESPONSES.keys())
def test_a_broken_turn_of_openai_responses_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("openai-responses", entries)


# ---------------------------------------------------------------- single rules: anthropic


def use(name, tool="ask", /, **fields):
    return {"type": "tool_use", "id": name, "name": tool, "input": {}} | fields


def said(name, **fields):
    return {"type": "tool_result", "tool_use_id": name, "content": "r"} | fields


def anth(*after, content=None):
    return [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [use("a"), use("b")] if content is None else content},
        *after,
    ]


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def test_results_of_anthropic_stand_in_one_message_which_is_gone_on_with_where_it_is_there():
    assert Anthropic().fold(anth(), {1: "second", 0: "first"})[2:] == (
        user(said("a", content="first"), said("b", content="second")),
    )
    begun = user(said("b", cache_control=None)) | {"extra": [1]}
    assert Anthropic().fold(anth(begun), {0: "first"})[2:] == (
        {"role": "user", "content": [begun["content"][0], said("a", content="first")], "extra": [1]},
    )
    assert len(begun["content"]) == 1


def test_assistant_messages_in_a_row_are_one_round():
    entries = [*anth(content=[use("a")]), {"role": "assistant", "content": [use("b")]}]
    assert reserved_ids("anthropic", entries) == [("a", False), ("b", False)]
    assert rules.check("anthropic", list(Anthropic().fold(entries, {0: "r", 1: "r"})), {"messages": entries}) == []


def test_an_id_of_an_earlier_turn_may_come_back():
    entries = [*anth(user(said("a"), said("b"))), {"role": "assistant", "content": [use("a")]}]
    assert reserved_ids("anthropic", entries) == [("a", False)]


@pytest.mark.parametrize("content", [None, {}, 1, ["a"], [{"type": "tool_use"}], [{}]])
def test_anthropic_refuses_other_content(content):
    with pytest.raises(InteractionConfigurationError):
        Anthropic().fold(anth(), {0: content})


BROKEN_ANTHROPIC = {
    "no messages": [],
    "not objects": ["SECRET"],
    "no role": [{"content": "SECRET"}, *anth()],
    "no assistant": [user({"type": "text", "text": "SECRET"})],
    "text alone": anth(content="SECRET"),
    "no calls": anth(content=[{"type": "text", "text": "SECRET"}]),
    "no content": anth(content={}),
    "content that is no list of objects": anth(content=["SECRET"]),
    "a call without an id": anth(content=[use(None)]),
    "an empty id": anth(content=[use("")]),
    "an id that is no text": anth(content=[use(["SECRET"])]),
    "a call without a tool": anth(content=[use("a", None)]),
    "an assistant message between": [*anth(), {"role": "assistant", "content": "SECRET"}],
    "every call done": anth(user(said("a"), said("b"))),
    "a user message after": anth({"role": "user", "content": "SECRET"}),
    "an empty user message after": anth(user()),
    "text before a result": anth(user({"type": "text", "text": "SECRET"}, said("a"))),
    "text where a result is to come": anth(user(said("a"), {"type": "text", "text": "SECRET"})),
    "results in two messages": anth(user(said("a")), user(said("b"))),
    "a system message between": anth({"role": "system", "content": "SECRET"}),
    "a result of another role": anth({"role": "system", "content": [said("a")]}),
    "a result of another call": anth(user(said("SECRET"))),
    "a result without an id": anth(user(said(None))),
    "a result whose id is no text": anth(user(said(["a"]))),
    "a result given twice": anth(user(said("a"), said("a"))),
}


@pytest.mark.parametrize("entries", BROKEN_ANTHROPIC.values(), ids=BROKEN_ANTHROPIC.keys())
def test_a_broken_turn_of_anthropic_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("anthropic", entries)


# ---------------------------------------------------------------- single rules: gemini


def gem(*after, parts=None, **fields):
    parts = [fc(), fc()] if parts is None else parts
    return [{"role": "user", "parts": [{"text": "u"}]}, {"role": "model", "parts": parts} | fields, *after]


def fc(name="ask", /, **fields):
    return {"functionCall": {"name": name, "args": {}} | fields}


def fr(name="ask", value="r", **fields):
    return {"functionResponse": fields | {"name": name, "response": {"result": value}}}


def content(*parts, role="user"):
    return {"role": role, "parts": list(parts)}


def test_calls_of_gemini_without_ids_are_told_apart_by_their_place_alone():
    calls = Gemini().reserved(gem())
    assert [(call.id, call.address, call.tool) for call in calls] == [(None, "@0", "ask"), (None, "@1", "ask")]
    folded = Gemini().fold(gem(), {1: "second", 0: "first"})
    assert folded[2:] == (content(fr(value="first"), fr(value="second")),)
    assert "@" not in text(folded)


def test_a_result_that_the_provider_would_give_to_an_earlier_namesake_is_held_back_until_that_one_has_its_own():
    entries = gem(parts=[fc(), fc("other"), fc()])
    folded = Gemini().fold(entries, {1: "second", 2: "third"})
    assert folded[2:] == (content(fr("other", "second")),)
    assert reserved_ids("gemini", folded) == [(None, False), (None, True), (None, False)]
    assert Gemini().fold(gem(), {1: "second"}) == tuple(gem())
    mixed = gem(parts=[fc(id="x"), fc(), fc(id="y")])
    assert Gemini().fold(mixed, {1: "second", 2: "third"})[2:] == (content(fr(value="third", id="y")),)


def test_results_of_gemini_are_counted_by_name_in_their_order():
    assert reserved_ids("gemini", gem(content(fr()))) == [(None, True), (None, False)]
    assert Gemini().fold(gem(content(fr())), {1: "second"})[2:] == (content(fr(), fr(value="second")),)
    two = gem(content(fr("b")), parts=[fc("a"), fc("b")])
    assert reserved_ids("gemini", two) == [(None, False), (None, True)]
    assert Gemini().fold(two, {0: "first"})[2:] == (content(fr("b"), fr("a", "first")),)


def test_an_id_stands_on_both_sides_or_on_neither():
    entries = gem(content(fr(id="y")), parts=[fc(id="x"), fc(id="y")])
    assert reserved_ids("gemini", entries) == [("x", False), ("y", True)]
    assert Gemini().fold(entries, {0: "r"})[2:] == (content(fr(id="y"), fr(id="x")),)


def test_gemini_contents_of_a_client_that_spells_with_underscores_are_gone_on_with_in_its_spelling():
    held = {"name": "ask", "args": {}, "id": None}
    entries = gem(parts=[{"function_call": held, "text": None}, {"function_call": None, "text": "t"}])
    assert Gemini().fold(entries, {0: "r"})[2:] == (
        content({"function_response": {"name": "ask", "response": {"result": "r"}}}),
    )


def test_media_stand_beside_the_object_of_a_response():
    image = {"inlineData": {"mimeType": "image/png", "data": ""}}
    words = {"text": "see", "extra": None}
    (folded,) = Gemini().fold(gem(parts=[fc()]), {0: [words, image]})[2:]
    assert folded["parts"] == [{"functionResponse": {"name": "ask", "response": {"result": [words]}, "parts": [image]}}]
    assert folded["parts"][0]["functionResponse"]["parts"][0] is image


def test_model_contents_in_a_row_and_results_over_several_contents_are_one_round():
    entries = [*gem(parts=[fc("a")]), content(fc("b"), fc("c"), role="model"), content(fr("a")), content(fr("b"))]
    assert reserved_ids("gemini", entries) == [(None, True), (None, True), (None, False)]
    folded = Gemini().fold(entries, {2: "r"})
    assert folded[:-1] == tuple(entries[:-1])
    assert rules.check("gemini", list(folded)) == []


@pytest.mark.parametrize("value", [None, {}, 1, ["a"], [{}], [{"text": 1}], [{"text": "a", "inlineData": {}}]])
def test_gemini_refuses_other_content(value):
    with pytest.raises(InteractionConfigurationError):
        Gemini().fold(gem(), {0: value})


BROKEN_GEMINI = {
    "no contents": [],
    "not objects": ["SECRET"],
    "a role that is no text": [{"role": ["SECRET"]}, *gem()],
    "no model": [content({"text": "SECRET"})],
    "no calls": gem(parts=[{"text": "SECRET"}]),
    "no parts": gem(parts=[]),
    "parts that are no list": gem(parts="SECRET"),
    "parts that are no objects": gem(parts=["SECRET"]),
    "a call that is no object": gem(parts=[{"functionCall": "SECRET"}]),
    "a call without a name": gem(parts=[fc(None)]),
    "a name that is no text": gem(parts=[fc(["SECRET"])]),
    "an id that is no text": gem(parts=[fc(id=["SECRET"])]),
    "every call done": gem(content(fr(), fr())),
    "one too many": gem(content(fr(), fr(), fr("SECRET"))),
    "a user content after": gem(content({"text": "SECRET"})),
    "a user content after a result": gem(content(fr()), content({"text": "SECRET"})),
    "a result of another function": gem(content(fr("SECRET"))),
    "a result with an id that no call has": gem(content(fr(id="SECRET"))),
    "a result without the id that its call has": gem(content(fr()), parts=[fc(id="x"), fc(id="y")]),
    "a result that could be of a namesake with an id": gem(content(fr()), parts=[fc(id="x"), fc()]),
    "a result with the id of another function": gem(content(fr("other", id="x")), parts=[fc(id="x"), fc("other")]),
    "a result given twice": gem(content(fr(id="x"), fr(id="x")), parts=[fc(id="x"), fc(id="y")]),
    "a result that is no object": gem(content({"functionResponse": "SECRET"})),
}


@pytest.mark.parametrize("entries", BROKEN_GEMINI.values(), ids=BROKEN_GEMINI.keys())
def test_a_broken_turn_of_gemini_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("gemini", entries)


def test_an_address_is_not_taken_for_a_providers_id():
    with pytest.raises(PauseRejected) as error:
        known().read("gemini", b"", gem(parts=[fc("a", id="@1"), fc("b")]))
    assert error.value.name == "call_ambiguous"


# ---------------------------------------------------------------- single rules: pydantic-ai


def pyd(*after, parts=None):
    asked = [{"part_kind": "tool-call", "tool_name": "ask", "args": "{}", "tool_call_id": name} for name in ("a", "b")]
    return [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "u"}]},
        {"kind": "response", "parts": asked if parts is None else parts},
        *after,
    ]


def request(*parts):
    return {"kind": "request", "parts": list(parts)}


def returned(name, kind="tool-return", tool="ask"):
    return {"part_kind": kind, "tool_name": tool, "content": "r", "tool_call_id": name}


def test_deferred_results_of_pydantic_ai_come_in_a_request_of_their_own():
    entries = pyd(request(returned("a", "retry-prompt"), {"part_kind": "capability-load-delta", "loaded": []}))
    (folded,) = PydanticAI().fold(entries, {1: "second"})[3:]
    assert list(folded) == ["parts", "kind"]
    assert [(part["tool_call_id"], part["content"]) for part in folded["parts"]] == [("b", "second")]


def test_what_the_provider_ran_itself_is_no_call_of_pydantic_ai():
    ran = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "args": {}, "tool_call_id": "c"}
    parts = [ran, *pyd()[1]["parts"]]
    assert reserved_ids("pydantic-ai", pyd(parts=parts)) == [("a", False), ("b", False)]


@pytest.mark.parametrize("value", [None, {}, 1, [1], [None], [["a"]]])
def test_pydantic_ai_refuses_other_content(value):
    with pytest.raises(InteractionConfigurationError):
        PydanticAI().fold(pyd(), {0: value})


BROKEN_PYDANTIC_AI = {
    "no messages": [],
    "not objects": ["SECRET"],
    "another kind": [{"kind": "SECRET", "parts": []}, *pyd()],
    "no parts": [{"kind": "request"}, *pyd()],
    "parts that are no objects": [request("SECRET"), *pyd()],
    "no response": [request({"part_kind": "user-prompt", "content": "SECRET"})],
    "no calls": pyd(parts=[{"part_kind": "text", "content": "SECRET"}]),
    "a call without an id": pyd(parts=[{"part_kind": "tool-call", "tool_name": "SECRET", "tool_call_id": None}]),
    "a call without a tool": pyd(parts=[{"part_kind": "tool-call", "tool_name": "", "tool_call_id": "SECRET"}]),
    "every call done": pyd(request(returned("a"), returned("b"))),
    "a prompt after": pyd(request({"part_kind": "user-prompt", "content": "SECRET"})),
    "a prompt after a result": pyd(request(returned("a"), {"part_kind": "user-prompt", "content": "SECRET"})),
    "a retry that names no call": pyd(request({"part_kind": "retry-prompt", "content": "SECRET", "tool_name": None})),
    "a result of another call": pyd(request(returned("SECRET", tool=""))),
    "a result whose id is no text": pyd(request(returned(["a"]))),
    "a result of another tool": pyd(request(returned("a", tool="SECRET"))),
    "a result given twice": pyd(request(returned("a")), request(returned("a"))),
}


@pytest.mark.parametrize("entries", BROKEN_PYDANTIC_AI.values(), ids=BROKEN_PYDANTIC_AI.keys())
def test_a_broken_turn_of_pydantic_ai_is_rejected_and_not_quoted(entries):
    assert "SECRET" not in rejected("pydantic-ai", entries)


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_a_result_for_a_call_that_is_not_open_is_refused_by_every_codec(index):
    half = {
        "openai-responses": items(call("a"), call("b"), out("a")),
        "anthropic": anth(user(said("a"))),
        "gemini": gem(content(fr())),
        "pydantic-ai": pyd(request(returned("a"))),
    }
    for turn_format, entries in half.items():
        with pytest.raises(InteractionConfigurationError):
            known().of(turn_format).fold(entries, {index: "r"})


def test_a_host_may_add_a_codec_but_not_take_a_format():
    codecs = known()
    assert codecs.names() == ("anthropic", "gemini", "langchain", "openai-chat", "openai-responses", "pydantic-ai")
    with pytest.raises(InteractionConfigurationError):
        codecs.register(OpenAIChat())
    assert Transcripts().of("openai-chat") is None


# ---------------------------------------------------------------- mutated real turns


@st.composite
def mutated(draw):
    """A recorded turn with results added, then entries cut off, dropped, doubled or moved."""
    turn = draw(st.sampled_from(SMALL))
    calls = open_calls(turn)
    some = draw(st.permutations(calls))[: draw(st.integers(0, len(calls)))]
    entries = list(entries_of(turn))
    for call in some:
        entries = list(codec(turn).fold(entries, {call.index: "r"}))
    for _ in range(draw(st.integers(0, 4))):
        if not entries:
            break
        at, to = draw(st.integers(0, len(entries) - 1)), draw(st.integers(0, len(entries) - 1))
        move = draw(st.sampled_from(("cut", "drop", "double", "swap", "tail")))
        if move == "cut":
            entries = entries[: at + 1]
        elif move == "drop":
            del entries[at]
        elif move == "double":
            entries.insert(to, entries[at])
        elif move == "swap":
            entries[at], entries[to] = entries[to], entries[at]
        else:
            entries = entries[:-1] + entries[-1:] * 2
    return turn["format"], entries


BEGINNING = {
    "anthropic": [{"role": "user", "content": "u"}],
    "gemini": [{"role": "user", "parts": [{"text": "u"}]}],
}


def of_model(turn_format, entry):
    if turn_format == "openai-responses":
        return entry.get("role", "assistant") == "assistant"
    said_by = entry.get("role") or entry.get("kind") or entry.get("type")
    return said_by in ("assistant", "model", "response", "ai")


def is_result(turn_format, entry):
    if turn_format == "anthropic":
        return entry["role"] == "user" and {part.get("type") for part in rules._blocks(entry)} == {"tool_result"}
    if turn_format == "gemini":
        return any("functionResponse" in part for part in entry["parts"])
    if turn_format == "pydantic-ai":
        return all(part["part_kind"] == "tool-return" for part in entry["parts"])
    return (entry.get("role") or entry.get("type")) in ("tool", "function")


def last_round(turn_format, entries):
    """The last round as the strict rules see it; older messages are the host's and are never judged."""
    end = len(entries)
    while end and not of_model(turn_format, entries[end - 1]):
        end -= 1
    begin = end
    while begin and of_model(turn_format, entries[begin - 1]) and (begin == end or turn_format in ALIKE):
        begin -= 1
    return BEGINNING.get(turn_format, []) + list(entries[begin:]), entries[end:] if begin < end else None


#: Where the model's entries in a row are one message.
ALIKE = ("anthropic", "gemini", "openai-responses")


def tail_problems(turn_format, folded, calls):
    """What the strict rules say about the last round, once it has all its results."""
    tail = last_round(turn_format, folded)[0]
    if turn_format == "openai-responses":
        # These items know no messages: a round begins where the model went on before its first call.
        begin = max(at for at, item in enumerate(tail) if item.get("call_id") == calls[0].id and "output" not in item)
        while begin and "output" not in tail[begin - 1]:
            begin -= 1
        tail = tail[begin:]
    # That an item of the model's stands there twice is the host's, as is all that it keeps of it.
    return [problem for problem in rules.check(turn_format, tail) if problem["code"] != "duplicate_item"]


def rightly_rejected(turn_format, entries):
    """Whether a rejection was right, judged by the strict rules alone: nothing waits, or more is wrong than waiting."""
    tail, after = last_round(turn_format, entries)
    if after is None:
        return True
    codes = {problem["code"] for problem in rules.check(turn_format, tail)}
    if turn_format == "gemini":
        # They look for two calls of one id only once there are results.
        ids = [part["functionCall"].get("id") for entry in tail for part in entry["parts"] if "functionCall" in part]
        codes |= {"duplicate_call_id"} if len(set(filter(None, ids))) < len(list(filter(None, ids))) else set()
    return codes != {"missing_result"} or not all(is_result(turn_format, entry) for entry in after)


@given(mutated(), st.randoms(use_true_random=False))
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_turn_is_rejected_or_folds_validly(case, random):
    turn_format, entries = case
    before = text(entries)
    try:
        turn = known().read(turn_format, before.encode(), entries)
    except PauseRejected as error:
        assert error.name in ("turn_broken", "call_ambiguous")
        # Whatever is turned down had a reason: it does not end at a call that waits.
        assert rightly_rejected(turn_format, entries)
        return
    waiting = [call.index for call in turn.calls if not call.done]
    random.shuffle(waiting)
    folded = turn.fold(dict.fromkeys(waiting, "r"))
    assert tail_problems(turn_format, folded, turn.calls) == []
    assert len(added(turn_format, entries, folded)) == len(waiting)
    assert text(entries) == before
    with pytest.raises(PauseRejected, match="result already"):
        turn.transcript.reserved(folded)


leaf = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "tool", "assistant", "ai"]) | st.just(1.5)
junk = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def replaced(value, at, new):
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@given(st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_in_any_place_is_rejected_or_carried(data):
    turn_format, entries = data.draw(mutated())
    for _ in range(data.draw(st.integers(1, 3))):
        entries = replaced(entries, data.draw(st.sampled_from(list(places(entries)))), data.draw(junk))
    try:
        turn = known().read(turn_format, b"", entries) if isinstance(entries, list) else None
    except PauseRejected:
        return
    if turn:
        *others, last = [call.index for call in turn.calls if not call.done]
        folded = turn.fold(dict.fromkeys(others, "r"))
        assert [call.index for call in turn.transcript.reserved(folded) if not call.done] == [last]
        assert len(added(turn_format, entries, folded)) == len(others)
