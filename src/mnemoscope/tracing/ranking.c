/* What comparing the scores of a row says: the best tokens, the worst, and ranks. ranking.py calls it and says what is what;
   where nothing could be compiled, it has PyTorch do the same.

   The tokens of a row are dealt to LANES lanes, in turn. The `count`-th best of the lanes' maxima is reached by at least
   `count` scores, and by few more: one sweep takes the maxima and minima, and one picks out what reaches the limits. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "processors.h"

enum {
    LANES = 128,
    NEAR = 4, /* maxima beyond `count` that a limit may let pass */
    PART = 256, /* tokens that are compared with the limits before any is picked out */
    WORD = 8,
    ROOM = 512 /* candidates at most: more than `count` + PART, and enough that it is full only where many scores tie */
};

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
    int64_t key[ROOM];
    int found;
} candidates;

/* Leaves the `count` best of the candidates, in order. */
INLINE void sort(candidates *all, int count)
{
    int64_t best[ROOM];
    const int found = all->found;
    for (int n = 0; n < found; n++) {
        int64_t before = 0;
        for (int other = 0; other < found; other++) before += all->key[other] < all->key[n];
        best[before] = all->key[n];
    }
    all->found = found < count ? found : count;
    memcpy(all->key, best, sizeof *best * (size_t)all->found);
}

/* Room for what passes in one part more: what was found is cut to the `count` best, and what only equals the last of them, further on
   in the row, is none; so the limit is what lies beyond it. */
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

/* The ends of one row, of so many tokens each, 0: not asked for; whether all its scores are numbers, else nothing is
   written. */
INLINE int read_ends(const float *row, int64_t vocabulary, int high, int64_t *high_tokens, float *high_scores, int low,
                     int64_t *low_tokens, float *low_scores)
{
    float maxima[LANES], minima[LANES];
    int32_t strange[LANES], is_strange = 0;
    for (int n = 0; n < LANES; n++) {
        maxima[n] = -INFINITY;
        minima[n] = INFINITY;
        strange[n] = 0;
    }
    for (int64_t first = 0; first < vocabulary; first += LANES) {
        const int width = vocabulary - first < LANES ? (int)(vocabulary - first) : LANES;
        const float *scores = row + first;
        if (width == LANES) {
            for (int n = 0; n < LANES; n++) {
                if (high) maxima[n] = scores[n] > maxima[n] ? scores[n] : maxima[n];
                if (low) minima[n] = scores[n] < minima[n] ? scores[n] : minima[n];
                strange[n] |= scores[n] != scores[n];
            }
        } else {
            for (int n = 0; n < width; n++) {
                if (high) maxima[n] = scores[n] > maxima[n] ? scores[n] : maxima[n];
                if (low) minima[n] = scores[n] < minima[n] ? scores[n] : minima[n];
                strange[n] |= scores[n] != scores[n];
            }
        }
    }
    for (int n = 0; n < LANES; n++) is_strange |= strange[n];
    if (is_strange) return 0;
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
        uint8_t passes[PART], words[PART / WORD];
        int32_t any = 0;
        int found = 0;
        if (width == PART) {
            for (int n = 0; n < PART; n++) any |= (high && scores[n] >= from) | (low && scores[n] <= to);
            if (!any) continue;
        } else {
            memset(passes, 0, sizeof passes);
        }
        for (int n = 0; n < width; n++)
            passes[n] = (uint8_t)((high && scores[n] >= from) | (low && scores[n] <= to) << 1);
        if (high) make_room(&best, high, 1, &from);
        if (low) make_room(&worst, low, 0, &to);
        /* Words in which something passes, without branches, since hardly one could be foretold; then what does. */
        for (int word = 0; word < PART / WORD; word++) {
            uint64_t in_word;
            memcpy(&in_word, passes + word * WORD, sizeof in_word);
            words[found] = (uint8_t)word;
            found += in_word != 0;
        }
        for (int each = 0; each < found; each++) {
            uint64_t rest;
            memcpy(&rest, passes + words[each] * WORD, sizeof rest);
            for (; rest; rest &= ~((uint64_t)0xff << (__builtin_ctzll(rest) & ~7))) {
                const int n = words[each] * WORD + __builtin_ctzll(rest) / 8;
                const int32_t key = ascending(scores[n]);
                const int64_t token = first + n;
                if (high) {
                    best.key[best.found] = (int64_t)((uint64_t)(int64_t)~key << 32) | token;
                    best.found += passes[n] & 1;
                }
                if (low) {
                    worst.key[worst.found] = (int64_t)((uint64_t)(int64_t)key << 32) | token;
                    worst.found += passes[n] >> 1;
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

/* How many tokens come before this one: those with more, and of those with as much the ones before it. */
INLINE int64_t rank_in(const float *row, int64_t vocabulary, int64_t token)
{
    const float own = row[token];
    int64_t rank = 0;
    for (int64_t n = 0; n < token; n++) rank += row[n] >= own;
    for (int64_t n = token + 1; n < vocabulary; n++) rank += row[n] > own;
    return rank;
}

/* What was asked, and what is written: of the function below. */
typedef struct {
    const float *scores;
    int64_t rows, vocabulary, apart;
    int high, low;
    int64_t *best;
    float *best_scores;
    int64_t *worst;
    float *worst_scores;
    uint8_t *undecided;
    int64_t of;
    const int64_t *tokens;
    int64_t *ranks;
} request;

FOR_EACH_PROCESSOR
void rank_rows(const request *asked, int64_t begin, int64_t end)
{
    const int high = asked->high, low = asked->low;
    for (int64_t n = begin; n < end; n++) {
        const float *row = asked->scores + n * asked->apart;
        int64_t *best = high ? asked->best + n * high : NULL, *worst = low ? asked->worst + n * low : NULL;
        float *best_scores = high ? asked->best_scores + n * high : NULL;
        float *worst_scores = low ? asked->worst_scores + n * low : NULL;
        int read = 1;
        if (high && low) /* three versions, each without what is not asked for */
            read = read_ends(row, asked->vocabulary, high, best, best_scores, low, worst, worst_scores);
        else if (high)
            read = read_ends(row, asked->vocabulary, high, best, best_scores, 0, NULL, NULL);
        else if (low)
            read = read_ends(row, asked->vocabulary, 0, NULL, NULL, low, worst, worst_scores);
        asked->undecided[n] = (uint8_t)!read;
        for (int64_t at = n; at < asked->of * asked->rows; at += asked->rows)
            asked->ranks[at] = rank_in(row, asked->vocabulary, asked->tokens[at]);
    }
}

/* PyTorch's own threads, where it has brought GNU's OpenMP with it: their share of the rows is each one's. Nothing here is
   compiled with OpenMP, which not every compiler has; without it the caller's thread does all rows. */
#if defined(__GNUC__) && defined(__linux__)
extern void GOMP_parallel(void (*work)(void *), void *asked, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

static void rank_share(void *asked)
{
    const int64_t rows = ((const request *)asked)->rows, number = omp_get_thread_num(), shares = omp_get_num_threads();
    rank_rows(asked, rows * number / shares, rows * (number + 1) / shares);
}

static int rank_together(request *asked, int64_t threads)
{
    if (threads < 2 || !GOMP_parallel || !omp_get_thread_num || !omp_get_num_threads) return 0;
    GOMP_parallel(rank_share, asked, (unsigned)threads, 0);
    return 1;
}
#else
static int rank_together(request *asked, int64_t threads)
{
    (void)asked, (void)threads;
    return 0;
}
#endif

/* Reads `scores [row, token]`, whose rows lie so many numbers apart, with so many threads where there are some. Written are,
   without gaps, so many best tokens of each row and their scores, and so many of the worst, `[row, count]`; to `undecided
   [row]` 1 where a row has a NaN and nothing else of its ends is written; and the `ranks [of, row]` of `tokens [of, row]`.
   At least LANES tokens, at most LANES / 2 of an end, of which 0 are not asked for. Returns how many `tokens` have no score;
   if any, nothing is written. The number in its name goes up with what it is given, so that a library compiled of older
   code is left alone. */
int64_t rank_tokens_1(const float *scores, int64_t rows, int64_t vocabulary, int64_t apart, int64_t threads, int64_t best_count,
                      int64_t *best, float *best_scores, int64_t worst_count, int64_t *worst, float *worst_scores,
                      uint8_t *undecided, int64_t of, const int64_t *tokens, int64_t *ranks)
{
    request asked = {scores, rows, vocabulary, apart, (int)best_count, (int)worst_count, best, best_scores, worst,
                     worst_scores, undecided, of, tokens, ranks};
    int64_t outside = 0;
    for (int64_t at = 0; at < of * rows; at++) outside += tokens[at] < 0 || tokens[at] >= vocabulary;
    if (outside) return outside;
    if (!rank_together(&asked, threads < rows ? threads : rows)) rank_rows(&asked, 0, rows);
    return 0;
}
