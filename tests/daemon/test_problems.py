"""The log entries of unexpected exceptions in the daemon."""

import logging

import pytest

from waypoint.service.background.bugs import log_bug


def raised(error: BaseException, cause: BaseException | None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_the_log_has_each_cause_of_an_exception_without_values(caplog: pytest.LogCaptureFixture) -> None:
    error = raised(KeyError("a secret"), raised(FileNotFoundError(2, "No such file", "/pool"), None))
    with caplog.at_level(logging.ERROR):
        log_bug(error, "a request")
    assert "KeyError\n" in caplog.text
    assert "FileNotFoundError: [Errno 2] No such file: '/pool'" in caplog.text
    assert "a secret" not in caplog.text


def test_exceptions_that_cause_each_other_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one, other = KeyError("one"), ValueError("other")
    raised(one, other)
    raised(other, one)
    itself = KeyError("itself")
    raised(itself, itself)
    with caplog.at_level(logging.ERROR):
        for error in (one, itself):
            log_bug(error, "a request")
    assert caplog.text.count("KeyError") == 2
