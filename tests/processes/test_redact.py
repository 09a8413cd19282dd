"""Secrets are hidden in what is shown of a program, and all else is shown."""

import time

import pytest

from waypoint.processes.respawn.redact import argument, command_line


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("server --port 80 file", "server --port 80 file"),
        ("server --password hunter2 -v", "server --password *** -v"),
        ("server --api-key=hunter2", "server --api-key=***"),
        (
            "env AWS_SECRET_ACCESS_KEY=hunter2 DB_PASSWORD=hunter2 A=1 run",
            "env AWS_SECRET_ACCESS_KEY=*** DB_PASSWORD=*** A=1 run",
        ),
        ("psql postgres://me:hunter2@host/db", "psql postgres://me:***@host/db"),
        (f"tool sk-{24 * 'x'} ghp_{30 * 'x'}", "tool *** ***"),
        ("login --token", "login --token"),
        ("mysql -u me -pMyPassword base", "mysql -u me -p*** base"),
        ("mysql --password=hunter2 base", "mysql --password=*** base"),
        ("mysql -ptoken=hunter2 base", "mysql -p*** base"),
    ],
)
def test_a_secret_is_hidden(argv: str, shown: str) -> None:
    assert command_line(argv.split()) == shown


def test_a_header_is_hidden_to_its_end() -> None:
    assert command_line(["curl", "-H", "Authorization: Bearer hunter2 x", "u"]) == "curl -H Authorization:*** u"


def test_a_line_is_one_line_and_not_long() -> None:
    assert command_line(["a\x1b[2J\nb", "\udcff"]) == "a?[2J?b ?"
    assert len(command_line(["x" * 1000])) == 200


def test_a_secret_in_a_script_is_hidden() -> None:
    script = "cd a && API_TOKEN=hunter2 run; DB_PASSWORD='hunter2 x' b"
    assert command_line(["sh", "-c", script]) == "sh -c cd a && API_TOKEN=*** run; DB_PASSWORD=*** b"


@pytest.mark.parametrize("word", ["pwd", "auth", "session-key", "sk-", "eyJ-", "-", '"', "'", "://", "pwd ", "pwd= '"])
def test_no_word_takes_long(word: str) -> None:
    """Nothing else of the daemon runs meanwhile, and a session may have as many such words as it has processes."""
    begin = time.thread_time()
    for _ in range(10):
        command_line([word * 1000])
    assert time.thread_time() - begin < 0.2


def test_of_many_and_long_words_no_more_is_looked_at_than_is_shown() -> None:
    words = iter(["", *1000 * ["x"]])
    assert len(command_line(words)) == 200
    assert len(list(words)) > 800
    assert len(argument(1000 * "token")) == 1024
