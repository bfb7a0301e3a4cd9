"""Small kernels that the emulator's tests run."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows"])
def rms_rows(X, Y, n_rows, n_cols: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """RMSNorm without a weight, ROWS rows a tile."""
    cols = tl.arange(0, BLOCK)
    for start in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
        x = tl.load(X + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, axis=1) * (1.0 / n_cols) + 1e-6)[:, None]
        tl.store(Y + rows[:, None] * n_cols + cols[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n"])
def double(X, Y, n, BLOCK: tl.constexpr):
    """y = 2 x over a flat array."""
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(Y + at, tl.load(X + at, mask=at < n, other=0.0) * 2.0, mask=at < n)


@triton.jit
def write_twice(X, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), n // BLOCK, tl.num_programs(0)):
        x = tl.load(X + tile * BLOCK + lane)
        tl.store(X + tile * BLOCK + lane, x + 1.0)
        tl.store(X + tile * BLOCK + lane, x + 2.0)


@triton.jit
def without_padding(X, Y, n, BLOCK: tl.constexpr):
    """Reads the lanes that its mask left unwritten, and stores them too (care_padding: triton-ascend 3.2.0)."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, mask=at < n, care_padding=False) * 2.0)


@triton.jit
def past_the_end(X, Y, BLOCK: tl.constexpr):
    """Loads BLOCK elements whatever X holds."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at) * 2.0)


@triton.jit
def all_write_row_0(X, Y, BLOCK: tl.constexpr):
    """Every program stores its row over row 0."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + tl.program_id(0) * BLOCK + at) * 2.0)


@triton.jit
def all_add_to_row_0(X, Y, BLOCK: tl.constexpr):
    """Every program adds its row to row 0, atomically."""
    at = tl.arange(0, BLOCK)
    tl.atomic_add(Y + at, tl.load(X + tl.program_id(0) * BLOCK + at))


@triton.jit
def read_a_neighbour(X, BLOCK: tl.constexpr):
    """Every program reads the row that the next one overwrites."""
    at = tl.arange(0, BLOCK)
    row = tl.load(X + (tl.program_id(0) + 1) * BLOCK + at)
    tl.store(X + tl.program_id(0) * BLOCK + at, row * 2.0)


@triton.jit
def product(A, B, C, SIZE: tl.constexpr):
    """A matrix product: a kernel for the cube core."""
    at = tl.arange(0, SIZE)
    where = at[:, None] * SIZE + at[None, :]
    tl.store(C + where, tl.dot(tl.load(A + where), tl.load(B + where)))


@triton.jit
def partial_sums(P, OUT, count, width, BLOCK: tl.constexpr):
    """Column sums, row by row, over several tiles: bishengir-compile 1.2.0 leaves two additions without a barrier between them."""
    tiles = tl.cdiv(width, BLOCK)
    each = tl.cdiv(tiles, tl.num_programs(0))
    first = tl.program_id(0) * each
    for tile in range(first, tl.minimum(first + each, tiles)):
        columns = tile * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for row in range(count):
            total += tl.load(P + row * width + columns, mask=columns < width, other=0.0)
        tl.store(OUT + columns, total, mask=columns < width)


@triton.jit
def floor_ceil_sine(X, Y, FIRST, BLOCK: tl.constexpr):
    """floor, ceil and sin of a row, and the floor of its first element alone."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at)
    tl.store(Y + at, tl.floor(x))
    tl.store(Y + BLOCK + at, tl.ceil(x))
    tl.store(Y + 2 * BLOCK + at, tl.sin(x))
    tl.store(FIRST, tl.floor(tl.load(X)))


@triton.jit
def wrap_64(X, Y, HASHED, BLOCK: tl.constexpr):
    """64-bit arithmetic that overflows: on a tile, and on a number per program."""
    at = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(Y + at, tl.load(X + at) * 3 + 1)
    seed = tl.program_id(0).to(tl.int64) + 12345
    tl.store(HASHED + tl.program_id(0), (seed * 6364136223846793005 + 1442695040888963407) >> 33)


@triton.jit
def narrow_64(X, Y, BLOCK: tl.constexpr):
    """64-bit integers in 32 bits."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at).to(tl.int32))


@triton.jit(do_not_specialize=["n"])
def stride_2_to_3(X, Y, n, BLOCK: tl.constexpr):
    """Every second element of X to every third of Y."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at * 3, tl.load(X + at * 2, mask=at < n), mask=at < n)


@triton.jit(do_not_specialize=["n_rows"])
def soft_threshold(X, Y, n_rows, n_cols: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """|x| where it exceeds one half, else 0: several masks of one padded 2-D tile."""
    cols = tl.arange(0, BLOCK)[None, :]
    for tile in range(TILES):
        rows = tile * ROWS + tl.arange(0, ROWS)[:, None]
        mask = (rows < n_rows) & (cols < n_cols)
        x = tl.load(X + rows * n_cols + cols, mask=mask, other=0.0)
        tl.store(Y + rows * n_cols + cols, tl.where(x > 0.5, x, tl.where(x < -0.5, -x, 0.0)), mask=mask)


@triton.jit(do_not_specialize=["reader"])
def add_and_read(X, Y, SEEN, reader, BLOCK: tl.constexpr):
    """Every program adds its row to Y, atomically; one reads the sum, with no order between it and the others."""
    at = tl.arange(0, BLOCK)
    tl.atomic_add(Y + at, tl.load(X + tl.program_id(0) * BLOCK + at))
    if tl.program_id(0) == reader:
        tl.store(SEEN + at, tl.load(Y + at))


@triton.jit(do_not_specialize=["trips"])
def divide_and_shift(NUMBERS, RESULTS, trips):
    """A quotient and a shift of numbers from GM, in a loop that may not run."""
    dividend, divisor, count = tl.load(NUMBERS), tl.load(NUMBERS + 1), tl.load(NUMBERS + 2)
    for _ in range(trips):
        tl.store(RESULTS, dividend // divisor)
        tl.store(RESULTS + 1, dividend << count)


@triton.jit(do_not_specialize=["low", "high"])
def between(X, Y, low, high, BLOCK: tl.constexpr):
    """The elements from `low` to `high`."""
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, mask=(at >= low) & (at < high), other=0.0))


@triton.jit
def halve_until_small(X, Y, BLOCK: tl.constexpr):
    """A loop that ends when the data say so."""
    x = tl.load(X + tl.arange(0, BLOCK))
    while tl.sum(x) > 0.5:
        x = x * 0.5
    tl.store(Y + tl.arange(0, BLOCK), x)


@triton.jit
def part_words(X, LOW, SWAPPED, BLOCK: tl.constexpr):
    """Words of two bf16 numbers: the lower one as fp32, and the word with both exchanged."""
    x = tl.load(X + tl.arange(0, BLOCK))
    tl.store(LOW + tl.arange(0, BLOCK), (x << 16).to(tl.float32, bitcast=True))
    tl.store(SWAPPED + tl.arange(0, BLOCK), (x << 16) | (((x & -65536) >> 16) & 65535))


@triton.jit
def shift_right(X, Y, BLOCK: tl.constexpr):
    tl.store(Y + tl.arange(0, BLOCK), tl.load(X + tl.arange(0, BLOCK)) >> 3)


@triton.jit(do_not_specialize=["n_rows"])
def gather_rows(X, ROWS_OF, Y, n_rows, n_cols: tl.constexpr, ROWS: tl.constexpr):
    cols = tl.arange(0, n_cols)[None, :]
    lane = tl.arange(0, ROWS)
    per_program = n_rows // tl.num_programs(0)
    first = tl.program_id(0) * per_program
    for row in range(first, first + per_program, ROWS):
        picked = tl.load(ROWS_OF + row + lane)
        tl.store(Y + row * n_cols + (lane[:, None] * n_cols + cols), tl.load(X + (picked[:, None] * n_cols + cols)))


@triton.jit
def count_from_memory(COUNT, Y, BLOCK: tl.constexpr):
    for tile in range(tl.load(COUNT)):
        tl.store(Y + tile * BLOCK + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))
