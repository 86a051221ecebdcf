"""Preambles: what a person writes before pasting a text, other words and lengths each time."""

from __future__ import annotations

import random
from collections.abc import Callable

LONGEST = 200
"""Most tokens of a preamble; the fewest are 1."""
_OPENINGS = (
    "{Name} asked me to look at this before {day}.",
    "I am new on the {team} team and still finding my way around.",
    "We have had {count} reports about this since {day}.",
    "This came up in the review that {Name} did on {day}.",
    "Sorry for the long message, it has been a long {day}.",
    "The {team} build has been red for {count} hours now.",
    "Thanks for helping with the other ticket last {day}.",
    "Before I write to {Name} I would like a second opinion.",
    "I inherited this from {Name}, who has moved to the {team} team.",
    "Nobody on the {team} team remembers who wrote this.",
)
_DETAILS = (
    "It worked on my machine until I updated on {day}.",
    "The tests pass, but {Name} saw something odd in production.",
    "About {count} customers seem to be affected, most of them on the {team} plan.",
    "I tried to bisect it and gave up after {count} steps.",
    "The {team} people think that it is a configuration problem, and I doubt it.",
    "{Name} found it by accident while looking for something else.",
    "We cannot roll back, because {count} other changes went out with it.",
    "Please do not rewrite anything, I only want to understand it.",
    "There is a meeting on {day} where I have to explain this.",
    "I left out the parts that {Name} already checked.",
    "The log was {count} lines long and said nothing useful.",
    "My first guess was a race, but it also happens with a single worker.",
    "It has been like this for at least {count} releases.",
    "On the {team} branch somebody has already tried to fix it.",
    "We pinned the dependencies {count} weeks ago, so it is not that.",
    "If you need more context, {Name} knows the history best.",
    "The same file was touched on {day}, only the comments changed.",
    "I do not have access to the {team} dashboards yet.",
    "Restarting helps for about {count} minutes.",
    "What follows is the file as it is on the main branch.",
)
_NAMES = ("Ada", "Bruno", "Chen", "Dina", "Emeka", "Farah", "Goran", "Hana", "Ivo", "Jun", "Katya")
_TEAMS = ("billing", "search", "mobile", "data", "platform", "support", "release", "payments")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "the weekend")


def preamble(draw: random.Random, count_tokens: Callable[[str], int]) -> str:
    """English sentences of a developer, cut at a word; at most `LONGEST` tokens.

    The length is drawn evenly from 1 to `LONGEST` tokens; the text ends with the last whole word
    within it, and never without one.

    Args:
        draw: where chance comes from.
        count_tokens: tokens of a text.
    """
    wanted = draw.randint(1, LONGEST)
    words = _sentence(draw, _OPENINGS).split(" ")
    details = draw.sample(_DETAILS, len(_DETAILS))
    while details and count_tokens(" ".join(words)) < wanted:
        words += _sentence(draw, (details.pop(),)).split(" ")
    while len(words) > 1 and count_tokens(" ".join(words)) > wanted:
        words.pop()
    return " ".join(words)


def _sentence(draw: random.Random, patterns: tuple[str, ...]) -> str:
    return draw.choice(patterns).format(
        Name=draw.choice(_NAMES),
        team=draw.choice(_TEAMS),
        day=draw.choice(_DAYS),
        count=draw.randint(2, 60),
    )
