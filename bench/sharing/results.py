"""The results of a row of bench/sharing/run."""

import dataclasses
from typing import Optional


@dataclasses.dataclass
class Result:
    """One line of the table. `met`: None when there is no goal."""

    what: str
    arm: str
    values: dict
    goal: str = ""
    met: Optional[bool] = None

    def text(self):
        values = ", ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
                           for key, value in self.values.items())
        verdict = "" if self.met is None else ("met" if self.met else "MISSED")
        return f"{self.what:58} {self.arm:15} {values:70} {self.goal:34} {verdict}".rstrip()

    def record(self):
        return dataclasses.asdict(self)
