"""`waypoint prove`."""

import dataclasses

from waypoint.cli.output import print_json, print_lines, warn_lines
from waypoint.client.sdk import Client
from waypoint.model.outcomes import proof_lines, status_of
from waypoint.model.rendering import short
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    answers = Client(given.text("home")).history.prove(*given.texts("names"))
    found = [dataclasses.asdict(answer) for answer in answers]
    if given.flag("json"):
        print_json(answers)
    else:
        for answer, facts in zip(answers, found, strict=True):
            word = "proved" if answer.proof["proved"] else "not proved"
            print_lines([f"{answer.name}  {short(answer.capture)}  {word} in {answer.proof['ms']:.0f} ms"])
            warn_lines([f"{answer.name}: {line}" for line in proof_lines(facts)])
    return max(map(status_of, found))
