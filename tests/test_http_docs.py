"""The page on questions over HTTP, as it stands there."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from pauseledger import APPROVAL, Routing
from pauseledger.domain.errors import REFUSALS
from pauseledger.infrastructure.stories import ANSWER, Stage, approve, ask, asked, axes, turn

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "http.md").read_text()
FOR_MARIA = Routing(assignees=("maria",))
MARIA = {"x-signed-in": "maria"}


@pytest.fixture
def stage(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("PAUSELEDGER_STORE", url)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    return Stage(url, tmp_path / "keys")


@pytest.fixture
def page(stage):
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    return names


@pytest.fixture
async def browser(page):
    app = page["app"]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", headers=MARIA) as client,
    ):
        yield client


async def put(stage, page, command):
    async with stage.ledger() as agent:
        question = await asked(agent, command)
    page["ASKED"][question.pause_id] = (question.token, question.axes)
    await page["app"].state.ledger.views.catch_up()
    return f"/questions/{question.pause_id}"


async def test_a_question_is_listed_shown_and_answered_once(stage, page, browser):
    path = await put(stage, page, ask(routing=FOR_MARIA))
    before = stage.count()
    [listed] = (await browser.get("/questions")).json()
    assert (await browser.get(path)).json() == listed
    assert path.endswith(listed["pause"])
    assert [one["question"] for one in listed["question"]["questions"]] == ["Whose name?"]
    assert (await browser.head(path)).status_code == 200
    assert stage.count() == before

    invalid = await browser.post(path, json={"answers": []})
    assert (invalid.status_code, invalid.json()["reason"]) == (422, "response_invalid")
    for _ in range(2):
        kept = await browser.post(path, json=ANSWER)
        assert (kept.status_code, kept.json()) == (200, {"state": "answered", "missing": 0})
    other = {"answers": [{"question_id": "q1", "selections": ["Bob"]}]}
    second = await browser.post(path, json=other)
    assert (second.status_code, second.json()["reason"]) == (409, "already_answered")
    assert second.json()["by"] == "maria"
    await page["app"].state.ledger.views.catch_up()
    assert (await browser.get("/questions")).json() == []
    assert (await browser.get(path)).status_code == 404


async def test_an_approval_cites_what_was_shown(stage, page, browser):
    path = await put(stage, page, approve(routing=FOR_MARIA, turn=turn(said="pay")))
    told = (await browser.get(path)).json()
    assert told["kind"] == APPROVAL
    wrong = await browser.post(path, json={"decision": "approve", "shown": "0" * 64})
    assert (wrong.status_code, wrong.json()["rule"]) == (422, "shown")
    assert (await browser.post(path, json={"decision": "approve", "shown": told["shown"]})).status_code == 200


async def test_nobody_and_another_tenant_get_nothing(stage, page, browser, monkeypatch):
    path = await put(stage, page, ask(routing=FOR_MARIA))
    del browser.headers["x-signed-in"]
    assert {(await browser.get(path)).status_code, (await browser.post(path, json=ANSWER)).status_code} == {401}
    browser.headers["x-signed-in"] = "joe"
    assert (await browser.get("/questions")).json() == []
    elsewhere = page["Scope"](tenant_id="another")
    monkeypatch.setitem(page, "signed_in", lambda _: (elsewhere, page["Actor"]("maria")))
    foreign = await browser.post(path, json=ANSWER)
    assert (foreign.status_code, foreign.json()["reason"]) == (404, "scope_mismatch")
    assert (await browser.post(f"{path[:-12]}000000000000", json=ANSWER)).status_code == 404
    json = {"content-type": "application/json; charset=utf-8"}
    assert (await browser.post(path, content=b"{", headers=json)).status_code == 400


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_a_form_on_a_strangers_page_answers_nothing(stage, page, browser, kind):
    path = await put(stage, page, approve(routing=FOR_MARIA, turn=turn(said="pay")))
    before = stage.count()
    headers = {"content-type": kind} if kind else {}
    posted = await browser.post(path, content=b'{"decision": "approve"}', headers=headers)
    assert (posted.status_code, stage.count()) == (415, before)


def test_every_refusal_has_a_status_and_no_other_is_named(page):
    assert page["BY_REASON"].keys() <= REFUSALS.keys()
    assert {kind.step for kind in REFUSALS.values()} == page["BY_STEP"].keys()


def test_threads_without_a_loop_share_one(stage):
    names = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    wait, ledger = names["wait"], names["ledger"]
    try:
        with ThreadPoolExecutor(4) as threads:
            commands = [ask(axes=axes(run_id=f"run-{number}")) for number in range(8)]
            receipts = list(threads.map(lambda command: wait(ledger.capability.pause(command)), commands))
        assert len({receipt.pause_id for receipt in receipts}) == 8
    finally:
        wait(ledger.__aexit__(None, None, None))
        names["LOOP"].call_soon_threadsafe(names["LOOP"].stop)
