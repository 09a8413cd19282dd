"""Fixtures for the tests of service functions."""

from tests.records.conftest import names as names
from tests.service.recorded import history as history
from tests.service.recorded import sessions as sessions
from tests.service.recorded import tip as tip
