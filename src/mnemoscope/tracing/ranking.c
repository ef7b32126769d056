/* What comparing the scores of a row says: the best tokens, the worst, and ranks. ranking.py says what is what.

   The tokens of each quarter of a row are dealt to a quarter of LANES lanes, in turn. The `count`-th best of the lanes' maxima
   is reached by at least `count` scores, and by few more: one sweep takes the maxima and minima, and one picks out what
   reaches the limits. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "processors.h"
#include "reading.h"

enum {
    LANES = 128,
    TOGETHER = 32, /* lanes of one stretch of a row; a divisor of LANES */
    NEAR = 4, /* maxima beyond `count` that a limit may let pass */
    COLUMNS = 32,
    LINES = 8,
    PART = LINES * COLUMNS, /* tokens that are compared with the limits before any is picked out */
    WIDTH = 8, /* numbers of one vector: half as many of 64 bits */
    ABREAST = 4, /* vectors that are counted side by side */
    COUNTED = 1 << 20, /* scores that are counted in 32 bits, a multiple of those of ABREAST vectors */
    ROOM = 512 /* candidates at most: more than `count` + PART, and enough that it is full only where many scores tie */
};

typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef int64_t longs __attribute__((vector_size(32)));

/* Integers that ascend with the numbers; of -0.0 that of 0.0. */
INLINE int32_t ascending(float number)
{
    int32_t bits;
    number += 0.0f;
    memcpy(&bits, &number, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

INLINE float number_of(int32_t ascending)
{
    const int32_t bits = ascending ^ ((ascending >> 31) & 0x7fffffff);
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* What at least `count` of the lanes' maxima reach, and few more. */
INLINE float limit_of(const float *maxima, int count)
{
    int32_t key[LANES], least = INT32_MAX, most = INT32_MIN;
    for (int n = 0; n < LANES; n++) {
        key[n] = ascending(maxima[n]);
        least = key[n] < least ? key[n] : least;
        most = key[n] > most ? key[n] : most;
    }
    while (least < most) {
        const int32_t middle = (int32_t)(((int64_t)least + most + 1) >> 1);
        int32_t reaching = 0;
        for (int n = 0; n < LANES; n++) reaching += key[n] >= middle;
        if (reaching < count) {
            most = middle - 1;
        } else {
            least = middle;
            if (reaching <= count + NEAR) break;
        }
    }
    return number_of(least);
}

/* Candidates for one end of a row: keys that ascend as the best first, of equal scores the lower token. */
typedef struct {
    int64_t key[ROOM + WIDTH];
    int found;
} candidates;

/* Leaves the `count` best of the candidates, in order. */
INLINE void sort(candidates *all, int count)
{
    int64_t best[ROOM + 1];
    const int found = all->found;
    for (int n = 0; n < WIDTH; n++) all->key[found + n] = INT64_MAX; /* behind the last, as often as there are */
    for (int first = 0; first < found; first += WIDTH) {
        longs one, two, before_one = {0}, before_two = {0};
        memcpy(&one, all->key + first, sizeof one);
        memcpy(&two, all->key + first + WIDTH / 2, sizeof two);
        for (int other = 0; other < found; other++) {
            before_one -= all->key[other] < one;
            before_two -= all->key[other] < two;
        }
        for (int n = 0; n < WIDTH / 2; n++) best[before_one[n]] = one[n];
        for (int n = 0; n < WIDTH / 2; n++) best[before_two[n]] = two[n];
    }
    all->found = found < count ? found : count;
    memcpy(all->key, best, sizeof *best * (size_t)all->found);
}

/* Room for what passes in one part more: what was found is cut to the `count` best, and what only equals the last of them,
   further on in the row, is none; so the limit is what lies beyond it. */
INLINE void make_room(candidates *all, int count, int high, float *limit)
{
    if (all->found < ROOM - PART) return;
    sort(all, count);
    const int32_t last = (int32_t)(all->key[count - 1] >> 32);
    *limit = nextafterf(number_of(high ? ~last : last), high ? INFINITY : -INFINITY);
}

INLINE void write(const candidates *all, const float *row, int count, int64_t *tokens, float *scores)
{
    for (int n = 0; n < count; n++) {
        tokens[n] = all->key[n] & 0xffffffff;
        scores[n] = row[tokens[n]];
    }
}

INLINE void widen(float score, int high, float *most, int low, float *least, int32_t *odd)
{
    if (high) *most = score > *most ? score : *most;
    if (low) *least = score < *least ? score : *least;
    *odd |= score != score;
}

/* The maxima and minima of the lanes, those that are asked for, a stretch of the row at a time, so that the extremes of its
   lanes stay in registers; whether all scores are numbers. */
INLINE int read_extremes(const float *row, int64_t vocabulary, int high, int low, float *maxima, float *minima)
{
    const int64_t stretch = (vocabulary + LANES - 1) / LANES * TOGETHER;
    int32_t strange = 0;
    for (int lane = 0; lane < LANES; lane += TOGETHER) {
        float most[TOGETHER], least[TOGETHER];
        int32_t odd[TOGETHER];
        int64_t first = stretch * (lane / TOGETHER), end = first + stretch < vocabulary ? first + stretch : vocabulary;
        for (int n = 0; n < TOGETHER; n++) {
            most[n] = -INFINITY;
            least[n] = INFINITY;
            odd[n] = 0;
        }
        for (; first + TOGETHER <= end; first += TOGETHER)
            for (int n = 0; n < TOGETHER; n++) widen(row[first + n], high, most + n, low, least + n, odd + n);
        for (int n = 0; first + n < end; n++) widen(row[first + n], high, most + n, low, least + n, odd + n);
        for (int n = 0; n < TOGETHER; n++) {
            maxima[lane + n] = most[n];
            minima[lane + n] = least[n];
            strange |= odd[n];
        }
    }
    return !strange;
}

/* Which scores of a part reach the limits: of column n, score `line * COLUMNS + n` as bit `line` where it is among the
   high, as bit `line + LINES` among the low. Returns whether any does. */
INLINE int compare(const float *scores, int high, float from, int low, float to, int32_t *passes)
{
    longs any = {0};
    for (int column = 0; column < COLUMNS; column += WIDTH) {
        ints found = {0};
        for (int line = 0; line < LINES; line++) {
            floats own;
            memcpy(&own, scores + line * COLUMNS + column, sizeof own);
            if (high) found |= (own >= from) & (1 << line);
            if (low) found |= (own <= to) & (1 << (line + LINES));
        }
        memcpy(passes + column, &found, sizeof found);
        any |= (longs)found;
    }
    return (any[0] | any[1] | any[2] | any[3]) != 0;
}

INLINE int compare_some(const float *scores, int width, int high, float from, int low, float to, int32_t *passes)
{
    float all[PART];
    for (int n = 0; n < PART; n++) all[n] = n < width ? scores[n] : NAN;
    return compare(all, high, from, low, to, passes);
}

/* What `read_row_ends` does, of one kind of request. */
INLINE int read_ends(const float *row, int64_t vocabulary, int high, int64_t *high_tokens, float *high_scores, int low,
                     int64_t *low_tokens, float *low_scores)
{
    float maxima[LANES], minima[LANES];
    if (!read_extremes(row, vocabulary, high, low, maxima, minima)) return 0;
    candidates best, worst;
    best.found = worst.found = 0;
    float from = high ? limit_of(maxima, high) : 0, to = 0;
    if (low) {
        for (int n = 0; n < LANES; n++) minima[n] = -minima[n];
        to = -limit_of(minima, low);
    }
    for (int64_t first = 0; first < vocabulary; first += PART) {
        const int width = vocabulary - first < PART ? (int)(vocabulary - first) : PART;
        const float *scores = row + first;
        int32_t passes[COLUMNS];
        uint32_t columns = 0;
        const int any = width == PART ? compare(scores, high, from, low, to, passes)
                                      : compare_some(scores, width, high, from, low, to, passes);
        if (!any) continue;
        for (int n = 0; n < COLUMNS; n++) columns |= (uint32_t)(passes[n] != 0) << n;
        if (high) make_room(&best, high, 1, &from);
        if (low) make_room(&worst, low, 0, &to);
        for (; columns; columns &= columns - 1) {
            const int column = __builtin_ctz(columns);
            for (uint32_t rest = (uint32_t)passes[column]; rest; rest &= rest - 1) {
                const int bit = __builtin_ctz(rest), n = bit % LINES * COLUMNS + column;
                const int32_t key = ascending(scores[n]);
                const int64_t token = first + n;
                if (high) {
                    best.key[best.found] = (int64_t)((uint64_t)(int64_t)~key << 32) | token;
                    best.found += bit < LINES;
                }
                if (low) {
                    worst.key[worst.found] = (int64_t)((uint64_t)(int64_t)key << 32) | token;
                    worst.found += bit >= LINES;
                }
            }
        }
    }
    if (high) {
        sort(&best, high);
        write(&best, row, high, high_tokens, high_scores);
    }
    if (low) {
        sort(&worst, low);
        write(&worst, row, low, low_tokens, low_scores);
    }
    return 1;
}

FOR_EACH_PROCESSOR
static int read_asked_ends(const float *row, int64_t vocabulary, int high, int64_t *high_tokens, float *high_scores, int low,
                           int64_t *low_tokens, float *low_scores)
{
    if (high && low) return read_ends(row, vocabulary, high, high_tokens, high_scores, low, low_tokens, low_scores);
    if (high) return read_ends(row, vocabulary, high, high_tokens, high_scores, 0, NULL, NULL);
    if (low) return read_ends(row, vocabulary, 0, NULL, NULL, low, low_tokens, low_scores);
    return 1;
}

int read_row_ends(const float *row, int64_t vocabulary, int high, int64_t *high_tokens, float *high_scores, int low,
                  int64_t *low_tokens, float *low_scores)
{
    return read_asked_ends(row, vocabulary, high, high_tokens, high_scores, low, low_tokens, low_scores);
}

/* How many of these scores are above, or equal to, this one; some vectors of 32 bits count side by side. */
INLINE int64_t count_above(const float *scores, int64_t size, float own, int or_equal)
{
    int64_t count = 0, first = 0;
    while (first + ABREAST * WIDTH <= size) {
        const int64_t end = size - first < COUNTED ? size : first + COUNTED;
        ints here[ABREAST] = {{0}};
        for (; first + ABREAST * WIDTH <= end; first += ABREAST * WIDTH)
            for (int n = 0; n < ABREAST; n++) {
                floats some;
                memcpy(&some, scores + first + n * WIDTH, sizeof some);
                here[n] -= or_equal ? some >= own : some > own;
            }
        for (int n = 1; n < ABREAST; n++) here[0] += here[n];
        for (int n = 0; n < WIDTH; n++) count += here[0][n];
    }
    for (; first < size; first++) count += or_equal ? scores[first] >= own : scores[first] > own;
    return count;
}

FOR_EACH_PROCESSOR
static int64_t count_before(const float *row, int64_t vocabulary, int64_t token)
{
    const float own = row[token];
    return count_above(row, token, own, 1) + count_above(row + token + 1, vocabulary - token - 1, own, 0);
}

int64_t rank_in_row(const float *row, int64_t vocabulary, int64_t token)
{
    return count_before(row, vocabulary, token);
}
