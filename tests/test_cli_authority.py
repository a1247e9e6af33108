"""Policies, presentations and who answers, from the command line."""

import json

import pytest
from pauseledger.infrastructure import cli

TURN = [
    {"role": "user", "content": "Pay."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}],
    },
]
AXES = ("--tenant", "acme", "--session", "s1", "--run", "r1", "--call", "c1")


@pytest.fixture
def pl(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    files = {
        "turn": TURN,
        "request": {"tool": "pay", "arguments": {"amount": 7}},
        "yes": {"decision": "approve"},
        "policy": {"name": "payments", "quorum": 2, "four_eyes": True, "groups": ["finance"], "shown_within": 600},
        "page": "Pay 7?",
        "wrong": {"name": "payments", "quorums": 2},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, json_=True):
        capsys.readouterr()
        code = cli.run([str(one) for one in arguments] + (["--json"] if json_ else []))
        out = capsys.readouterr()
        return code, json.loads(out.out) if json_ else out.out + out.err

    return run


def test_two_of_finance_approve_what_they_have_seen(pl):
    pl("migrate")
    code, governed = pl("policy", "approval", "--rules", "policy", "--operator", "carla")
    assert (code, governed["changed"], governed["policy"]["quorum"]) == (0, True, 2)
    assert pl("policy", "approval", "--rules", "policy", "--operator", "tom")[1]["changed"] is False
    paused = ("pause", *AXES, "--interaction", "approval", "--request", "request", "--turn", "turn")
    formatted = (*paused, "--format", "openai-chat")
    assert pl(*formatted)[1]["name"] == "asker_missing"
    asked = pl(*formatted, "--asked-by", "agent")[1]
    common = (asked["token"], *AXES, "--response", "yes")
    assert pl("answer", *common)[1]["reason"] == "actor_missing"
    assert pl("answer", *common, "--by", "eve")[1]["rule"] == "groups"
    assert pl("answer", *common, "--by", "agent", "--in-group", "finance")[1]["reason"] == "asker_may_not_answer"
    seen = {
        name: pl("present", asked["pause_id"], *AXES, "--to", name, "--rendering", "page")[1]["id"]
        for name in ("maria", "tom")
    }
    maria = ("--by", "maria", "--in-group", "finance")
    code, refused = pl("answer", *common, *maria)
    assert (code, refused["reason"], refused["rule"]) == (3, "presentation_missing", "cites")
    code, kept = pl("answer", *common, *maria, "--cite", seen["maria"])
    assert (code, kept["state"], kept["missing"]) == (0, "open", 1)
    assert pl("redeem", asked["token"], *AXES, "--stored")[1]["missing"] == 1
    [row] = pl("open", "--tenant", "acme")[1]["rows"]
    assert (row["answers_agreeing"], row["answers_needed"]) == (1, 2)
    code, won = pl("redeem", *common, "--by", "tom", "--in-group", "finance", "--cite", seen["tom"])
    assert (code, won["dispatch"][0]["arguments"]) == (0, {"amount": 7})
    code, checked = pl("check")
    assert (code, checked["faults"]) == (0, [])
    story = pl("show", asked["pause_id"], json_=False)[1]
    assert "under policy payments revision 1" in story
    assert "the 2nd of 2 who have to agree" in story
    assert story.count("was shown the question") == 2
    told = pl("policies", "--content")[1]
    assert told["in_force"]["approval"]["shown_within"] == 600
    assert told["changes"][0]["contents"]
    assert "carla" in told["sentences"][0]
    assert pl("policy", "approval", "--none", "--operator", "carla")[1]["policy"] is None
    assert "no policy is in force" in pl("policies", json_=False)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("policy", "approval", "--operator", "carla"),
        ("policy", "approval", "--none", "--rules", "policy", "--operator", "carla"),
        ("policy", "approval", "--rules", "policy"),
        ("policy", "approval", "--rules", "wrong", "--operator", "carla"),
        ("policy", "approval", "--rules", "nowhere", "--operator", "carla"),
        ("policy", "No Name", "--none", "--operator", "carla"),
        ("answer", "token", *AXES, "--response", "yes", "--in-group", "finance"),
        ("present", "no-uuid", *AXES, "--to", "maria", "--rendering", "page"),
    ],
)
def test_what_cannot_be_meant_is_told(pl, arguments):
    assert pl(*arguments)[0] == 2
