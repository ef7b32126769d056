/* Everything that a pass over a text reads off coefficients, in one pass over a block of them: peaks, lows, how many are
   above zero, sums, squares, histograms. compiled_sweep.py calls it and says what is what; where nothing could be
   compiled, observer.py has PyTorch do the same, number for number. So additions are in PyTorch's order (a cascade:
   sixteen numbers make one of the next level), and products are rounded before they are added (-ffp-contract=off). */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "processors.h"

enum {
    TILE = 256, /* memories at a time, whose measures the first cache holds */
    AHEAD = 8, /* places that are asked for before they are read: a block comes from far away, a row here, a row there */
    LINE = 64, /* bytes that come together */
    LEVELS = 4,
    BINS = 36, /* memory.py: below -2**6, ..., from -2**-10, from zero, from 2**-10, ..., from 2**6 */
    ZERO = 18, /* the bin from zero to 2**-10 */
    LEAST = 116, /* exponent bits of what is below 2**-10, and of 2**6 */
    MOST = 133
};

/* A sum in PyTorch's order. `power`: so many numbers, as a power of two, make one of the next level; `done` counts the
   numbers with this one. */
#define CASCADE(NAME, TYPE) \
    typedef struct { TYPE level[LEVELS][TILE]; } NAME; \
    INLINE void add_##NAME(NAME *sum, const TYPE *numbers, int width, int64_t done, int power) \
    { \
        const int64_t mask = ((int64_t)1 << power) - 1; \
        for (int m = 0; m < width; m++) sum->level[0][m] += numbers[m]; \
        if (done & mask) return; \
        for (int j = 1; j < LEVELS; j++) { \
            for (int m = 0; m < width; m++) { \
                sum->level[j][m] += sum->level[j - 1][m]; \
                sum->level[j - 1][m] = 0; \
            } \
            if (done & (mask << (j * power))) return; \
        } \
    } \
    INLINE void write_##NAME(const NAME *sum, TYPE *to, int width) \
    { \
        for (int m = 0; m < width; m++) \
            to[m] = ((sum->level[0][m] + sum->level[1][m]) + sum->level[2][m]) + sum->level[3][m]; \
    }
CASCADE(narrow, float)
CASCADE(wide, double)

/* Asks for numbers that will be read; what lies beyond the block does no harm. */
INLINE void ask_for(const void *block, int half, int64_t at, int width)
{
#ifdef __GNUC__
    const int size = half ? 2 : 4;
    const uintptr_t from = (uintptr_t)block + (uintptr_t)(at * size);
    for (int byte = 0; byte < width * size; byte += LINE) __builtin_prefetch((const void *)(from + (uintptr_t)byte));
#endif
}

/* Numbers as float32; `half`: they are bfloat16, the upper halves. */
INLINE void read_numbers(float *numbers, const void *block, int half, int64_t at, int width)
{
    if (half) {
        const uint16_t *from = (const uint16_t *)block + at;
        uint32_t bits[TILE];
        for (int m = 0; m < width; m++) bits[m] = (uint32_t)from[m] << 16;
        memcpy(numbers, bits, sizeof *bits * (size_t)width);
    } else {
        memcpy(numbers, (const float *)block + at, sizeof *numbers * (size_t)width);
    }
}

/* Raises one counter of each memory. The bin of a number is in its exponent; a negative power of two is the end of its
   bin, so its bits are lowered by one. */
INLINE void count_bins(uint16_t *counted, const float *numbers, int width)
{
    int32_t bits[TILE];
    uint16_t counter[TILE];
    memcpy(bits, numbers, sizeof *bits * (size_t)width);
    for (int m = 0; m < width; m++) {
        const int32_t size = bits[m] & 0x7fffffff;
        const int32_t below = (bits[m] < 0) & (size != 0);
        int32_t power = (size - below) >> 23;
        power = (power < LEAST ? LEAST : power > MOST ? MOST : power) - LEAST;
        counter[m] = (uint16_t)(m * BINS + (below ? ZERO - 1 - power : ZERO + power));
    }
    for (int m = 0; m < width; m++) counted[counter[m]]++;
}

INLINE void add_counts(int64_t *counts, uint16_t *counted, int width)
{
    for (int n = 0; n < width * BINS; n++) counts[n] += counted[n];
    memset(counted, 0, sizeof *counted * (size_t)(width * BINS));
}

/* Measures `block [row, place, memory]`, whose rows and places lie so many numbers apart and whose memories are
   neighbours; at least one place. `peaks`, `lows`, the first places where these stand, `above` and one of the sums are
   [row, memory] without gaps; with `squares` sums are float64. NULL `low_places`: nobody asks for them; NULL `peaks`:
   none of these are measured. To `counts [memory, bin]` is added; NULL: no
   bins are counted. The number in its name goes up with what it is given, so that a library compiled
   of older code is left alone. */
FOR_EACH_PROCESSOR
void sweep_block_3(const void *block, int64_t half, int64_t rows, int64_t places, int64_t memories, int64_t row_apart,
                   int64_t place_apart, float *peaks, float *lows, int32_t *peak_places, int32_t *low_places,
                   float *above, float *sums, double *wide_sums, double *squares, int64_t *counts)
{
    const int is_half = half != 0;
    int power = 4;
    while (((int64_t)1 << (4 * (power + 1) - 1)) < places) power++;
    for (int64_t first = 0; first < memories; first += TILE) {
        const int width = memories - first < TILE ? (int)(memories - first) : TILE;
        uint16_t counted[TILE * BINS];
        int64_t waiting = 0;
        memset(counted, 0, sizeof counted);
        for (int64_t row = 0; row < rows; row++) {
            const int64_t to = row * memories + first;
            float numbers[TILE], high[TILE], low[TILE], positive[TILE];
            int32_t high_place[TILE], low_place[TILE];
            narrow sum;
            wide wide_sum, square;
            for (int m = 0; m < TILE; m++) {
                high[m] = -INFINITY;
                low[m] = INFINITY;
                positive[m] = 0;
                high_place[m] = low_place[m] = 0;
            }
            memset(&sum, 0, sizeof sum);
            if (squares) {
                memset(&wide_sum, 0, sizeof wide_sum);
                memset(&square, 0, sizeof square);
            }
            for (int64_t place = 0; place < places; place++) {
                const int64_t at = row * row_apart + place * place_apart + first;
                ask_for(block, is_half, at + AHEAD * place_apart, width);
                read_numbers(numbers, block, is_half, at, width);
                if (peaks) {
                    const int32_t here = (int32_t)place;
                    for (int m = 0; m < width; m++) {
                        high_place[m] = numbers[m] > high[m] ? here : high_place[m];
                        high[m] = high[m] > numbers[m] ? high[m] : numbers[m];
                        low_place[m] = numbers[m] < low[m] ? here : low_place[m];
                        low[m] = low[m] < numbers[m] ? low[m] : numbers[m];
                        positive[m] += numbers[m] > 0 ? 1.0f : 0.0f;
                    }
                    if (squares) {
                        double number[TILE], squared[TILE];
                        for (int m = 0; m < width; m++) {
                            number[m] = numbers[m];
                            squared[m] = number[m] * number[m];
                        }
                        add_wide(&wide_sum, number, width, place + 1, power);
                        add_wide(&square, squared, width, place + 1, power);
                    } else {
                        add_narrow(&sum, numbers, width, place + 1, power);
                    }
                }
                if (counts) {
                    count_bins(counted, numbers, width);
                    if (++waiting == UINT16_MAX) {
                        add_counts(counts + first * BINS, counted, width);
                        waiting = 0;
                    }
                }
            }
            if (!peaks) continue;
            memcpy(peaks + to, high, sizeof *high * (size_t)width);
            memcpy(lows + to, low, sizeof *low * (size_t)width);
            memcpy(peak_places + to, high_place, sizeof *high_place * (size_t)width);
            if (low_places) memcpy(low_places + to, low_place, sizeof *low_place * (size_t)width);
            memcpy(above + to, positive, sizeof *positive * (size_t)width);
            if (squares) {
                write_wide(&wide_sum, wide_sums + to, width);
                write_wide(&square, squares + to, width);
            } else {
                write_narrow(&sum, sums + to, width);
            }
        }
        if (counts) add_counts(counts + first * BINS, counted, width);
    }
}
