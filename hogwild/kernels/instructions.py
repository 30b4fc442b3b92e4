"""Two instructions of the processor that Python has no word for.

`ask_for`: which row comes soon. Rows of a table larger than the caches are read at random, and each costs a trip to
memory. A short rule has several rows in flight at once; a longer one (a root, a division, a draw) fills the processor's
window with one row and waits for each. Asked for some rows ahead, they are there when their turn comes: Adagrad over
rows became three times as fast.

`fused_product`: a product and a sum rounded once. BLAS, behind torch's sparse additions, is written with it, and a
compiler that may use it where it likes gives other bits in the last columns of a row."""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hogwild.kernels.compiling import exact

LINE = 16  # numbers of float32: 64 bytes, one request each


@intrinsic
def _request(typing_context, table, row, column):  # type: ignore[no-untyped-def]
    """LLVM's prefetch of `table[row, column]`, for writing, into every cache."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, arguments[1:], wraparound=False)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        request = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(request, [builder.bitcast(place, byte), number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


@intrinsic
def _fma(typing_context, a, x, y):  # type: ignore[no-untyped-def]
    """LLVM's fma of three numbers of one type."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return y(y, y, y), generate


@exact
def ask_for(table, row):  # type: ignore[no-untyped-def]
    """Row `row` of `table` (R, D) float32 will be read and written soon. A hint: nothing is read, whatever `row` is."""
    for column in range(0, table.shape[1], LINE):
        _request(table, row, column)  # type: ignore[call-arg]


@exact
def fused_product(a, x, y):  # type: ignore[no-untyped-def]
    """a x + y, rounded once; float32."""
    return _fma(a, x, y)  # type: ignore[call-arg]
