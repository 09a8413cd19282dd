"""Shell completion from the table of verbs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.model.verbs import Option
from waypoint.model.verbs.completion import KINDS, Offer, offered
from waypoint.model.verbs.table import WAYPOINT, Group, every_verb

VERBS = {verb.name: verb for verb in every_verb()}


def words_of(line: str) -> list[str]:
    return [word for word, _ in offered(line.split(" ")).words]


def kind_of(line: str) -> str:
    return offered(line.split(" ")).kind


def value_of(option: Option) -> list[str]:
    return [] if option.kind == "flag" else [option.choices[0] if option.choices else "3"]


def test_all_verbs_are_offered_in_the_order_of_the_table() -> None:
    assert words_of("") == [member.name for member in WAYPOINT.members]
    assert offered([]).words == offered([""]).words
    assert all(text for _, text in offered([""]).words)


def test_the_members_of_a_group_are_offered_after_it() -> None:
    for group in (verb for verb in WAYPOINT.members if isinstance(verb, Group)):
        assert words_of(f"{group.name} ") == [member.name.split()[-1] for member in group.members]


def test_every_option_is_offered_until_it_is_given() -> None:
    failed = []
    for verb in VERBS.values():
        if words_of(f"{verb.name} -") != [option.flags[-1] for option in verb.options] + ["--help"]:
            failed.append(f"{verb.name} -")
        for option in verb.options:
            lines = [" ".join([verb.name, flag, *value_of(option), "--"]) for flag in option.flags]
            is_repeated = option.kind == "texts"
            failed += [line for line in lines if (option.flags[-1] in words_of(line)) != is_repeated]
    assert not failed, "\n".join(failed)


def test_the_kind_of_an_options_value_follows_from_its_metavar() -> None:
    failed = []
    for verb in VERBS.values():
        for option in (option for option in verb.options if option.kind != "flag"):
            spaced, glued = offered([*verb.name.split(), option.flags[-1], ""]), f"{option.flags[-1]}="
            joined = offered([*verb.name.split(), glued])
            expected = [list(option.choices), [glued + choice for choice in option.choices]]
            words = [[word for word, _ in offer.words] for offer in (spaced, joined)]
            if words != expected or (joined.kind, joined.before, joined.typed) != (spaced.kind, glued, ""):
                failed.append(f"{verb.name} {glued}: {words}, {spaced.kind}, {joined.kind}")
    assert not failed, "\n".join(failed)


def test_every_metavar_has_a_kind() -> None:
    """waypoint/model/verbs/completion.py maps metavars to kinds of values (branch, file, ...)."""
    metavars = {option.metavar for verb in [WAYPOINT, *VERBS.values()] for option in verb.options}
    metavars |= {argument.metavar for verb in VERBS.values() for argument in verb.arguments}
    metavars |= {verb.words for verb in VERBS.values()}
    assert metavars == set(KINDS)


def test_the_kind_of_the_next_word_is_known() -> None:
    kinds = {
        "attach ": "live branches",
        "exec -b ": "live branches",
        "shell ": "branches",
        "shell main ": "",
        "shell --base ": "bases|folders",
        "base rm ": "bases",
        "base create ": "",
        "profile test ": "profiles",
        "--home ": "folders",
        "restore ": "names",
        "restore -b ": "branches",
        "restore x --new ": "",
        "rm a b ": "names",
        "checkpoint ": "",
        "checkpoint -b ": "live branches",
        "stop --checkpoint ": "",
        "fork ": "names",
        "fork warm ": "",
        "fork warm -n 3 -- ": "commands",
        "fork warm -- make ": "files",
        "exec ": "commands",
        "exec --timeout 3 -- ": "commands",
        "exec ls ": "files",
        "exec ls -": "files",
        "exec -- ls --": "files",
        "branch rename ": "branches",
        "branch rename a ": "",
        "setup --user ": "users",
        "nosuch ": "",
        "branch nosuch ": "",
    }
    failed = [f"{line!r}: {kind_of(line)}" for line, kind in kinds.items() if kind_of(line) != kind]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    ("line", "home"),
    [("--home /a ps ", "/a"), ("--home=/a restore ", "/a"), ("restore --home /b ", "/b"), ("restore ", None)],
)
def test_the_home_is_found_among_the_words(line: str, home: str | None) -> None:
    assert offered(line.split(" ")).home == home


@given(
    st.lists(st.sampled_from(["", "-", "--", "-b", "--home", "--tier=", "=", "x", "-xyz", *" ".join(VERBS).split()]))
)
def test_any_words_can_be_completed(words: list[str]) -> None:
    offer = offered(words)
    assert isinstance(offer, Offer)
    assert all(word.startswith(offer.before) for word, _ in offer.words)
