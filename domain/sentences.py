"""A pause's story as sentences: one plain English sentence a fact."""

import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

from .authority import PolicyChanged
from .content import Content, ContentAlteredError, ContentErasedError, ContentUnreadError
from .erasing import ErasureEnded, ErasureOrdered
from .facts import (
    Abandoned,
    ActorRecord,
    Answered,
    Consumed,
    Continued,
    Fact,
    Lapsed,
    Paused,
    Recovered,
    Refused,
    Reissued,
    Stalled,
    Withdrawn,
)
from .presenting import Presented
from .switches import SwitchFlipped

#: Controls, formats (the bidirectional ones among them), surrogates, and separators of lines and paragraphs.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_ERASED = {"content": "what was said", "person": "who was named"}
_DECISIONS = {
    "answer": "answered",
    "approve": "let the call run",
    "edit": "let the call run with other arguments",
    "reject": "rejected the call",
    "respond": "answered in the call's place",
}
_ORIGINS = {
    "redeem": "consumed the pause by redeeming its token",
    "ready": "consumed the pause with the answer it held",
    "lapse": "consumed the pause once its window had closed",
}
_ENDS = {
    "finished": "went on to its end",
    "paused_again": "went on and paused again",
    "handed_over": "was handed over to somebody else",
}
_CAUSES = {
    "error": "it failed",
    "cancelled": "it was cancelled",
    "consumer_gone": "whoever read it walked away",
    "shutdown": "its process was shut down",
    "released": "its holder let it go",
}
_BECAUSE = {
    "stalled": "it had broken off",
    "lease_ended": "the lease had ended",
    "forced": "an operator ended the lease",
}
_WITHDRAWN = {
    "host": "",
    "superseded": ", as another took its place",
    "moved_on": ", as the conversation had moved on",
    "stopped": ", as the run was stopped",
}
_ABANDONED = {
    "exhausted": "it had been taken up too often",
    "host": "the host said so",
    "erased": "what it needs was erased",
}


def tell(fact: Fact, *, content: bool = False) -> str:
    """Tell one fact: when (UTC), what, and who by, as far as they were named.

    What people wrote (a request, an answer, a note) is told only with `content`; whom the host named is told always.
    Whatever the host or a person chose stands in quotes, and nothing in it can move a cursor or turn a line around.
    """
    return f"At {_moment(fact.at)} {_said(fact)}{_quoted_contents(fact) if content else ''}."


def signature(answered: Answered) -> tuple[str, str, str]:
    """Tell an answer as the printed form of a signed record has to: name, date and time (UTC), and meaning.

    21 CFR 11.50(a). The name is the one the host gave; where that cannot be read, the tag it is compared by.
    """
    meaning = f"{answered.decision}: {_DECISIONS[answered.decision]}"
    return _actor(answered.by, "somebody unnamed"), _moment(answered.at), meaning


def tell_all(facts: Iterable[Fact], *, content: bool = False) -> list[str]:
    """Tell a story, a sentence a fact."""
    return [tell(fact, content=content) for fact in facts]


def harmless(text: str) -> str:
    """Spell out, as JSON would, every character that a terminal obeys instead of showing it."""
    return "".join(_spelled(char) if unicodedata.category(char) in _UNSAFE else char for char in text)


def _spelled(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"  # noqa: PLR2004 - the first plane


def _said(fact: Fact) -> str:
    match fact:
        case Paused():
            return _paused(fact)
        case Answered():
            return _answered(fact)
        case Consumed():
            return _consumed(fact)
        case Refused():
            return _refused(fact)
        case Continued():
            late = ", told late" if fact.late else ""
            return f"the turn {_ENDS[fact.end]}{_next(fact)} under claim {fact.fence}{late}"
        case Stalled():
            return _stalled(fact)
        case Recovered():
            claim = fact.claim
            return (
                f"{_actor(fact.by, 'a worker')} took the turn up again under claim {claim.fence}, leased for "
                f"{claim.lease_seconds} s, after claim {fact.from_fence}: {_BECAUSE[fact.because]}"
            )
        case Withdrawn():
            successor = f" (pause {fact.superseded_by})" if fact.superseded_by else ""
            return f"the question was taken back{_by(fact.by)}{_WITHDRAWN[fact.reason]}{successor}"
        case Lapsed():
            leeway = f" and {fact.leeway_seconds} s of leeway had passed" if fact.leeway_seconds else ""
            return f"the question lapsed: its window had closed at {_moment(fact.closed_at)}{leeway}"
        case Reissued():
            return _reissued(fact)
        case Abandoned():
            under = f" under claim {fact.fence}" if fact.fence else ""
            return f"the turn was given up for good{under}: {_ABANDONED[fact.reason]}{_by(fact.by)}"
        case _:
            return _beside_pauses(fact)


def _beside_pauses(fact: Fact) -> str:
    if isinstance(fact, Presented):
        through = f" by {_actor(fact.by, 'somebody')}" if fact.by else ""
        return f"{_actor(fact.to, 'somebody')} was shown the question{through}, as rendering {fact.rendering}"
    if isinstance(fact, PolicyChanged):
        return _policy_changed(fact)
    if isinstance(fact, ErasureOrdered):
        return f"{_actor(fact.by, '')} ordered that {_ERASED[fact.kind]} be erased ({_quoted(fact.reason)})"
    if isinstance(fact, ErasureEnded):
        done = {"destroyed": "was erased for good: its key was destroyed", "held": "was not erased: a hold stands"}
        return f"{_ERASED[fact.kind]} {done[fact.outcome]}"
    if not isinstance(fact, SwitchFlipped):
        return f"{fact.topic()} happened"
    surface = f"surface {_quoted(fact.surface)}"
    how = f"handed {surface} to the kernel" if fact.on else f"rolled {surface} back"
    return f"{_actor(fact.by, '')} {how}"


def _paused(fact: Paused) -> str:
    tenant = f" of tenant {_quoted(fact.scope.tenant_id)}" if fact.scope else ""
    agent = f" of agent {_quoted(fact.agent.name)}" if fact.agent else ""
    tool = f" ({_quoted(fact.call.tool)})" if fact.call.tool else ""
    again = f" again (occurrence {fact.occurrence})" if fact.occurrence else ""
    opens = f" from {_moment(fact.opens_at)}" if fact.opens_at > fact.at else ""
    under = f" under policy {fact.policy.name} revision {fact.policy.revision}" if fact.policy else ""
    return (
        f"run {_quoted(fact.run_id)}{agent} in session {_quoted(fact.session_id)}{tenant} stopped at call "
        f"{_quoted(fact.call_id)}{tool} and asked {fact.interaction.name}{again}{_by(fact.asked_by)}; it may be "
        f"answered{opens} until {_moment(fact.closes_at)}{under}"
    )


def _answered(fact: Answered) -> str:
    through = f", handed in by {_actor(fact.submitted_by, 'somebody')}" if fact.submitted_by else ""
    several = fact.policy is not None and fact.policy.quorum > 1
    agreed = f", the {_ordinal(fact.number)} of {fact.policy.quorum} who have to agree" if several else ""  # type: ignore[union-attr]  # there is one
    seen = f", having seen presentation {', '.join(map(str, fact.cites))}" if fact.cites else ""
    return f"{_actor(fact.by, 'somebody unnamed')} {_DECISIONS[fact.decision]}{through}{seen}{agreed}"


def _ordinal(number: int) -> str:
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _policy_changed(fact: PolicyChanged) -> str:
    who = _actor(fact.by, "somebody")
    if fact.policy is None:
        return f"{who} put {fact.interaction} under no policy any more"
    ending = ", and ended what was asked under earlier ones" if fact.ends_earlier else ""
    return f"{who} put {fact.interaction} under policy {fact.policy.name} revision {fact.policy.revision}{ending}"


def _consumed(fact: Consumed) -> str:
    by_another = fact.origin == "redeem" and fact.siblings and fact.token is None
    how = "consumed the pause by redeeming another token of its round" if by_another else _ORIGINS[fact.origin]
    who = f"{_actor(fact.by, 'somebody unnamed')} {how}"
    if fact.claim is not None:
        return f"{who}; the turn is owed under claim {fact.claim.fence}, leased for {fact.claim.lease_seconds} s"
    if fact.lead != fact.pause:
        return f"{who}, together with its round; the turn is told of in pause {fact.lead}"
    return f"{who}, and nothing is owed"


def _refused(fact: Refused) -> str:
    rule = f" (rule {_quoted(fact.rule)})" if fact.rule else ""
    return f"an attempt{_by(fact.by)} was refused in step {fact.step} on the axis {fact.axis}: {fact.reason}{rule}"


def _stalled(fact: Stalled) -> str:
    error = f" with {_quoted(fact.error_type)}" if fact.error_type else ""
    where = "" if fact.entered else " before it was entered"
    return f"the turn broke off under claim {fact.fence}{where}: {_CAUSES[fact.cause]}{error}; it is still owed"


def _reissued(fact: Reissued) -> str:
    ending = "ends the earlier ones" if fact.ends_earlier else "stands beside the earlier ones"
    return (
        f"token number {fact.generation + 1} was minted under key {fact.kid}{_by(fact.by)} ({fact.reason}); it {ending}"
    )


def _next(fact: Continued) -> str:
    return f" in {', '.join(map(str, fact.next))}" if fact.next else ""


def _by(actor: ActorRecord | None) -> str:
    return "" if actor is None else f" by {_actor(actor, '')}"


def _actor(actor: ActorRecord | None, nobody: str) -> str:
    if actor is None:
        return nobody
    kind = "somebody" if actor.kind == "unknown" else actor.kind
    name = _clear(actor.who)
    erased = " (name erased)" if actor.who is not None and actor.who.erased else ""
    named = f"tagged {actor.tag}{erased}" if name is None else _quoted(name)
    return f"{kind} {named} ({actor.assurance})"


def _quoted_contents(fact: Fact) -> str:
    written = {name: getattr(fact, name, None) for name in ("request", "response", "effective", "note")}
    told = {name: _told(content) for name, content in written.items() if isinstance(content, Content)}
    return "".join(f"; {name}: {text}" for name, text in told.items())


def _told(content: Content) -> str:
    text = _clear(content)
    if text is None:
        return "erased" if content.erased else "cannot be read"
    return harmless(text)


def _clear(content: Content | None) -> str | None:
    if content is None:
        return None
    try:
        return content.clear().decode(errors="replace")
    except (ContentAlteredError, ContentErasedError, ContentUnreadError):
        return None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{harmless(escaped)}"'


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
