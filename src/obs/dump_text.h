/* SPDX-License-Identifier: MIT */
/* dump_text.h - the text of a dump: lines that are collected in a buffer and written to a descriptor. */
#ifndef RSI_OBS_DUMP_TEXT_H
#define RSI_OBS_DUMP_TEXT_H

#include "obs/inspect.h"
#include "obs/symbol.h"

#define RSI_TEXT_BYTES 8192
#define RSI_LINE_BYTES 1024

/* Initially all zero, except fd. */
struct rsi_dump_text {
    int fd;
    bool is_broken;                              /* writing to the descriptor failed */
    uint64_t now_ns, now_tsc, ns_base, tsc_base; /* two instants on both clocks */
    size_t used;
    char bytes[RSI_TEXT_BYTES];
    char line[RSI_LINE_BYTES];
    size_t line_used;
    struct rsi_symbols symbols;
    bool has_pipe;
    int pipe[2]; /* for reading memory that may be unmapped */
};

/* Append to the current line; text that does not fit is cut. */
void rsi_dump_text_add(struct rsi_dump_text *text, const char *format, ...) RSI_PRINTF(2, 3);

/* End the current line. */
void rsi_dump_text_end_line(struct rsi_dump_text *text);

/* Write the collected lines and release all resources. */
void rsi_dump_text_end(struct rsi_dump_text *text);

/* Print a thread: one line, possibly one on the wait, and its backtrace. */
void rsi_dump_text_thread(struct rsi_dump_text *text, const struct rsi_inspected *seen);

#endif
