/* The shape of softmax(row) of many rows of scores, in double precision, so that its rounding to float32 does not depend on how
   it was added up. distributions.py calls it and says what is what; where nothing could be compiled, PyTorch does the same. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "processors.h"
#include "threads.h"

/* Unlike elsewhere a product and a sum may be one instruction: what is told of them is rounded anyway. */
#ifdef __clang__
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum {
    WIDTH = 4, /* numbers of one vector */
    TOGETHER = 8 /* numbers that are added up apart from one another */
};

typedef double doubles __attribute__((vector_size(32)));
typedef int64_t longs __attribute__((vector_size(32)));

/* e to powers that are 0 or less, with a relative error below 1e-12; 0 below LEAST, where the numbers are denormal soon. */
#define LEAST -708.0

INLINE doubles exponential(doubles power)
{
    const double to_whole = 0x1.8p52; /* numbers of this size have no fractions: adding it rounds */
    const doubles shifted = power * 1.4426950408889634 + to_whole;
    const longs two_to_whole = ((longs)shifted + 1023) << 52;
    const doubles rest = power - (shifted - to_whole) * 0.6931471805599453; /* within half a logarithm of 2 */
    const doubles two = rest * rest, four = two * two, eight = four * four;
    /* Taylor's series to the tenth power */
    const doubles first = (1.0 + rest) + (1 / 2.0 + rest * (1 / 6.0)) * two;
    const doubles second = (1 / 24.0 + rest * (1 / 120.0)) + (1 / 720.0 + rest * (1 / 5040.0)) * two;
    const doubles third = (1 / 40320.0 + rest * (1 / 362880.0)) + two * (1 / 3628800.0);
    const doubles found = (first + second * four + third * eight) * (doubles)two_to_whole;
    return (doubles)((longs)found & ~(power < LEAST));
}

/* What was asked, and what is written: of the function below. */
typedef struct {
    const float *scores;
    int64_t vocabulary, apart;
    const float *highest;
    int64_t highest_apart;
    float *log_normaliser, *max_probability, *entropy;
} request;

/* Adds e to `below` to the sums, and the products of both. */
INLINE void add(doubles below, doubles *sum, doubles *products)
{
    const doubles term = exponential(below);
    *sum += term;
    *products += term * below;
}

FOR_EACH_PROCESSOR
void measure_rows(const void *asked, int64_t begin, int64_t end)
{
    const request all = *(const request *)asked;
    for (int64_t n = begin; n < end; n++) {
        const float *row = all.scores + n * all.apart;
        const double highest = all.highest[n * all.highest_apart];
        doubles sums[2] = {{0}}, products[2] = {{0}}, below[2];
        int64_t first = 0;
        for (; first + TOGETHER <= all.vocabulary; first += TOGETHER) {
            for (int k = 0; k < WIDTH; k++) below[0][k] = row[first + k];
            for (int k = 0; k < WIDTH; k++) below[1][k] = row[first + WIDTH + k];
            add(below[0] - highest, sums, products);
            add(below[1] - highest, sums + 1, products + 1);
        }
        if (first < all.vocabulary) {
            double last[TOGETHER]; /* of what is beyond the row the power is 0 */
            for (int k = 0; k < TOGETHER; k++)
                last[k] = first + k < all.vocabulary ? row[first + k] - highest : 2 * LEAST;
            memcpy(below, last, sizeof below);
            add(below[0], sums, products);
            add(below[1], sums + 1, products + 1);
        }
        const doubles sum = sums[0] + sums[1], product = products[0] + products[1];
        const double total = (sum[0] + sum[1]) + (sum[2] + sum[3]), logarithm = log(total);
        all.log_normaliser[n] = (float)(highest + logarithm);
        all.max_probability[n] = (float)(1 / total);
        all.entropy[n] = (float)(logarithm - ((product[0] + product[1]) + (product[2] + product[3])) / total);
    }
}

/* Reads `scores [row, token]`, whose rows lie so many numbers apart, and the `highest [row]` of each, with so many threads where
   there are some; writes the logarithms of the normalisers, the largest probabilities and the entropies, `[row]` each. */
void measure_distributions_1(const float *scores, int64_t rows, int64_t vocabulary, int64_t apart, int64_t threads,
                             const float *highest, int64_t highest_apart, float *log_normaliser, float *max_probability,
                             float *entropy)
{
    const request asked = {scores, vocabulary, apart, highest, highest_apart, log_normaliser, max_probability, entropy};
    for_all_rows(measure_rows, &asked, rows, threads);
}
