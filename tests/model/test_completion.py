"""What may follow an unfinished command line, by the table of verbs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.model.verbs import Group, Option, Verb
from waypoint.model.verbs.completion import KINDS, Offer, offered
from waypoint.model.verbs.table import WAYPOINT, every_verb

VERBS = {verb.name: verb for verb in every_verb()}


def words_of(line: str) -> list[str]:
    return [word for word, _ in offered(line.split(" ")).words]


def kind_of(line: str) -> str:
    return offered(line.split(" ")).kind


def value_of(option: Option) -> list[str]:
    return [] if option.kind == "flag" else [option.choices[0] if option.choices else "3"]


def test_all_verbs_are_offered_first_in_the_order_of_the_table() -> None:
    assert words_of("") == [member.name for member in WAYPOINT.members]
    assert offered([]).words == offered([""]).words
    assert all(text for _, text in offered([""]).words)


@pytest.mark.parametrize("group", [verb for verb in WAYPOINT.members if isinstance(verb, Group)], ids=lambda v: v.name)
def test_the_members_of_a_group_follow_it(group: Group) -> None:
    assert words_of(f"{group.name} ") == [member.name.split()[-1] for member in group.members]


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_every_option_is_offered_until_it_is_given(verb: Verb) -> None:
    assert words_of(f"{verb.name} -") == [option.flags[-1] for option in verb.options] + ["--help"]
    for option in verb.options:
        for flag in option.flags:
            line = " ".join([verb.name, flag, *value_of(option), "--"])
            assert (option.flags[-1] in words_of(line)) == (option.kind == "texts"), line


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_every_value_of_an_option_is_what_its_metavar_says(verb: Verb) -> None:
    for option in verb.options:
        if option.kind == "flag":
            continue
        spaced, glued = offered([*verb.name.split(), option.flags[-1], ""]), f"{option.flags[-1]}="
        joined = offered([*verb.name.split(), glued])
        assert [word for word, _ in spaced.words] == list(option.choices)
        assert [word for word, _ in joined.words] == [glued + choice for choice in option.choices]
        assert (joined.kind, joined.before, joined.typed) == (spaced.kind, glued, "")


def test_every_metavar_has_its_kind() -> None:
    """A new one is decided in waypoint/model/verbs/completion.py."""
    metavars = {option.metavar for verb in [WAYPOINT, *VERBS.values()] for option in verb.options}
    metavars |= {argument.metavar for verb in VERBS.values() for argument in verb.arguments}
    metavars |= {verb.words for verb in VERBS.values()}
    assert metavars == set(KINDS)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("attach ", "live branches"),
        ("exec -b ", "live branches"),
        ("shell ", "branches"),
        ("shell main ", ""),
        ("shell --base ", "folders"),
        ("--home ", "folders"),
        ("restore ", "names"),
        ("restore -b ", "branches"),
        ("restore x --new ", ""),
        ("rm a b ", "names"),
        ("checkpoint ", ""),
        ("checkpoint -b ", "live branches"),
        ("stop --checkpoint ", ""),
        ("fork ", "names"),
        ("fork warm ", ""),
        ("fork warm -n 3 -- ", "commands"),
        ("fork warm -- make ", "files"),
        ("exec ", "commands"),
        ("exec --timeout 3 -- ", "commands"),
        ("exec ls ", "files"),
        ("exec ls -", "files"),
        ("exec -- ls --", "files"),
        ("branch rename ", "branches"),
        ("branch rename a ", ""),
        ("setup --user ", "users"),
        ("nosuch ", ""),
        ("branch nosuch ", ""),
    ],
)
def test_what_only_the_shell_or_the_daemon_knows_is_named(line: str, kind: str) -> None:
    assert kind_of(line) == kind


@pytest.mark.parametrize(
    ("line", "home"),
    [("--home /a ps ", "/a"), ("--home=/a restore ", "/a"), ("restore --home /b ", "/b"), ("restore ", None)],
)
def test_the_home_that_is_meant_is_known(line: str, home: str | None) -> None:
    assert offered(line.split(" ")).home == home


@given(
    st.lists(st.sampled_from(["", "-", "--", "-b", "--home", "--tier=", "=", "x", "-xyz", *" ".join(VERBS).split()]))
)
def test_no_command_line_is_too_odd(words: list[str]) -> None:
    offer = offered(words)
    assert isinstance(offer, Offer)
    assert all(word.startswith(offer.before) for word, _ in offer.words)
