/* SPDX-License-Identifier: MIT */
/*
 * raw.h - code shared by the raw servers: the answer, the listener and the request counter.
 *
 * A blank line ends a request. The answer has the bytes of `rouse-serve --respond TEXT`, except for its
 * date, which is that of the start.
 */
#ifndef BENCH_HTTP_RAW_H
#define BENCH_HTTP_RAW_H

#include <stddef.h>

#define RAW_JOINED 64 /* answers that one write can hold */
#define RAW_TAIL 3    /* bytes of a blank line that may be split between two reads */

struct raw_tail {
    unsigned kept;
    char bytes[RAW_TAIL];
};

extern const char *raw_program; /* set by main: the name in messages */
extern char *raw_replies;       /* RAW_JOINED times the answer, end to end */
extern size_t raw_reply_bytes;

_Noreturn void raw_die(const char *what);

void raw_prepare_replies(const char *text);

/* Raise the descriptor limit as far as allowed. Returns the limit. */
unsigned raw_raise_files(void);

/*
 * Listen on 127.0.0.1. Connections send at once (TCP_NODELAY). The calling process becomes `loops` processes. Each
 * returns with a listener of its own, and the kernel distributes the connections. All end with the first one.
 */
int raw_listen(unsigned port, int flags, unsigned loops);

/* Each process calls this when it serves. The first waits for the others and prints the address. */
void raw_announce(void);

/*
 * Count the blank lines in the bytes read. There must be room for RAW_TAIL bytes before text, for the tail of
 * the last read.
 */
unsigned raw_count_requests(struct raw_tail *tail, char *text, size_t bytes);

#endif
