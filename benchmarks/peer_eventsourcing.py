"""eventsourcing as it comes: an Aggregate with two events, its JSON, and its PostgreSQL recorder. Threads."""

from urllib.parse import parse_qs, urlsplit

import workload as w
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError


class Pause(Aggregate):
    @event("Paused")
    def __init__(self, tenant, messages, request):
        self.tenant, self.messages, self.request, self.answer = tenant, messages, request, None

    @event("Consumed")
    def consume(self, answer):
        self.answer = answer


class EventsourcingPg(w.Peer):
    name = "eventsourcing_pg"
    is_async = False

    def setup(self):
        url = urlsplit(self.where)
        query = parse_qs(url.query)
        self.app = Application(
            env={
                "PERSISTENCE_MODULE": "eventsourcing.postgres",
                "POSTGRES_DBNAME": url.path[1:],
                "POSTGRES_HOST": query["host"][0],
                "POSTGRES_PORT": "5432",
                "POSTGRES_USER": url.username,
                "POSTGRES_PASSWORD": "",
                "POSTGRES_POOL_SIZE": str(self.conc),
                "POSTGRES_MAX_OVERFLOW": "4",
            }
        )

    def close(self):
        self.app.close()

    def pause(self, number):
        messages, request = w.turn(number)
        pause = Pause(w.TENANT, messages, request)
        self.app.save(pause)
        return w.mint(pause.id, w.packed(request))

    def redeem(self, token):
        pause_id, digest = w.opened(token)
        pause = self.app.repository.get(pause_id)
        answer = w.judged(w.packed(pause.request), digest).decode()
        if pause.answer is not None:
            raise w.ConsumedError
        pause.consume(answer)
        try:
            self.app.save(pause)
        except IntegrityError:
            raise w.ConsumedError from None
        return pause.messages

    def race_one(self, token):
        try:
            self.redeem(token)
        except w.ConsumedError:
            return "turned away"
        return "won"
