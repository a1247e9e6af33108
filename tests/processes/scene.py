"""What the workers pause, and how it is answered."""

import pauseledger as pl

SESSION = "session"
CALLS = ("call_a", "call_b", "call_c")
TURN = [
    {"role": "user", "content": "Book me a table. " + "Somewhere quiet, please. " * 40},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call, "type": "function", "function": {"name": "ask", "arguments": "{}"}} for call in CALLS
        ],
    },
]
LABELS = ("Anne", "Bob", "Carol")
QUESTION = {"questions": [{"question": "Who?", "options": [{"label": label} for label in LABELS]}]}
APPROVAL = {"tool": "book", "arguments": {"seats": 2}}


def answer(label):
    return {"answers": [{"question_id": "q1", "selections": [label]}]}


def axes_of(run, call, tenant="acme"):
    return pl.Axes(scope=pl.Scope(tenant_id=tenant), session_id=SESSION, run_id=run, call_id=call)


def pause_commands(run, calls=CALLS[:1], interaction=pl.ASK_USER):
    request = APPROVAL if interaction == pl.APPROVAL else QUESTION
    turn = pl.Turn("openai-chat", TURN)
    return [
        pl.PauseCommand(interaction=interaction, request=request, turn=turn, axes=axes_of(run, call)) for call in calls
    ]
