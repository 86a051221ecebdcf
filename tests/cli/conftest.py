"""The village of `small_corpus` and the command line, as fixtures that these tests share."""

from command_line import *  # noqa: F403
from small_corpus import *  # noqa: F403
