"""Vectors of float32 as values inside a kernel, for inner loops over rows padded to whole vectors.

LLVM vectorises a loop over 100 numbers by itself, but first checks whether the arrays overlap and whether there is a
remainder, which takes longer than the 100 numbers; for the products of skip-gram by a factor of three. Here no checks
are needed. A processor with narrower vectors uses two or four of its own for each of these.

    v = load(x, row, column)        x (R, width) float32, C-contiguous; columns [column, column + 16) must be there:
    store(x, row, column, v)        not checked, even with NUMBA_BOUNDSCHECK: for a kernel's own scratch arrays
    load_part(x, row, column, n), store_part(x, row, column, n, v)    the first n < 16 elements alone; 0 in the others
    a + b, a - b, a * b, a / b      by element; `splat(number)` makes a vector of equal elements
    fused(a, b, c)                  a * b + c
    least(a, b), most(a, b)         the smaller, the larger one, by element
    exceeds(a, b), reaches(a, b)    1 where a > b, a >= b, else 0, by element
    total(v)                        the sum of its elements

`load_native`, `store_native` and `splat_native` are the same with as many elements as one register of this processor
has, NATIVE: for products of matrices, whose sums must all stay in registers.

A whole row of k numbers is one value, too, of a type of its own for each k, so that a kernel is compiled for its width:

    of = of_width(k)                outside of the kernel: an argument whose type is the width
    v = load_row(x, row, of)        x (R, k) float32, C-contiguous
    store_row(x, row, v)
    splat_row(number, of)           + - * / fused total as above
    root(v)                         the square root, by element
    four(a, b, c, d), part(v, n)    four numbers as a vector; its n-th element, n a constant
    totals(a, b, c, d)              the sums of four rows, as a vector of four: with half the instructions of `total`

At the end other instructions that Python cannot express. `ask_ahead` prefetches an upcoming sample: in random order the
hardware sees no pattern, and the kernel would wait for each row. On imdb's bag of words this doubled the speed of
random order, and cost 2 % if the rows are neighbours. `ask_for` prefetches an upcoming row of a table. A short rule has
several rows in flight at once; a longer one (a root, a division, a draw) fills the processor's window with one row and
waits for each: with prefetching Adagrad over rows became three times as fast. `fused_product` is a product and a sum,
rounded once: BLAS, used by torch's sparse additions, is written with it; a compiler that may choose freely gives other
bits in the last columns of a row."""

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic, overload, register_jitable

from hogwild.kernels.compiling import exact, inlined, numba_config

WIDTH = 16  # float32 in the widest vector of today's processors: 64 bytes, a cache line
_FAST = ("nsz", "arcp", "contract", "afn", "reassoc")  # as in every kernel: NaN and infinity are preserved
_vector = partial(ir.VectorType, ir.FloatType())
_VECTOR = _vector(WIDTH)
_WORDS, _MASK = ir.VectorType(ir.IntType(64), WIDTH), ir.VectorType(ir.IntType(1), WIDTH)


class Float32s(types.Type):
    """The numba type of a vector of `count` float32. It has `lanes` elements, a power of two: those beyond `count` are
    0 when it is read, and are not written."""

    def __init__(self, count: int) -> None:
        self.count, self.lanes = count, 1 << max(0, count - 1).bit_length()
        super().__init__(name=f"Float32x{count}")


float32x16 = Float32s(WIDTH)
_FEATURES = numba_config.CPU_FEATURES  # to compile for, from numba's environment; None: this processor's
NATIVE = 16 if "+avx512f" in (binding.get_host_cpu_features().flatten() if _FEATURES is None else _FEATURES) else 8


@register_default(Float32s)
class _VectorModel(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _vector(fe_type.lanes))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an intrinsic. mypy sees the plain function: it is called only inside kernels, without the first argument."""
    return intrinsic(function)


@register_jitable
def padded(width: int) -> int:
    """Return the smallest multiple of WIDTH that is at least `width`; also in a kernel."""
    return -(-width // WIDTH) * WIDTH


def zeros_on_lines(rows: int, width: int) -> np.ndarray:
    """Return (rows, width) float32 zeros on cache lines: a vector that crosses a line is read and written in two
    parts."""
    whole = np.zeros(rows * width + WIDTH, np.float32)
    skip = -(whole.ctypes.data // 4) % WIDTH
    return whole[skip : skip + rows * width].reshape(rows, width)


def _is_table(array: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype == types.float32 and (array.ndim, array.layout) == (2, "C")


def _has_rows(array: Any) -> bool:
    """Return whether it is a table, or columns of one: rows apart ("A"), the numbers of each side by side."""
    of_table = isinstance(array, types.Array) and array.dtype == types.float32 and array.ndim == 2
    return bool(of_table and array.layout in ("C", "A"))


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any = _VECTOR) -> Any:
    """Return the pointer to the vector at (array, row, column), the first three of `args`."""
    array = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    at = builder.add(builder.mul(args[1], width), args[2])
    return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())


def of_width(count: int) -> np.ndarray:
    """Return an argument for a kernel whose type is the width `count`."""
    return np.empty(0, f"S{count}")


def _parts(context: Any, builder: Any, signature: Any, args: Any, count: int) -> Iterator[tuple[int, int, Any]]:
    """Yield (first element, elements, pointer) of the parts of row args[1] of the table args[0]: powers of two, the
    longest first. One load of, say, 50 elements would become fifty."""
    array = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
    width = ir.Constant(ir.IntType(64), count)
    if signature.args[0].layout == "A":
        width = builder.ashr(cgutils.unpack_tuple(builder, array.strides)[0], ir.Constant(ir.IntType(64), 2))
    row = builder.gep(array.data, [builder.mul(args[1], width)])
    first = 0
    while first < count:
        size = 1 << (count - first).bit_length() - 1
        pointer = builder.gep(row, [ir.Constant(ir.IntType(64), first)])
        yield first, size, builder.bitcast(pointer, _vector(size).as_pointer())
        first += size


def _shuffled(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """Return the elements `places` of a and b, one after the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))


@instruction
def load_row(typing, array, row, of):  # type: ignore[no-untyped-def]
    kind = Float32s(of.dtype.count)
    lanes, number = kind.lanes, range(kind.lanes)

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        whole = ir.Constant(_vector(lanes), [0.0] * lanes)
        for first, size, pointer in _parts(context, builder, signature, args, kind.count):
            piece = builder.load(pointer, align=4)
            if size == lanes:
                return piece
            undefined = ir.Constant(_vector(size), ir.Undefined)
            piece = _shuffled(
                builder, piece, undefined, [n - first if first <= n < first + size else 0 for n in number]
            )
            whole = _shuffled(builder, whole, piece, [n + lanes * (first <= n < first + size) for n in number])
        return whole

    return (kind(array, types.int64, of), code) if _has_rows(array) else None


@instruction
def store_row(typing, array, row, value):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for first, size, pointer in _parts(context, builder, signature, args, value.count):
            piece = args[2]
            if size < value.lanes:
                piece = _shuffled(builder, piece, ir.Constant(piece.type, ir.Undefined), [*range(first, first + size)])
            builder.store(piece, pointer, align=4)
        return context.get_dummy_value()

    return (types.void(array, types.int64, value), code) if _has_rows(array) else None


def _splatted(builder: Any, number: Any, lanes: int) -> Any:
    undefined = ir.Constant(_vector(lanes), ir.Undefined)
    one = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return _shuffled(builder, one, undefined, [0] * lanes)


@instruction
def splat_row(typing, number, of):  # type: ignore[no-untyped-def]
    kind = Float32s(of.dtype.count)

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _splatted(builder, args[0], kind.lanes)

    return kind(types.float32, of), code


def _of(kind: Float32s) -> tuple[Any, Any, Any]:
    """Return (load, store, splat) of vectors of this type."""

    @instruction
    def load(typing, array, row, column):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.load(_pointer(context, builder, signature, args, _vector(kind.lanes)), align=4)

        return (kind(array, types.int64, types.int64), code) if _is_table(array) else None

    @instruction
    def store(typing, array, row, column, value):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            builder.store(args[3], _pointer(context, builder, signature, args, _vector(kind.lanes)), align=4)
            return context.get_dummy_value()

        return (types.void(array, types.int64, types.int64, kind), code) if _is_table(array) else None

    @instruction
    def splat(typing, number):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _splatted(builder, args[0], kind.lanes)

        return kind(types.float32), code

    return load, store, splat


load, store, splat = _of(float32x16)
load_native, store_native, splat_native = _of(Float32s(NATIVE))


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
def fused(typing, a, b, c):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fadd(builder.fmul(args[0], args[1], flags=_FAST), args[2], flags=_FAST)

    return (a(a, a, a), code) if a == b == c else None


@instruction
def root(typing, a):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _root(builder, args[0])

    return a(a), code


@instruction
def four(typing, a, b, c, d):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        made = ir.Constant(_vector(4), ir.Undefined)
        for place, number in enumerate(args):
            made = builder.insert_element(made, number, ir.Constant(ir.IntType(32), place))
        return made

    return Float32s(4)(*[types.float32] * 4), code


@instruction
def part(typing, a, place):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), place.literal_value))

    return (types.float32(a, place), code) if isinstance(place, types.IntegerLiteral) else None


@instruction
def totals(typing, a, b, c, d):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        parts = list(args)
        while len(parts) > 1:  # two vectors become one: the halves of the first added, then those of the second
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [_halves_added(builder, *pair, 4 // len(parts)) for pair in pairs]
        (made,) = parts
        while made.type.count > 4:
            made = _halves_added(builder, made, None, 4)
        return made

    return (Float32s(4)(a, a, a, a), code) if a == b == c == d and a.lanes >= 4 else None


def _halves_added(builder: Any, a: Any, b: Any, pieces: int) -> Any:
    """Return, for every of the `pieces` equal pieces of a, then for those of b, the sum of its halves."""
    size = a.type.count // pieces
    lower = [piece * size + n for piece in range(pieces * (1 if b is None else 2)) for n in range(size // 2)]
    other = ir.Constant(a.type, ir.Undefined) if b is None else b
    halves = [_shuffled(builder, a, other, [n + shift for n in lower]) for shift in (0, size // 2)]
    return builder.fadd(*halves, flags=_FAST)


def _root(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(vector.type, [vector.type])
    call = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{vector.type.count}f32")
    return builder.call(call, [vector], fastmath=("nsz", "contract", "reassoc"))


@instruction
def total(typing, a):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _vector(a.lanes)])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{a.lanes}f32")
        return builder.call(add, [ir.Constant(ir.FloatType(), -0.0), args[0]], fastmath=_FAST)

    return types.float32(a), code


def _by_element(emit: Callable[[Any, Any, Any], Any]) -> Any:
    @instruction
    def apply(typing, a, b):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return emit(builder, *args)

        return (a(a, a), code) if a == b else None

    return apply


def _choose(comparison: str) -> Callable[[Any, Any, Any], Any]:
    return lambda builder, a, b: builder.select(builder.fcmp_ordered(comparison, a, b), a, b)


def _ones_where(comparison: str) -> Callable[[Any, Any, Any], Any]:
    def emit(builder: Any, a: Any, b: Any) -> Any:
        one, zero = (ir.Constant(a.type, [number] * a.type.count) for number in (1.0, 0.0))
        return builder.select(builder.fcmp_ordered(comparison, a, b), one, zero)

    return emit


least, most = _by_element(_choose("<")), _by_element(_choose(">"))
exceeds, reaches = _by_element(_ones_where(">")), _by_element(_ones_where(">="))
_plus = _by_element(lambda builder, a, b: builder.fadd(a, b, flags=_FAST))
_minus = _by_element(lambda builder, a, b: builder.fsub(a, b, flags=_FAST))
_times = _by_element(lambda builder, a, b: builder.fmul(a, b, flags=_FAST))
_over = _by_element(lambda builder, a, b: builder.fdiv(a, b, flags=_FAST))


def _operator(symbol: Callable[[Any, Any], Any], apply: Any) -> None:
    @overload(symbol, inline="never")
    def between(a, b):  # type: ignore[no-untyped-def]
        return (lambda a, b: apply(a, b)) if isinstance(a, Float32s) and a == b else None


_operator(operator.add, _plus)
_operator(operator.sub, _minus)
_operator(operator.mul, _times)
_operator(operator.truediv, _over)


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
