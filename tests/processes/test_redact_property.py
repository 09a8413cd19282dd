"""No part of any secret is displayed, in any form in which programs accept secrets."""

import json
import shlex
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.processes.respawn.redact import argument, command_line

MARK = "Zq7"
"""Each secret begins and ends with this text, which occurs nowhere else."""
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
SECRETS = st.text(CHARACTERS, max_size=40).map(lambda text: f"{MARK}{text}{MARK}")

FORMS: dict[str, Callable[[str], list[str]]] = {
    "a password in the next word": lambda secret: ["server", "--password", secret, "-v"],
    "an option with a value": lambda secret: ["server", f"--api-key={secret}"],
    "curl -u": lambda secret: ["curl", "-u", f"me:{secret}", "http://host"],
    "curl -sSu": lambda secret: ["sudo", "/usr/bin/curl", "-sSu", f"me:{secret}", "http://host"],
    "curl -ume:": lambda secret: ["curl", f"-ume:{secret}", "http://host"],
    "curl --user": lambda secret: ["curl", "--user", f"me:{secret}", "http://host"],
    "curl --user=": lambda secret: ["curl", f"--user=me:{secret}", "http://host"],
    "curl --proxy-user": lambda secret: ["curl", "--proxy-user", f"me:{secret}", "http://host"],
    "a bearer token": lambda secret: ["curl", "-H", f"Authorization: Bearer {secret}", "http://host"],
    "mysql -p": lambda secret: ["mysql", "-u", "me", f"-p{secret}", "base"],
    "sshpass -p": lambda secret: ["sshpass", "-p", secret, "ssh", "host"],
    "sshpass -pPASSWORD": lambda secret: ["sshpass", f"-p{secret}", "ssh", "host"],
    "redis-cli -a": lambda secret: ["redis-cli", "-a", secret],
    "PGPASSWORD": lambda secret: ["env", f"PGPASSWORD={secret}", "psql"],
    "a psql URL": lambda secret: ["psql", f"postgresql://me:{quote(secret, safe='@')}@host/base"],
    "a redis URL": lambda secret: ["worker", f"redis://:{quote(secret, safe='')}@host/0"],
    "a parameter of a URL": lambda secret: ["get", f"https://host/?a=1&access_token={quote(secret, safe='')}&b=2"],
    "openssl -passin": lambda secret: ["openssl", "rsa", "-passin", f"pass:{secret}", "-in", "key"],
    "smbclient -U": lambda secret: ["smbclient", "-U", f"me%{secret}", "//host/share"],
}
SCRIPTS: dict[str, Callable[[str], str]] = {
    **{
        f"a script with {name}": lambda secret, form=form: f"cd a && {shlex.join(form(secret))}; b"
        for name, form in FORMS.items()
    },  # type: ignore[misc]
    "a variable before a program": lambda secret: f"cd a; TOKEN={shlex.quote(secret)} run",
    "a secret in double quotes": lambda secret: (
        f'cd a; curl -u me:"{secret.replace(chr(92), "").replace(chr(34), "")}" h'
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(secret=SECRETS)
def test_no_part_of_a_secret_is_displayed(form: Callable[[str], list[str]], secret: str) -> None:
    assert MARK not in command_line(form(secret))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@given(secret=SECRETS)
def test_no_part_of_a_secret_in_a_script_is_displayed(script: Callable[[str], str], secret: str) -> None:
    assert MARK not in command_line(["sh", "-c", script(secret)])


@given(secret=SECRETS)
def test_no_part_of_a_secret_in_a_record_is_displayed(secret: str) -> None:
    for is_ascii in (True, False):
        text = json.dumps({"user": "me", "password": secret, "a": 1}, ensure_ascii=is_ascii)
        assert MARK not in argument(text)
        assert MARK not in command_line(["curl", "-d", text])
