"""The live workers of a test's job, seen from outside."""

from hogwild.chaos.inject import Watch
from tests.helpers.jobs import Job


class Roll(Watch):
    """Of one attempt of a job: call `look_alive` often."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.run_dir, job.process.pid)
        self.job = job

    def look_alive(self) -> bool:
        """Takes in what was written since the last look; whether the job was still there before."""
        is_over = self.job.process.poll() is not None  # asked first: what it wrote last is there then
        self.look()
        return not is_over
