/* The shape of softmax(row) of a row of scores, in double precision, so that its rounding to float32 does not depend on how it
   was added up. distributions.py says what is what. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "processors.h"
#include "reading.h"

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
    const longs whole = (longs)shifted << 52; /* where exponents are; 0 of what is no number, which stays that */
    const doubles rest = power - (shifted - to_whole) * 0.6931471805599453; /* within half a logarithm of 2 */
    const doubles two = rest * rest, four = two * two, eight = four * four;
    /* Taylor's series to the tenth power */
    const doubles first = (1.0 + rest) + (1 / 2.0 + rest * (1 / 6.0)) * two;
    const doubles second = (1 / 24.0 + rest * (1 / 120.0)) + (1 / 720.0 + rest * (1 / 5040.0)) * two;
    const doubles third = (1 / 40320.0 + rest * (1 / 362880.0)) + two * (1 / 3628800.0);
    const doubles found = first + second * four + third * eight;
    return (doubles)(((longs)found + whole) & ~(power < LEAST));
}

/* Adds e to `below` to the sums, and the products of both. */
INLINE void add(doubles below, doubles *sum, doubles *products)
{
    const doubles term = exponential(below);
    *sum += term;
    *products += term * below;
}

INLINE double highest_of(const float *row, int64_t vocabulary)
{
    float most[TOGETHER];
    int64_t first = 0;
    for (int n = 0; n < TOGETHER; n++) most[n] = -INFINITY;
    for (; first + TOGETHER <= vocabulary; first += TOGETHER)
        for (int n = 0; n < TOGETHER; n++) most[n] = row[first + n] > most[n] ? row[first + n] : most[n];
    for (int n = 0; first + n < vocabulary; n++) most[n] = row[first + n] > most[n] ? row[first + n] : most[n];
    for (int n = 1; n < TOGETHER; n++) most[0] = most[n] > most[0] ? most[n] : most[0];
    return most[0];
}

FOR_EACH_PROCESSOR
static row_shape measure(const float *row, int64_t vocabulary, const float *known)
{
    const double highest = known ? *known : highest_of(row, vocabulary);
    doubles sums[2] = {{0}}, products[2] = {{0}}, below[2];
    int64_t first = 0;
    for (; first + TOGETHER <= vocabulary; first += TOGETHER) {
        for (int k = 0; k < WIDTH; k++) below[0][k] = row[first + k];
        for (int k = 0; k < WIDTH; k++) below[1][k] = row[first + WIDTH + k];
        add(below[0] - highest, sums, products);
        add(below[1] - highest, sums + 1, products + 1);
    }
    if (first < vocabulary) {
        double last[TOGETHER]; /* of what is beyond the row the power is 0 */
        for (int k = 0; k < TOGETHER; k++) last[k] = first + k < vocabulary ? row[first + k] - highest : 2 * LEAST;
        memcpy(below, last, sizeof below);
        add(below[0], sums, products);
        add(below[1], sums + 1, products + 1);
    }
    const doubles sum = sums[0] + sums[1], product = products[0] + products[1];
    const double total = (sum[0] + sum[1]) + (sum[2] + sum[3]), logarithm = log(total);
    const double products_of_all = (product[0] + product[1]) + (product[2] + product[3]);
    return (row_shape){(float)(highest + logarithm), (float)(1 / total), (float)(logarithm - products_of_all / total)};
}

row_shape measure_row(const float *row, int64_t vocabulary, const float *known)
{
    return measure(row, vocabulary, known);
}
