"""Vectors of 16 float32 as values inside a kernel, for inner loops over rows padded to whole vectors.

LLVM vectorises a loop over 100 numbers by itself, but first checks whether the arrays overlap and whether there is a
remainder, which takes longer than the 100 numbers; for the products of skip-gram by a factor of three. Here no checks
are needed. A processor with narrower vectors uses two or four of its own for each of these.

    v = load(x, row, column)        x (R, width) float32, C-contiguous; columns [column, column + 16) must be there:
    store(x, row, column, v)        not checked, even with NUMBA_BOUNDSCHECK: for a kernel's own scratch arrays
    load_part(x, row, column, n), store_part(x, row, column, n, v)    the first n < 16 elements alone; 0 in the others
    a + b, a - b, a * b, a / b      by element; `splat(number)` makes a vector of equal elements
    fused(a, b, c)                  a * b + c
    least(a, b), most(a, b)         the smaller, the larger one, by element
    total(v)                        the sum of its elements
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic, overload

WIDTH = 16  # float32 in the widest vector of today's processors: 64 bytes, a cache line
_FAST = ("nsz", "arcp", "contract", "afn", "reassoc")  # as in every kernel: NaN and infinity are preserved
_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)
_WORDS, _MASK = ir.VectorType(ir.IntType(64), WIDTH), ir.VectorType(ir.IntType(1), WIDTH)


class Float32x16(types.Type):
    """The numba type of such a vector."""

    def __init__(self) -> None:
        super().__init__(name="Float32x16")


float32x16 = Float32x16()


@register_default(Float32x16)
class _VectorModel(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VECTOR)


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an intrinsic. mypy sees the plain function: it is called only inside kernels, without the first argument."""
    return intrinsic(function)


def padded(width: int) -> int:
    """Return the smallest multiple of WIDTH that is at least `width`."""
    return -(-width // WIDTH) * WIDTH


def zeros_on_lines(rows: int, width: int) -> np.ndarray:
    """Return (rows, width) float32 zeros on cache lines: a vector that crosses a line is read and written in two
    parts."""
    whole = np.zeros(rows * width + WIDTH, np.float32)
    skip = -(whole.ctypes.data // 4) % WIDTH
    return whole[skip : skip + rows * width].reshape(rows, width)


def _is_table(array: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype == types.float32 and (array.ndim, array.layout) == (2, "C")


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return the pointer to the vector at (array, row, column), the first three of `args`."""
    array = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    at = builder.add(builder.mul(args[1], width), args[2])
    return builder.bitcast(builder.gep(array.data, [at]), _VECTOR.as_pointer())


@instruction
def load(typing, array, row, column):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(_pointer(context, builder, signature, args), align=4)

    return (float32x16(array, types.int64, types.int64), code) if _is_table(array) else None


@instruction
def store(typing, array, row, column, value):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[3], _pointer(context, builder, signature, args), align=4)
        return context.get_dummy_value()

    return (types.void(array, types.int64, types.int64, float32x16), code) if _is_table(array) else None


@instruction
def load_part(typing, array, row, column, count):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args)
        kind = ir.FunctionType(_VECTOR, [pointer.type, ir.IntType(32), _MASK, _VECTOR])
        read = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{WIDTH}f32.p0")
        zeros = ir.Constant(_VECTOR, [0.0] * WIDTH)
        return builder.call(read, [pointer, ir.Constant(ir.IntType(32), 4), _first(builder, args[3]), zeros])

    return (float32x16(array, types.int64, types.int64, types.int64), code) if _is_table(array) else None


@instruction
def store_part(typing, array, row, column, count, value):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args)
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, pointer.type, ir.IntType(32), _MASK])
        write = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.v{WIDTH}f32.p0")
        builder.call(write, [args[4], pointer, ir.Constant(ir.IntType(32), 4), _first(builder, args[3])])
        return context.get_dummy_value()

    return (types.void(array, types.int64, types.int64, types.int64, float32x16), code) if _is_table(array) else None


def _first(builder: Any, count: Any) -> Any:
    """Return the mask of the first `count` elements."""
    kind = ir.IntType(64)
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), count, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    counts = builder.shuffle_vector(one, ir.Constant(_WORDS, ir.Undefined), zeros)
    return builder.icmp_signed("<", ir.Constant(_WORDS, [kind(place) for place in range(WIDTH)]), counts)


@instruction
def splat(typing, number):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), everywhere)

    return float32x16(types.float32), code


@instruction
def fused(typing, a, b, c):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fadd(builder.fmul(args[0], args[1], flags=_FAST), args[2], flags=_FAST)

    return float32x16(float32x16, float32x16, float32x16), code


@instruction
def total(typing, a):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _VECTOR])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), args[0]], fastmath=_FAST)

    return types.float32(float32x16), code


def _by_element(emit: Callable[[Any, Any, Any], Any]) -> Any:
    @instruction
    def apply(typing, a, b):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return emit(builder, *args)

        return float32x16(float32x16, float32x16), code

    return apply


def _choose(comparison: str) -> Callable[[Any, Any, Any], Any]:
    return lambda builder, a, b: builder.select(builder.fcmp_ordered(comparison, a, b), a, b)


least, most = _by_element(_choose("<")), _by_element(_choose(">"))
_plus = _by_element(lambda builder, a, b: builder.fadd(a, b, flags=_FAST))
_minus = _by_element(lambda builder, a, b: builder.fsub(a, b, flags=_FAST))
_times = _by_element(lambda builder, a, b: builder.fmul(a, b, flags=_FAST))
_over = _by_element(lambda builder, a, b: builder.fdiv(a, b, flags=_FAST))


def _operator(symbol: Callable[[Any, Any], Any], apply: Any) -> None:
    @overload(symbol, inline="never")
    def between(a, b):  # type: ignore[no-untyped-def]
        return (lambda a, b: apply(a, b)) if isinstance(a, Float32x16) and isinstance(b, Float32x16) else None


_operator(operator.add, _plus)
_operator(operator.sub, _minus)
_operator(operator.mul, _times)
_operator(operator.truediv, _over)
