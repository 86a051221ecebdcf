"""The village of `small_corpus`, made-up chunks and the command line, as shared fixtures."""

from command_line import *  # noqa: F403
from made_up_chunks import *  # noqa: F403
from small_corpus import *  # noqa: F403
