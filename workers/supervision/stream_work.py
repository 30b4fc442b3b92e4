"""The slots of a stream's ring as work of its loaders (`loading/loaders.py`).

a batch cannot be read    a failed attempt; after `max_item_attempts` it is quarantined
a loader dies             the batch that it was reading is charged, in the same way
an iterable               each loader reads its own shard, so no batch can be given up: the job fails"""

from dataclasses import replace

from hogwild.errors import DataError, HogwildError
from hogwild.scheduling.stream_schedule import SlotRequest
from hogwild.workers.child.loader import ENDED
from hogwild.workers.loading.loaders import LoaderLoss
from hogwild.workers.messages import Report
from hogwild.workers.processes.roles import RoleLimits
from hogwild.workers.processes.setbacks import Death, Setbacks
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.session import Session


class StreamWork:
    """The stream of one attempt. Number: slot + 1."""

    again = "its batches are read again"

    def __init__(self, session: Session, state: RingState, limits: RoleLimits) -> None:
        self._session, self._state, self._schedule = session, state, state.schedule
        self._attempts = limits.max_item_attempts
        self._setbacks = Setbacks(lambda: state.loaders, limits, session.queue.samples > 0, noun="loader")
        self._filled = 0

    def request(self, loader: int) -> int | None:
        if (request := self._schedule.request(loader)) is None:
            return None
        self._state.write(request)
        return request.slot + 1

    def answered(self, loader: int, answer: int, number: int) -> bool:
        if answer != ENDED:
            is_filled = self._state.filled(loader, number - 1)
            self._filled += is_filled
            return is_filled
        if self._schedule.ended(loader, number - 1) is not None:
            self._session.queue.find_ends()
        return False

    def refused(self, loader: int, report: Report) -> HogwildError | None:
        found = self._schedule.failed(loader, report.item - 1)
        if found is None:
            return None
        request, attempts = found
        self._session.journal.event(
            "bad-batch", loader=loader, epoch=request.epoch, batch=request.batch, attempts=attempts, why=report.detail
        )
        trace = f"\n\n{report.traceback.rstrip()}" if report.traceback else ""
        error = DataError(f"{report.detail}{trace}", code=report.code)
        death = Death("", replace(report, kind="error"), (request.epoch, request.batch))
        if self._setbacks.hopeless(death, self._filled, in_set_up=False) is not None:
            return error
        if attempts < self._attempts:
            return None
        return error if self._schedule.is_sharded else self._give_up(request, report.detail)

    def _give_up(self, request: SlotRequest, why: str) -> HogwildError | None:
        """Quarantine an unreadable batch and the update it belongs to."""
        session = self._session
        release = session.queue.give_up(request.epoch, self._schedule.give_up(request))
        for epoch, start, stop in release.quarantined:
            session.journal.event("quarantined", epoch=epoch, start=start, stop=stop, why=why)
            session.journal.show_message(f"quarantined: epoch {epoch}, batches {start} to {stop - 1}: {why}")
        return session.check_quarantine(release)

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        self._state.deaths += 1
        found = self._schedule.lost(loader, number - 1 if number else None)
        if found is None:
            return LoaderLoss()
        request, deaths = found
        charged = request.epoch, request.batch
        if deaths < self._attempts:
            return LoaderLoss(charged)
        ended = f"{deaths} loaders, the last one" if deaths > 1 else "its loader"
        what = f"reading record {record} (epoch {request.epoch}, batch {request.batch}) crashed {ended}: {how}"
        if self._schedule.is_sharded:
            return LoaderLoss(charged, error=DataError(f"{self._state.stream.what}: {what}", code="data/item-kills"))
        return LoaderLoss(charged, is_excused=True, error=self._give_up(request, what))

    def has_in_hand(self, loader: int) -> bool:
        return self._schedule.has_in_hand(loader)

    def waits(self) -> str:
        held = f"{self._schedule.filled_slots} of {self._schedule.slots} slots are filled"
        epochs = ", ".join(map(str, sorted(self._schedule.open_epochs))) or "none"
        return f"waits for something to read ({held}; epochs being read: {epochs})"

    def check(self) -> HogwildError | None:
        return self._state.check()
