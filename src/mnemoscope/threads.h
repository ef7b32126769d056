/* Rows that are dealt to PyTorch's own threads, where it has brought GNU's OpenMP with it. Nothing here is compiled with OpenMP,
   which not every compiler has; without it the caller's thread does all rows. */

#include <stdint.h>

/* What does rows `begin` to `end` of what is asked. */
typedef void row_work(const void *asked, int64_t begin, int64_t end);

#if defined(__GNUC__) && defined(__linux__)
extern void GOMP_parallel(void (*work)(void *), void *shared, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

typedef struct {
    row_work *work;
    const void *asked;
    int64_t rows;
} shared_rows;

static void do_own_rows(void *shared)
{
    const shared_rows *all = shared;
    const int64_t number = omp_get_thread_num(), shares = omp_get_num_threads();
    all->work(all->asked, all->rows * number / shares, all->rows * (number + 1) / shares);
}

static void for_all_rows(row_work *work, const void *asked, int64_t rows, int64_t threads)
{
    shared_rows all = {work, asked, rows};
    if (threads > rows) threads = rows;
    if (threads > 1 && GOMP_parallel && omp_get_thread_num && omp_get_num_threads)
        GOMP_parallel(do_own_rows, &all, (unsigned)threads, 0);
    else
        work(asked, 0, rows);
}
#else
static void for_all_rows(row_work *work, const void *asked, int64_t rows, int64_t threads)
{
    (void)threads;
    work(asked, 0, rows);
}
#endif
