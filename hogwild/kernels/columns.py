"""Claims of workers to column blocks of a grid (`hogwild/scheduling/grid_schedule.py`): words of the scoreboard that
kernels read and write between two cells, without a lock and without a message.

    my next column ──► is another there? ──no──► my word says that I am there ──► train the cell ──► next column
                             | yes
                             '── look again, SPINS times; then the caller waits (`workers/child/fused_trainer.py`)

Each word has one writer: a worker its own. Two that look at the same moment may enter together, and the caller of the
kernel may `insist` (until a column is free). Then both write the same rows without a lock, which is Hogwild as it was
published: slower, and a gradient may be lost, but nobody waits for ever, and no order of waiting can close into a
circle.

    word    stamp | column + 1; 0: in none. The stamp is of the item: a word that has not changed in all that time is
            of a worker that was stopped or has died, and `ignored`."""

from typing import Any

import numpy as np
from numba.core import cgutils, types

from hogwild.kernels.compiling import inlined
from hogwild.kernels.fused import STAMP_BITS
from hogwild.kernels.simd import instruction

SPINS = 1 << 15  # some 80 microseconds
_MASK, _1 = np.int64((1 << STAMP_BITS) - 1), np.int64(1)


def _word(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, made, [index], wraparound=False)


@instruction
def _read(typing_context, words, index):  # type: ignore[no-untyped-def]
    """Read words[index], int64: anew each time, also in a loop."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _word(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(words, types.intp), generate


@instruction
def _write(typing_context, words, index, value):  # type: ignore[no-untyped-def]
    """Write words[index] now: after all that was written before."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _word(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), generate


@inlined
def is_met(words, ignored, own, column):  # type: ignore[no-untyped-def]
    """Return whether another worker is in this column."""
    for other in range(len(words)):
        if other != own:
            word = _read(words, other)
            if (word & _MASK) == column + _1 and word != ignored[other]:
                return True
    return False


@inlined
def enter(words, ignored, own, stamp, column, insist):  # type: ignore[no-untyped-def]
    """Enter a column; return (True, whether another worker is there), or (False, True) if one stays and we do not
    `insist`. words (P,) int64: of all workers, `own` among them; ignored (P,) int64: words that count as absence."""
    _write(words, own, np.int64(0))
    met = is_met(words, ignored, own, column)
    spins = 0
    while met and not insist and spins < SPINS:
        met = is_met(words, ignored, own, column)
        spins += 1
    if met and not insist:
        return False, True
    _write(words, own, stamp | (column + _1))
    return True, met
