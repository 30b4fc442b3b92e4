"""Processor instructions that Python cannot express.

`ask_ahead` prefetches an upcoming sample. Samples in random order are rows at random places: the hardware sees no
pattern, and the kernel would wait for each row. On imdb's bag of words prefetching doubled the speed of random order,
and cost 2 % if the rows are neighbours.

`ask_for` prefetches an upcoming row of a table. Rows of a table larger than the caches are read at random, and each
costs a memory access. A short rule has several rows in flight at once; a longer one (a root, a division, a draw) fills
the processor's window with one row and waits for each. With prefetching, rows are in the cache in time: Adagrad over
rows became three times as fast.

`fused_product` is a product and a sum, rounded once. BLAS, used by torch's sparse additions, is written with it; a
compiler that may choose freely gives other bits in the last columns of a row."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hogwild.kernels.compiling import exact, inlined
from hogwild.kernels.simd import instruction

LINE = 16  # numbers of 4 bytes: 64 bytes, one request each
SAMPLES_AHEAD = 3  # far enough that memory has answered, near enough that it is still in the cache

_1, _LINE = np.uint64(1), np.uint64(LINE)
_READ, _WRITE = 0, 1


def _request(context: Any, builder: Any, address: Any, purpose: int) -> None:
    """Emit LLVM's prefetch of a cache line, into every cache. It reads nothing, so any `address` is safe."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    request = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
    builder.call(request, [builder.bitcast(address, byte), number(purpose), number(3), number(1)])


@intrinsic
def _ask_to_read(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Prefetch array[index] of a 1-d array for reading; index unsigned."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _request(context, builder, builder.gep(data, [arguments[1]]), _READ)
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def _ask_to_write(typing_context, table, row, column):  # type: ignore[no-untyped-def]
    """Prefetch table[row, column] for writing."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, arguments[1:], wraparound=False)
        _request(context, builder, place, _WRITE)
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


@instruction
def ask_for_row(typing_context, table, row, of):  # type: ignore[no-untyped-def]
    """Prefetch row `row` of `table` (R, k) float32 for reading and writing; `of`: `simd.of_width(k)`, or None for the
    first line alone."""
    lines = -(-of.dtype.count // LINE) if isinstance(of, types.Array) else 1

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind, zero = signature.args[0], context.get_constant(types.intp, 0)
        array = context.make_array(kind)(context, builder, arguments[0])
        start = cgutils.get_item_pointer(context, builder, kind, array, [arguments[1], zero], wraparound=False)
        for line in range(lines):
            _request(context, builder, builder.gep(start, [ir.Constant(ir.IntType(64), line * LINE)]), _WRITE)
        return context.get_dummy_value()

    return types.void(table, types.intp, of), generate


@intrinsic
def _fma(typing_context, a, x, y):  # type: ignore[no-untyped-def]
    """Emit LLVM's fma of three numbers of one type."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return y(y, y, y), generate


@inlined
def ask_ahead(rows, n, indptr, indices, values):  # type: ignore[no-untyped-def]
    """Prefetch the features and values of the sample SAMPLES_AHEAD places later, from CSR data."""
    if n + SAMPLES_AHEAD < len(rows):
        later = rows[n + SAMPLES_AHEAD]
        for p in range(indptr[later], indptr[later + _1], _LINE):
            _ask_to_read(indices, p)  # type: ignore[call-arg]
            _ask_to_read(values, p)


@exact
def ask_for(table, row):  # type: ignore[no-untyped-def]
    """Prefetch row `row` of `table` (R, D) float32 for reading and writing. Only a hint: any `row` is safe."""
    for column in range(0, table.shape[1], LINE):
        _ask_to_write(table, row, column)  # type: ignore[call-arg]


@exact
def fused_product(a, x, y):  # type: ignore[no-untyped-def]
    """Return a x + y, rounded once; float32."""
    return _fma(a, x, y)  # type: ignore[call-arg]
