"""What a process knows of the policies on record, by what it read last."""

from uuid import uuid4

from pauseledger.domain.authority import PolicyChanged
from pauseledger.domain.policies import PolicyBook


class Pauses:
    """A stream that is read as it stands; `reading` tells of each read before it ends."""

    def __init__(self, facts):
        self.facts = facts

    async def story(self, streams):
        return tuple(self.facts)


def changes(count):
    return [PolicyChanged.model_construct() for _ in range(count)]


async def test_a_store_that_was_set_back_is_believed():
    pauses = Pauses(changes(3))
    book = PolicyBook(pauses, uuid4())
    assert len(await book.read()) == 3
    pauses.facts = changes(1)
    await book.read()
    assert len(book._known) == 1


async def test_a_read_that_began_earlier_and_found_less_changes_nothing():
    pauses = Pauses(changes(1))
    book = PolicyBook(pauses, uuid4())
    inner = pauses.story

    async def overtaken(streams):
        pauses.story = inner
        found = await inner(streams)
        pauses.facts = changes(2)
        await book.read()
        return found

    pauses.story = overtaken
    assert len(await book.read()) == 1
    assert len(book._known) == 2
