/* Rows of scores, all that is asked of each while a core's cache holds it. readings.py calls it; where nothing could be compiled,
   it has PyTorch do the same. */

#include <stddef.h>

#include "reading.h"
#include "threads.h"

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
    float *log_normaliser, *max_probability, *entropy;
} request;

static void read_rows(const void *given, int64_t begin, int64_t end)
{
    const request *asked = given;
    const int64_t vocabulary = asked->vocabulary;
    const int high = asked->high, low = asked->low;
    for (int64_t n = begin; n < end; n++) {
        const float *row = asked->scores + n * asked->apart;
        int64_t *best = high ? asked->best + n * high : NULL, *worst = low ? asked->worst + n * low : NULL;
        float *best_scores = high ? asked->best_scores + n * high : NULL;
        float *worst_scores = low ? asked->worst_scores + n * low : NULL;
        const int decided = read_row_ends(row, vocabulary, high, best, best_scores, low, worst, worst_scores);
        asked->undecided[n] = (uint8_t)!decided;
        for (int64_t at = n; at < asked->of * asked->rows; at += asked->rows)
            asked->ranks[at] = rank_in_row(row, vocabulary, asked->tokens[at]);
        if (asked->entropy) {
            const row_shape shape = measure_row(row, vocabulary, decided && high ? best_scores : NULL);
            asked->log_normaliser[n] = shape.log_normaliser;
            asked->max_probability[n] = shape.max_probability;
            asked->entropy[n] = shape.entropy;
        }
    }
}

/* Reads `scores [row, token]`, whose rows lie so many numbers apart, with so many threads where there are some. Written are,
   without gaps, so many best tokens of each row and their scores, and so many of the worst, `[row, count]`, of rows with at
   least 128 tokens at most 64, of others 0; to `undecided [row]` 1 where a row has a NaN and nothing else of its ends is
   written; the `ranks [of, row]` of `tokens [of, row]`; and the logarithms of the normalisers, the largest probabilities and
   the entropies of softmax(row), `[row]` each, none of them if `entropy` is NULL. Returns how many `tokens` have no score; if
   any, nothing is written; else less how many rows have a NaN and ends that were asked for. The number in its name goes up with
   what it is given, so that a library compiled of older code is left alone. */
int64_t read_scores_1(const float *scores, int64_t rows, int64_t vocabulary, int64_t apart, int64_t threads, int64_t best_count,
                      int64_t *best, float *best_scores, int64_t worst_count, int64_t *worst, float *worst_scores,
                      uint8_t *undecided, int64_t of, const int64_t *tokens, int64_t *ranks, float *log_normaliser,
                      float *max_probability, float *entropy)
{
    request asked = {scores, rows, vocabulary, apart, (int)best_count, (int)worst_count, best, best_scores, worst,
                     worst_scores, undecided, of, tokens, ranks, log_normaliser, max_probability, entropy};
    int64_t outside = 0;
    for (int64_t at = 0; at < of * rows; at++) outside += tokens[at] < 0 || tokens[at] >= vocabulary;
    if (outside) return outside;
    for_all_rows(read_rows, &asked, rows, threads);
    int64_t missing = 0;
    for (int64_t n = 0; n < rows; n++) missing += undecided[n];
    return -missing;
}
