"""What was logged, as objects."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Lines:
    """What was logged."""

    stream: io.StringIO = field(default_factory=io.StringIO)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.all if line["event"] == event]
