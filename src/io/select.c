/* SPDX-License-Identifier: MIT */
/*
 * select.c - select, implemented as a poll of the descriptors in its sets.
 *
 * The kernel's own select is not used: it reports nothing that poll does not, and its sets are long when descriptor
 * numbers are high. Errors differ from poll: a hang-up counts for reading only, an error for reading and writing, and
 * an invalid descriptor ends the call with -EBADF.
 */
#include "io/poll.h"
#include "os/os.h"

#include <rouse/poll.h>

#include <errno.h>
#include <stdlib.h>

#define SMALL_SET 16 /* this many descriptors fit on the thread's stack */
#define WORD_BITS (8 * sizeof(unsigned long))

enum { IN, OUT, EXCEPT, SETS };

static const short asked[SETS] = { RSI_POLL_IN, RSI_POLL_OUT, RSI_POLL_EXCEPT };
static const short counted[SETS] = { RSI_POLL_IN_COUNTS, RSI_POLL_OUT_COUNTS, RSI_POLL_EXCEPT };

/* Sets may be longer than an fd_set, so they are arrays of words. */
struct sets {
    unsigned long *words[SETS]; /* NULL: an absent set */
    size_t nfds;
};

/* Word i of a set, without bits at or above nfds. */
static unsigned long word_at(const struct sets *sets, unsigned set, size_t i)
{
    size_t bits = sets->nfds - i * WORD_BITS;
    unsigned long mask = bits >= WORD_BITS ? ~0ul : (1ul << bits) - 1;
    return sets->words[set] != NULL ? sets->words[set][i] & mask : 0;
}

static size_t word_count(const struct sets *sets)
{
    return (sets->nfds + WORD_BITS - 1) / WORD_BITS;
}

/* Store the descriptors that are in any set into fds, in order, unless fds is NULL. Returns how many. */
static nfds_t sets_read(const struct sets *sets, struct pollfd *fds)
{
    nfds_t count = 0;
    for (size_t i = 0; i < word_count(sets); i++) {
        unsigned long word[SETS], any = 0;
        for (unsigned set = 0; set < SETS; set++)
            any |= word[set] = word_at(sets, set, i);
        if (fds == NULL)
            count += (nfds_t)__builtin_popcountl(any);
        for (; fds != NULL && any != 0; any &= any - 1, count++) {
            unsigned bit = (unsigned)__builtin_ctzl(any);
            int events = 0;
            for (unsigned set = 0; set < SETS; set++)
                events |= (word[set] >> bit & 1) != 0 ? asked[set] : 0;
            fds[count] =
                (struct pollfd){ .fd = (int)(i * WORD_BITS + bit), .events = (short)events };
        }
    }
    return count;
}

/* Reduce the sets to the ready descriptors. Returns how many bits are set. */
static int sets_write(const struct sets *sets, const struct pollfd *fds, nfds_t count)
{
    int bits = 0;
    for (unsigned set = 0; set < SETS; set++)
        for (size_t i = 0; sets->words[set] != NULL && i < word_count(sets); i++)
            sets->words[set][i] = 0;
    for (nfds_t i = 0; i < count; i++)
        for (unsigned set = 0; set < SETS; set++) {
            unsigned long *words = sets->words[set];
            size_t number = (size_t)fds[i].fd;
            if (words == NULL || (fds[i].events & asked[set]) == 0 ||
                (fds[i].revents & counted[set]) == 0)
                continue;
            words[number / WORD_BITS] |= 1ul << number % WORD_BITS;
            bits++;
        }
    return bits;
}

static int do_select(int nfds, fd_set *in, fd_set *out, fd_set *except, uint64_t deadline_ns,
                     const void *site)
{
    struct pollfd small[SMALL_SET], *fds = small;
    struct sets sets = { .words = { (unsigned long *)in, (unsigned long *)out,
                                    (unsigned long *)except },
                         .nfds = (size_t)nfds };
    if (nfds < 0)
        return -EINVAL;
    nfds_t count = sets_read(&sets, NULL);
    if (count > SMALL_SET)
        fds = malloc(count * sizeof *fds);
    if (fds == NULL)
        return -ENOMEM;
    sets_read(&sets, fds);
    int result = rsi_poll_wait(fds, count, deadline_ns, RSI_POLL_SELECT, site);
    if (result >= 0)
        result = sets_write(&sets, fds, result > 0 ? count : 0);
    if (fds != small)
        free(fds);
    return result;
}

/* Returns 0 or -EINVAL. */
static int deadline_of(const struct timeval *timeout, uint64_t *deadline_ns)
{
    *deadline_ns = ROUSE_FOREVER;
    if (timeout == NULL)
        return 0;
    if (timeout->tv_sec < 0 || timeout->tv_usec < 0)
        return -EINVAL;
    unsigned __int128 ns = (unsigned __int128)timeout->tv_sec * 1000000000 +
                           (unsigned __int128)timeout->tv_usec * 1000;
    if (ns == 0) {
        *deadline_ns = 0;
        return 0;
    }
    ns += rsi_now_ns();
    if (ns < ROUSE_FOREVER)
        *deadline_ns = (uint64_t)ns;
    return 0;
}

RSI_NOINLINE int rouse_select(int nfds, fd_set *in, fd_set *out, fd_set *except,
                              const struct timeval *timeout)
{
    uint64_t deadline_ns;
    int error = deadline_of(timeout, &deadline_ns);
    return error != 0 ? error : do_select(nfds, in, out, except, deadline_ns, RSI_CALLER());
}

RSI_NOINLINE int rouse_select_until(int nfds, fd_set *in, fd_set *out, fd_set *except,
                                    uint64_t deadline_ns)
{
    return do_select(nfds, in, out, except, deadline_ns, RSI_CALLER());
}
