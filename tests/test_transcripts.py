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
from pauseledger.infrastructure.transcripts.langchain import LangChain
from pauseledger.infrastructure.transcripts.openai_chat import OpenAIChat

HERE = Path(__file__).parent / "transcripts"
spec = importlib.util.spec_from_file_location("transcript_rules", HERE / "validate.py")
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)

TURNS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((HERE / "give").glob("*.json"))}
CONTROLS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((HERE / "controls").glob("*.json"))}
TURNS = {name: turn for name, turn in TURNS.items() if turn["format"] in ("openai-chat", "langchain")}
CONTROLS = {name: CONTROLS[name] for name in CONTROLS if name in TURNS}
SMALL = [turn for turn in TURNS.values() if len(json.dumps(turn)) < 20_000]

NOT_RUN = "This call was not dispatched."
ANSWER = 'Ja, 🙂 "gern"\n'

every_turn = pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())


def text(entries):
    return json.dumps(list(entries), ensure_ascii=False)


def codec(turn):
    return known().of(turn["format"])


def open_calls(turn):
    return [call for call in codec(turn).reserved(turn["messages"]) if not call.done]


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


# ---------------------------------------------------------------- recorded turns


def test_there_are_recorded_turns_of_both_formats():
    formats = [turn["format"] for turn in TURNS.values()]
    assert (formats.count("openai-chat"), formats.count("langchain"), len(CONTROLS)) == (10, 10, 14)


@every_turn
def test_the_open_calls_are_the_recorded_ones_in_their_order(turn):
    calls = open_calls(turn)
    assert [call.id for call in calls] == turn["reserved_call_ids"]
    assert [call.tool for call in calls] == [call["name"] for call in turn["reserved_calls"]]


@every_turn
def test_calls_are_numbered_as_the_message_lists_them_done_ones_included(turn):
    calls = codec(turn).reserved(turn["messages"])
    assert [call.index for call in calls] == list(range(len(calls)))
    done = [0] if "already" in turn["about"] else []
    assert [call.index for call in calls if call.done] == done


@every_turn
def test_a_strict_provider_takes_the_folded_turn(turn):
    folded = codec(turn).fold(turn["messages"], results_for(open_calls(turn)))
    assert rules.check(turn["format"], list(folded), turn) == []


@every_turn
def test_the_strict_rules_notice_a_result_left_out(turn):
    calls = open_calls(turn)
    folded = codec(turn).fold(turn["messages"], results_for(calls[:-1]))
    assert "missing_result" in {problem["code"] for problem in rules.check(turn["format"], list(folded), turn)}


@every_turn
def test_nothing_but_the_results_differs(turn):
    before = text(turn["messages"])
    entries = list(turn["messages"])
    folded = codec(turn).fold(entries, results_for(open_calls(turn)))
    assert all(kept is given for kept, given in zip(folded, turn["messages"], strict=False))
    assert text(turn["messages"]) == before == text(folded[: len(entries)])
    assert len(entries) == len(turn["messages"])
    assert len(folded) == len(entries) + len(open_calls(turn))


def shape(entry):
    if "data" not in entry:
        # Clients differ in the order of these keys, and some add the tool's name, which is tolerated.
        return {key: entry[key] for key in ("role", "tool_call_id")}, set(entry) - {"name"}
    free = ("content", "additional_kwargs")
    return list(entry), [(key, None if key in free else value) for key, value in entry["data"].items()]


@pytest.mark.parametrize("name", CONTROLS)
def test_results_have_the_shape_of_the_recorded_continuation(name):
    turn, control = TURNS[name], CONTROLS[name]
    calls = open_calls(turn)
    start = len(turn["messages"])
    folded = codec(turn).fold(turn["messages"], results_for(calls))[start:]
    recorded = control["messages"][start : start + len(calls)]
    assert [shape(entry) for entry in folded] == [shape(entry) for entry in recorded]


@every_turn
def test_calls_folded_one_by_one_from_the_last_stay_valid(turn):
    entries = turn["messages"]
    for call in reversed(open_calls(turn)):
        entries = codec(turn).fold(entries, {call.index: ANSWER})
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


def test_a_host_may_add_a_codec_but_not_take_a_format():
    codecs = known()
    assert codecs.names() == ("langchain", "openai-chat")
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
    entries = list(turn["messages"])
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


def tail_problems(turn_format, folded):
    """What the strict rules say about the last round; older messages are the host's and are never judged."""
    spoken = [at for at, entry in enumerate(folded) if entry.get("role", entry.get("type")) in ("assistant", "ai")]
    return rules.check(turn_format, list(folded[spoken[-1] :]))


def rightly_rejected(turn_format, entries):
    """Whether a rejection was right, judged by the strict rules alone: nothing waits, or more is wrong than waiting."""
    spoken = [at for at, entry in enumerate(entries) if entry.get("role", entry.get("type")) in ("assistant", "ai")]
    if not spoken:
        return True
    tail = entries[spoken[-1] :]
    codes = [problem["code"] for problem in rules.check(turn_format, tail)]
    followed = any(entry.get("role", entry.get("type")) not in ("tool", "function") for entry in tail[1:])
    return "missing_result" not in codes or set(codes) != {"missing_result"} or followed


@given(mutated(), st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    assert tail_problems(turn_format, folded) == []
    assert text(entries) == before == text(folded[: len(entries)])
    assert len(folded) == len(entries) + len(waiting)


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
        assert [call.index for call in codec({"format": turn_format}).reserved(folded) if not call.done] == [last]
        assert text(folded[: len(entries)]) == text(entries)
