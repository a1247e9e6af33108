"""The store in memory."""

import pytest
from eventsourcing.tests.persistence import ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.testing import RecorderConformance


class TestMemory(RecorderConformance):
    @pytest.fixture
    def recorder(self):
        return MemoryRecorder()


# AggregateRecorderTestCase does not apply to any store here: it wants insert_events to return None, ours returns positions.
class TestLibraryApplicationRecorder(ApplicationRecorderTestCase):
    def create_recorder(self):
        return MemoryRecorder()

    def test_insert_subscribe(self):
        self.optional_test_insert_subscribe()


class TestLibraryNonInterleaving(NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self):
        return MemoryRecorder()


del ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase
