/* SPDX-License-Identifier: MIT */
/*
 * serve.h - what the parts of rouse-serve share.
 *
 * main.c        options, the listening socket, signals
 * server.c      accepts, knows every connection, drains
 * connection.c  one thread a connection: reads and parses requests
 * response.c    writes answers
 * files.c       from a request target to an open file beneath the root
 * metrics.c     the text of the figures, for Prometheus
 *
 * Only the public interface of the library is used, so that this program proves it.
 */
#ifndef SERVE_H
#define SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include <llhttp.h>
#include <rouse/rouse.h>

/* A request's head may have so many bytes, and a body that nobody asked for is read up to so many. */
#define HEAD_LIMIT ((size_t)16 * 1024)
#define BODY_LIMIT ((uint64_t)64 * 1024)

/*
 * Buffers: the small ones lie on the connection's stack, the large ones on the heap while it is busy. All that a
 * connection's stack ever holds fits into one page whatever its colour, 2,112 bytes: with 640 bytes more one
 * idle connection in five had two.
 */
#define IN_SMALL ((size_t)512)
#define IN_LARGE (HEAD_LIMIT + 1024) /* room to read a body behind a head of the greatest size */
#define OUT_SMALL ((size_t)368)
#define OUT_LARGE ((size_t)16 * 1024)

/* Bytes of a date as HTTP writes it. */
#define DATE_BYTES ((size_t)29)

/* The port of the figures serves so many connections at once, and waits so long at most where others do longer. */
#define METRICS_CONNECTIONS 8u
#define METRICS_IDLE_NS ((uint64_t)10 * 1000 * 1000 * 1000)

/* Written by main before the first thread starts, then only read. */
struct settings {
    const char *directory; /* NULL: only respond */
    int root;              /* the directory, opened; -1 without */
    const char *respond;   /* NULL: serve files */
    size_t respond_bytes;
    const char *address;
    const char *port;
    enum rouse_kind kind;
    unsigned workers;
    unsigned max_connections;
    uint64_t idle_ns;
    uint64_t drain_ns;
    char *metrics_address; /* NULL: no figures are told */
    const char *metrics_port;
    uint64_t shared_ns; /* how long each answer holds the lock that all share; 0: there is none */
};
extern struct settings settings;

/* Where the text of a header or of the target lies, counted from the request's first byte. */
struct span {
    uint32_t at, bytes;
};

struct connection;

/* What is served at one listening socket. Set before server_run, but for what server.c's lock guards. */
struct server {
    void (*answer)(struct connection *c); /* GET or HEAD: appends an answer */
    unsigned max_connections;
    uint64_t idle_ns;
    struct rouse_cond ended;
    struct connection *connections; /* under the lock, as the rest */
    unsigned count; /* runs ahead of the list by threads that have not entered yet */
    uint64_t accepted;
    uint64_t answers, errors; /* of connections that have ended */
    bool draining;            /* written under the lock, read anywhere, as a hint */
};
extern struct server pages, metrics;

/*
 * One connection. It lies on its thread's stack: together with the frames of a waiting call it should
 * fit into one page, which is all that an idle connection costs.
 */
struct connection {
    struct connection *next, *previous; /* server.c's list, under its lock */
    uint64_t answers, errors; /* of them with a status from 400; by its thread, read by any */
    int fd;

    /* The request being read, in[request_at .. in_used); all up to in_parsed has been parsed. */
    llhttp_t parser;
    char *in;
    size_t in_bytes, in_used, in_parsed, request_at;
    /* for the whole request, from its first byte on; else for the idle time */
    uint64_t deadline_ns;
    struct span target, field, modified_since;
    bool is_metrics;        /* it belongs to metrics, not to pages */
    bool in_modified_since; /* the header being read is If-Modified-Since */
    bool begun;             /* some of a request has come, but not all */
    bool head_done;         /* its head has come */
    bool has_host;
    bool has_coding;     /* Transfer-Encoding */
    bool has_none_match; /* If-None-Match */
    bool has_expect;     /* Expect, of which there is 100-continue only */
    bool body_left;      /* the answer does not wait for the body, and is the last */
    bool in_filled;      /* the last read filled the buffer: more may be waiting */
    uint16_t refusal;    /* status decided while parsing; 0: none */

    /* The answers not sent yet, out[0 .. out_used). */
    char *out;
    size_t out_bytes, out_used;
    bool keep;             /* the connection goes on after this answer */
    bool head_only;        /* HEAD: the answer has no body */
    bool failed;           /* an answer could not be sent: nothing more goes out */
    char date[DATE_BYTES]; /* text of date_seconds */
    time_t date_seconds;

    char out_small[OUT_SMALL];
    char in_small[IN_SMALL];
};

/*
 * server.c. run serves connections that come to listen_fd until its thread is cancelled, then drains;
 * it returns how many connections were cut at the end. figures tells the sums so far.
 */
struct figures {
    unsigned connections;
    uint64_t accepted, answers, errors;
};
unsigned server_run(struct server *server, int listen_fd);
bool server_draining(const struct server *server);
struct figures server_figures(struct server *server);
void server_enter(struct connection *c);
void server_leave(struct connection *c);

static inline struct server *server_of(const struct connection *c)
{
    return c->is_metrics ? &metrics : &pages;
}

/*
 * connection.c: serve a connection. arg is an integer, connection_arg's: two functions, or a structure for the
 * argument, would be a frame more on each stack.
 */
void *connection_run(void *arg);
static inline void *connection_arg(int fd, bool is_metrics)
{
    return (void *)((intptr_t)fd * 2 + is_metrics);
}

/* metrics.c: answer a request for the figures. */
void metrics_answer(struct connection *c);

/*
 * response.c. Each call appends one whole answer to the answers not sent yet; flush sends them, and
 * returns whether all of them could be sent. flags are those of send(2).
 */
void response_status(struct connection *c, unsigned status);
void response_constant(struct connection *c);
void response_target(struct connection *c);
void response_text(struct connection *c, const char *type, const char *text, size_t bytes);
bool response_flush(struct connection *c, int flags);

/* Once, before any thread: prepare the constant answer. Returns 0 or -ENOMEM. */
int response_prepare(void);

/* A file to send. */
struct file {
    int fd;
    off_t bytes;
    time_t modified;
};

/*
 * files.c. Nothing here blocks a thread but on the disk.
 *
 * files_init   open the root and see what the kernel offers; 0 or -errno.
 * files_path   turn a request target into a path, in place: without host, query and leading slashes,
 *              decoded. NULL when it is malformed.
 * files_open   open what path names beneath root, which must be a regular file; "" and "a/" name the
 *              index.html there, and path has FILES_INDEX_ROOM bytes of room behind its end for that.
 *              0, -EISDIR (a directory without its slash) or another -errno.
 * files_read   read all of a file whose bytes are in memory, at once; -EAGAIN when they are not.
 * files_type   the media type by the name's extension.
 */
#define FILES_INDEX_ROOM sizeof("index.html")
int files_init(const char *directory);
char *files_path(char *target, size_t bytes);
int files_open(int root, char *path, struct file *file);
ssize_t files_read(int fd, void *buffer, size_t bytes);
const char *files_type(const char *path);

/*
 * What files_open does where the kernel has no openat2: walk the path component by component and resolve
 * symbolic links by hand, never above root. The same paths open, the same are refused, but for those that
 * lead through more than 64 directories at once.
 */
int files_walk(int root, const char *path);

#endif
