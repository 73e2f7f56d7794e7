/* SPDX-License-Identifier: MIT */
/*
 * serve.h - declarations shared by the files of rouse-serve.
 *
 * access_log.c  writes a line per answer
 * main.c        options, the listening socket, signals
 * server.c      accepts connections, lists them, drains
 * connection.c  one thread per connection: reads and parses requests
 * host.c        whether a host is valid
 * conditional.c the preconditions of a request
 * tag.c         the entity tag of a file
 * range.c       which part of a file is asked for
 * response.c    writes answers
 * files.c       from a request target to an open file beneath the root
 * limits.c      connections per address, time-outs, and the minimum rate
 * supervisor.c  several processes, and a new one for each that dies
 * unix_socket.c a listening socket with a path
 * metrics.c     metrics in the text format of Prometheus
 *
 * Only the public interface of the library is used, so this program also tests that it suffices.
 */
#ifndef SERVE_H
#define SERVE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include <llhttp.h>
#include <rouse/rouse.h>

/* Limits in bytes: of the head of a request, and of a request body that is read and dropped. */
#define HEAD_LIMIT ((size_t)16 * 1024)
#define BODY_LIMIT ((uint64_t)64 * 1024)

/*
 * Buffers: the small ones are on the connection's stack; the large ones are on the heap while it is busy. The stack
 * data of a connection, 2,096 bytes, fits into one page whatever its stack colour. With 640 bytes more, one idle
 * connection in five used two pages.
 */
#define IN_SMALL ((size_t)432)
#define IN_LARGE (HEAD_LIMIT + 1024) /* room to read a body after a head of the greatest size */
#define OUT_SMALL ((size_t)352)
#define OUT_LARGE ((size_t)16 * 1024)

/* Bytes of a date in HTTP format. */
#define DATE_BYTES ((size_t)29)

/*
 * The metrics port serves this many connections at once, and closes them after at most this idle time.
 */
#define METRICS_CONNECTIONS 8u
#define METRICS_IDLE_NS ((uint64_t)10 * 1000 * 1000 * 1000)

/* Times that one client may take; serve/limits.c. */
struct limits {
    uint64_t idle_ns;   /* until the next request begins */
    uint64_t header_ns; /* from a request's first byte until its head is there */
    uint64_t body_ns;   /* for the body behind the head */
    uint64_t write_ns;  /* without progress of an answer */
    uint64_t grace_ns;  /* until the rate counts, and the time over which it is measured */
    uint64_t rate;      /* least bytes per second, both ways; 0: none */
};

/* Written by main before the first thread starts, then only read. */
struct settings {
    const char *directory; /* NULL: only --respond */
    int root;              /* the directory, opened; -1 without */
    const char *respond;   /* NULL: serve files */
    size_t respond_bytes;
    const char *address;
    const char *port;
    enum rouse_kind kind;
    unsigned workers;
    unsigned max_connections;
    unsigned per_address; /* connections of one address; 0: no limit */
    struct limits limits;
    uint64_t drain_ns;
    char *metrics_address; /* NULL: the default address */
    const char *metrics_port;
    /* how long each answer holds a lock that all connections share; 0: there is none */
    uint64_t shared_ns;
    unsigned instances;     /* processes; 1: no supervisor */
    bool dot_files;         /* names that begin with a dot are served */
    const char *access_log; /* NULL: none; "-": standard output */
};
extern struct settings settings;

/* The position of a header or the target, counted from the request's first byte. */
struct span {
    uint16_t at, bytes;
};

/* The headers whose values are kept until the answer. */
enum kept_header {
    KEPT_HOST,
    KEPT_MATCH,
    KEPT_NONE_MATCH,
    KEPT_MODIFIED_SINCE,
    KEPT_UNMODIFIED_SINCE,
    KEPT_RANGE,
    KEPT_IF_RANGE,
    KEPT_REFERER, /* this and the next one for the log only */
    KEPT_AGENT,
    KEPT_HEADERS,
};

struct connection;

/*
 * The connections that have waited longest for their clients, the longest first, as of the last look at all of them:
 * from[at] to from[count - 1]. A look costs time in proportion to the connections, so one look serves for many.
 */
#define IDLEST 64u
struct idlest {
    struct {
        struct connection *connection; /* NULL: it has ended */
        uint64_t since_ns;
    } from[IDLEST];
    unsigned at, count;
};

/*
 * One listening socket and its connections. Set before server_run, except the fields that the lock of server.c
 * guards.
 */
struct server {
    void (*answer)(struct connection *c); /* GET or HEAD: appends an answer */
    unsigned max_connections;
    struct limits limits;
    struct rouse_cond ended;
    struct connection *connections; /* under the lock, as the fields below */
    unsigned count;                 /* includes threads that have not entered the list yet */
    uint64_t accepted;
    uint64_t answers, errors; /* of connections that have ended */
    bool draining;            /* written under the lock; read anywhere, as a hint */
    struct idlest idlest;     /* under the lock */
};
extern struct server pages, metrics;

/*
 * One connection. It is on its thread's stack: together with the frames of a waiting call it should fit into one
 * page, which is all the memory of an idle connection.
 */
struct connection {
    struct connection *next, *previous; /* server.c's list, under its lock */
    /* answers with a status of 400 or more; written by its thread, read by any */
    uint64_t answers, errors;
    /*
     * Since when the server waits for the client's next request; 0: it does not. Written by its thread, read by the
     * thread that looks for a connection to close.
     */
    uint64_t waits_since_ns;
    int fd;

    /*
     * The request being read, in[request_at .. in_used). Everything up to in_parsed has been parsed.
     */
    llhttp_t parser;
    char *in;
    size_t in_bytes, in_used, in_parsed, request_at;
    /* For the head of a request, or its body; between requests, for the idle time. */
    uint64_t deadline_ns;
    uint64_t begun_ns;     /* when the request's first byte had arrived */
    struct client *client; /* its address in limits.c; NULL: it does not count */
    uint32_t received;     /* bytes of the request */
    struct span target, field;
    struct span kept[KEPT_HEADERS]; /* at is 0 without the header */
    struct span *value;             /* of the header being read; NULL: it is not kept */
    uint16_t value_end;             /* where the last value ends; 0: there was none */
    bool in_length;                 /* the header being read is Content-Length */
    bool is_metrics;                /* it belongs to metrics, not to pages */
    bool is_shut;                   /* it ends to make room; written under the lock of server.c */
    bool begun;                     /* part of a request has arrived */
    bool head_done;                 /* its head has arrived */
    bool in_body;                   /* deadline_ns is that of the body */
    bool by_rate;                   /* the rate gives a deadline before deadline_ns */
    bool has_host;
    bool has_coding;  /* Transfer-Encoding */
    bool has_expect;  /* Expect; its only value is 100-continue */
    bool body_left;   /* the answer does not wait for the body, and ends the connection */
    bool in_filled;   /* the last read filled the buffer: more may be waiting */
    uint16_t refusal; /* status that the parser decided; 0: none */
    uint16_t status;  /* of the answer, for the log, with the bytes of its body */
    uint64_t body_bytes;

    /* The unsent answers, out[0 .. out_used). */
    char *out;
    size_t out_bytes, out_used;
    bool keep;             /* the connection stays open after this answer */
    bool head_only;        /* HEAD: the answer has no body */
    bool failed;           /* an answer could not be sent: nothing more is sent */
    char date[DATE_BYTES]; /* text of date_seconds */
    time_t date_seconds;

    char out_small[OUT_SMALL];
    char in_small[IN_SMALL];
};

/*
 * server.c. server_run serves the connections of listen_fd until its thread is cancelled, then drains. Returns how
 * many connections it cut at the end. server_figures returns the sums so far.
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
 * connection.c: serve a connection. arg is an integer made by connection_arg: two functions, or a structure as
 * argument, would add a frame to each stack.
 */
void *connection_run(void *arg);
static inline void *connection_arg(int fd, bool is_metrics)
{
    return (void *)((intptr_t)fd * 2 + is_metrics);
}

/* host.c: whether text is a host and perhaps a port. An empty text is valid. */
bool host_is_valid(const char *text, size_t bytes);

/* A file to send. */
struct file {
    int fd;
    off_t bytes;
    time_t modified;
    long modified_ns; /* within its second */
    ino_t inode;
};

/*
 * conditional.c: the value of a header without the white space behind it, or NULL; 200, 304 or 412, by the request's
 * preconditions and the date and tag of the file; whether If-Range, if there is one, permits a part as the answer.
 */
const char *conditional_value(const struct connection *c, enum kept_header header, size_t *bytes);
unsigned conditional_status(const struct connection *c, const struct file *file);
bool conditional_range(const struct connection *c, const struct file *file);

/*
 * tag.c: the entity tag of a file (RFC 9110, 8.8.3): W/ if it is weak, and a text in quotes. tag_write returns its
 * bytes. tag_matches: whether the list of tags in the header called name, in lower case, has it. The list may have
 * further lines of that name, with other headers between them.
 */
#define TAG_BYTES (sizeof("W/\"--\"") + 3 * 16)
size_t tag_write(char *to, const struct file *file);
bool tag_matches(const char *name, const char *list, size_t bytes, const struct file *file,
                 bool is_strong);

/*
 * range.c: the part that the value of Range names of a file of so many bytes. 206, with range set; 416; or 200, if
 * the value is to be ignored.
 */
struct range {
    off_t first, end;
};
unsigned range_of(const char *text, size_t length, off_t bytes, struct range *range);

/*
 * limits.c. limits_enter counts a connection for its address, and returns whether there is room for it; limits_leave
 * takes it back. limits_receiving returns until when more of a request must have arrived. limits_sending is called
 * when not all could be sent: it returns whether the client may take longer, and sets look_ns, until when the next
 * call may wait. Both it and limits_enter count a refusal.
 */
enum cause {
    CAUSE_ADDRESS,
    CAUSE_BODY,
    CAUSE_FULL,
    CAUSE_HEADER,
    CAUSE_IDLE,
    CAUSE_RATE,
    CAUSE_WRITE,
    CAUSES,
};

/* The progress of an answer that the client is slow to read. All zero at its beginning. */
struct sending {
    uint64_t look_ns; /* 0: the first attempt, which does not wait */
    uint64_t moved_ns, window_ns;
    int64_t sent, seen, window_sent;
};
int limits_prepare(void);
void limits_at_most(struct limits *limits, uint64_t most_ns);
bool limits_enter(struct connection *c);
void limits_leave(struct connection *c);
uint64_t limits_receiving(struct connection *c);
bool limits_sending(struct connection *c, struct sending *s);
void limits_count(const struct connection *c, enum cause cause);
uint64_t limits_counted(enum cause cause);

/*
 * access_log.c, used with settings.access_log only, except begin and end. access_log_open and access_log_start return 0
 * or -errno; the file is opened before the server listens, and the writer started in rouse_run's threads. begin notes
 * the request before it is answered, and end its answer. reopen: after the file was renamed.
 */
struct line;
int access_log_open(void);
int access_log_start(void);
struct line *access_log_begin(const struct connection *c);
void access_log_end(const struct connection *c, struct line *line);
void access_log_reopen(void);
void access_log_stop(void);
uint64_t access_log_lost(void);

/*
 * unix_socket.c. unix_socket_path: the path in the address "unix:PATH", else NULL. unix_socket_listen returns a listening
 * socket or -errno: -EADDRINUSE if another server listens there, or the file is no socket. unix_socket_remove removes the
 * file that it has made, unless another one has replaced it.
 */
const char *unix_socket_path(const char *address);
int unix_socket_listen(const char *path, int backlog);
void unix_socket_remove(void);

/*
 * supervisor.c: fork count instances, and again if they die. Returns in each instance, with its number, and in the
 * supervisor never: it exits when all have ended after one of signals. To be called before any thread exists.
 */
unsigned supervise(unsigned count, const sigset_t *signals);

/* metrics.c: answer a request for the metrics. */
void metrics_answer(struct connection *c);

/*
 * response.c. Each call appends one whole answer to the unsent answers. response_flush sends them, and returns
 * whether all could be sent. flags are those of send(2).
 */
void response_status(struct connection *c, unsigned status);
void response_constant(struct connection *c);
void response_target(struct connection *c);
void response_text(struct connection *c, const char *type, const char *text, size_t bytes);
bool response_flush(struct connection *c, int flags);

/* Prepare the constant answer, once, before any thread starts. Returns 0 or -ENOMEM. */
int response_prepare(void);

/*
 * files.c. These calls block a thread only on the disk.
 *
 * files_init   open the root and check what the kernel supports; 0 or -errno.
 * files_path   turn a request target into a path, in place: decoded, without host, query and leading slashes.
 *              NULL if it is malformed.
 * files_open   open the regular file that path names beneath root; "" and "a/" name the index.html there, for
 *              which path must have FILES_INDEX_ROOM bytes of room behind its end.
 *              0, -EISDIR (a directory without its slash) or another -errno.
 * files_read   read a part of a file whose bytes are in memory; -EAGAIN if they are not.
 * files_type   the media type for the name's extension.
 */
#define FILES_INDEX_ROOM sizeof("index.html")
int files_init(const char *directory);
char *files_path(char *target, size_t bytes);
int files_open(int root, char *path, struct file *file);
ssize_t files_read(int fd, void *buffer, size_t bytes, off_t at);
const char *files_type(const char *path);

/*
 * The fallback of files_open for kernels without openat2: open the path component by component and resolve symbolic
 * links by hand, never above root. It accepts and refuses the same paths, except those that lead through more than
 * 64 directories.
 */
int files_walk(int root, const char *path);

#endif
