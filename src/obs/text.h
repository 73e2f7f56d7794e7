/* SPDX-License-Identifier: MIT */
/* text.h - a dump's text: lines collected in a buffer and written to a descriptor. */
#ifndef RSI_OBS_TEXT_H
#define RSI_OBS_TEXT_H

#include "obs/look.h"
#include "obs/symbol.h"

#define RSI_TEXT_BYTES 8192
#define RSI_LINE_BYTES 1024

/* All zero to begin with, but for fd. */
struct rsi_text {
    int fd;
    bool is_broken;                              /* the descriptor takes nothing any more */
    uint64_t now_ns, now_tsc, ns_base, tsc_base; /* two instants on both clocks */
    size_t used;
    char bytes[RSI_TEXT_BYTES];
    char line[RSI_LINE_BYTES];
    size_t line_used;
    struct rsi_symbols symbols;
    bool has_pipe;
    int pipe[2]; /* for reading what may not be there */
};

/* Append to the present line; what does not fit is left out. */
void rsi_text_add(struct rsi_text *text, const char *format, ...) RSI_PRINTF(2, 3);

/* End the present line. */
void rsi_text_end_line(struct rsi_text *text);

/* Write what is there and give back what was taken. */
void rsi_text_end(struct rsi_text *text);

/* A thread: a line, perhaps one on what it waits for, its backtrace. */
void rsi_text_thread(struct rsi_text *text, const struct rsi_seen *seen);

#endif
