"""Secrets are hidden in displayed command lines, and nothing else is."""

from waypoint.processes.respawn.redact import argument, command_line


def test_a_secret_is_hidden() -> None:
    shown = {
        "server --port 80 file": "server --port 80 file",
        "server --password hunter2 -v": "server --password *** -v",
        "server --api-key=hunter2": "server --api-key=***",
        "env AWS_SECRET_ACCESS_KEY=hunter2 DB_PASSWORD=hunter2 A=1 run": (
            "env AWS_SECRET_ACCESS_KEY=*** DB_PASSWORD=*** A=1 run"
        ),
        "psql postgres://me:hunter2@host/db": "psql postgres://me:***@host/db",
        f"tool sk-{24 * 'x'} ghp_{30 * 'x'}": "tool *** ***",
        "login --token": "login --token",
    }
    assert {line: command_line(line.split()) for line in shown} == shown


def test_a_header_is_hidden_to_its_end() -> None:
    assert command_line(["curl", "-H", "Authorization: Bearer hunter2 x", "u"]) == "curl -H Authorization:*** u"


def test_a_command_line_is_one_short_line() -> None:
    assert command_line(["a\x1b[2J\nb", "\udcff"]) == "a?[2J?b ?"
    assert len(command_line(["x" * 1000])) == 200


def test_a_secret_in_a_script_is_hidden() -> None:
    script = "cd a && API_TOKEN=hunter2 run; DB_PASSWORD='hunter2 x' b"
    assert command_line(["sh", "-c", script]) == "sh -c cd a && API_TOKEN=*** run; DB_PASSWORD=*** b"


def test_only_the_displayed_part_of_many_or_long_words_is_read() -> None:
    words = iter(["", *1000 * ["x"]])
    assert len(command_line(words)) == 200
    assert len(list(words)) > 800
    assert len(argument(1000 * "token")) == 1024
