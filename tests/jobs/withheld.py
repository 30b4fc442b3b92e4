"""The command line with a schedule that makes a mistake: after its first `GIVEN` answers no worker gets anything."""

from typing import Any

from hogwild.__main__ import main
from hogwild.scheduling.stream_schedule import StreamSchedule

GIVEN = 3
choose, answers = StreamSchedule.choose, iter(range(GIVEN))


def withhold(self: StreamSchedule, *given: Any) -> Any:
    choice = choose(self, *given)
    return choice if choice is not None and next(answers, None) is not None else None


StreamSchedule.choose = withhold  # type: ignore[method-assign]
main()
