/* What is read off one row of scores; reading.c asks for it, row by row. None of these is itself compiled for each processor: of
   such a function Clang gives other files no name to call. */

#include <stdint.h>

#pragma GCC visibility push(hidden) /* no other library's function of such a name takes their place */

/* Writes so many of the best tokens and their scores, and so many of the worst, 0: not asked for; at least 128 tokens, at most
   64 of an end. Returns whether all scores are numbers; else nothing is written. In ranking.c. */
int read_row_ends(const float *row, int64_t vocabulary, int high, int64_t *high_tokens, float *high_scores, int low,
                  int64_t *low_tokens, float *low_scores);

/* How many tokens come before this one: those with more, and of those with as much the ones before it. In ranking.c. */
int64_t rank_in_row(const float *row, int64_t vocabulary, int64_t token);

typedef struct {
    float log_normaliser, max_probability, entropy;
} row_shape;

/* The shape of softmax(row); `known`, the highest score, saves a sweep, NULL: not known. In distribution.c. */
row_shape measure_row(const float *row, int64_t vocabulary, const float *known);

#pragma GCC visibility pop
