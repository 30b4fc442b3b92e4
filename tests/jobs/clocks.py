"""A model whose import breaks the wall clock of its process: every look at it is an hour before or after the one
before, as if somebody set the date again and again. User code is imported in the supervisor and in every worker."""

import itertools
import time

from counting import Counting as Counting

_steps = itertools.cycle((3600.0, -3600.0, 7200.0, 0.0))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + next(_steps)
time.time_ns = lambda: _time_ns() + int(next(_steps) * 1e9)
