"""Streamed data without loaders (`procs: 0`): the only process reads a batch into its slot when it needs one."""

from hogwild.feeds.stream_reader import Filler, Unreadable, copies_of
from hogwild.job.stream_setup import own_random_state
from hogwild.scheduling.stream_schedule import SlotRequest
from workers.session.ring_state import RingState

LOADER = 0


class InlineReading:
    """Acts as the loader. Errors of user code are raised unchanged; nothing is retried."""

    def __init__(self, state: RingState) -> None:
        self._state = state
        self._filler: Filler | None = None

    def read(self) -> SlotRequest | None:
        """Fill one slot; return None if the stream ended instead. Raises DataError."""
        state, schedule = self._state, self._state.schedule
        request = schedule.request(LOADER)
        assert request is not None, "nothing is leased, nothing is filled and nothing is left to read"
        state.write(request)
        with own_random_state():
            if self._filler is None:
                again = copies_of(state.stream) if state.stream.is_iterable else None
                self._filler = Filler(state.stream, state.ring, again=again)
            try:
                is_there = self._filler.fill(request.slot)
            except Unreadable as bad:
                raise bad.error from bad.__cause__
        if is_there:
            state.filled(LOADER, request.slot)
            return request
        schedule.ended(LOADER, request.slot)
        if (wrong := state.check()) is not None:
            raise wrong
        return None
