/* SPDX-License-Identifier: MIT */
/*
 * access_log.c - one line per answer, in the combined format of Apache and nginx, written off the request path.
 *
 * A connection's thread copies what the client asked, and puts it into a list. A kernel thread takes the whole list, some times
 * per second at most, and writes the lines in their order. So a slow disk delays no answer, and no worker makes a file
 * system call. The answers that wait take QUEUED_MOST bytes at most. Further ones are lost, as are those that cannot be
 * written: both are counted.
 *
 * The texts of clients are escaped as Apache does, so that no line can be forged.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve.h"

#define QUEUED_MOST ((size_t)4 * 1024 * 1024)
#define FIELD_MOST ((size_t)1024) /* bytes of a request line or header that are logged */
#define BATCH_NS ((uint64_t)50 * 1000 * 1000) /* lines are collected for this long */
#define SAY_NS ((uint64_t)60 * 1000 * 1000 * 1000)

/* One answer: what was asked, as it came, and what was sent. */
struct line {
    struct line *next;
    size_t bytes; /* of the structure */
    time_t time;
    uint64_t body_bytes;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } peer;
    unsigned status;
    uint16_t request, referer, agent; /* bytes of each in text; 0: there is none */
    char text[];
};

static struct {
    struct line *newest; /* any thread pushes; the writer takes all of them */
    size_t queued;       /* their bytes, also of those that the writer has */
    uint64_t lost;
    bool ends, reopens;
    struct rouse_sem
        bell; /* posted when the list was empty, for the end, and to open the file again */
    struct rouse_thread *writer;
    int fd;         /* the writer's, once it runs */
    bool is_broken; /* the last line was written in part */
    uint64_t said_ns;
} log_ = { .bell = ROUSE_SEM_INIT_NAMED(0, "access log"), .fd = -1 };

/* The request's first line. */
static size_t first_line(const struct connection *c, const char **from)
{
    const char *start = c->in + c->request_at, *end = c->in + c->in_used, *at;

    while (start < end && (*start == '\r' || *start == '\n'))
        start++;
    for (at = start; at < end && *at != '\r' && *at != '\n'; at++)
        continue;
    *from = start;
    return (size_t)(at - start);
}

static uint16_t cut(size_t bytes)
{
    return (uint16_t)(bytes < FIELD_MOST ? bytes : FIELD_MOST);
}

/*
 * Before the answer, since files_path decodes the target in place. The writer makes the text: printf here would touch a
 * second page of every connection's stack.
 */
static struct line *__attribute__((noinline)) begin(const struct connection *c)
{
    const char *request, *referer, *agent;
    size_t request_bytes = first_line(c, &request), referer_bytes, agent_bytes, bytes;
    struct line *line;
    socklen_t length = sizeof(line->peer);
    char *to;

    referer = conditional_value(c, KEPT_REFERER, &referer_bytes);
    agent = conditional_value(c, KEPT_AGENT, &agent_bytes);
    request_bytes = cut(request_bytes);
    referer_bytes = referer ? cut(referer_bytes) : 0;
    agent_bytes = agent ? cut(agent_bytes) : 0;
    bytes = sizeof(*line) + request_bytes + referer_bytes + agent_bytes;
    line = malloc(bytes);
    if (line == NULL) {
        __atomic_fetch_add(&log_.lost, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    *line = (struct line){
        .bytes = bytes,
        .time = time(NULL),
        .request = (uint16_t)request_bytes,
        .referer = (uint16_t)referer_bytes,
        .agent = (uint16_t)agent_bytes,
    };
    if (getpeername(c->fd, &line->peer.any, &length) < 0)
        line->peer.any.sa_family = AF_UNSPEC;
    to = mempcpy(line->text, request, request_bytes);
    to = referer_bytes ? mempcpy(to, referer, referer_bytes) : to;
    if (agent_bytes)
        memcpy(to, agent, agent_bytes);
    return line;
}

struct line *access_log_begin(const struct connection *c)
{
    return settings.access_log && !c->is_metrics ? begin(c) : NULL;
}

void access_log_end(const struct connection *c, struct line *line)
{
    if (line == NULL)
        return;
    line->status = c->status;
    line->body_bytes = c->body_bytes;
    if (__atomic_load_n(&log_.queued, __ATOMIC_RELAXED) + line->bytes > QUEUED_MOST) {
        __atomic_fetch_add(&log_.lost, 1, __ATOMIC_RELAXED);
        free(line);
        return;
    }
    __atomic_fetch_add(&log_.queued, line->bytes, __ATOMIC_RELAXED);
    line->next = __atomic_load_n(&log_.newest, __ATOMIC_RELAXED);
    /* Release: pairs with the writer's acquire. */
    while (!__atomic_compare_exchange_n(&log_.newest, &line->next, line, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        continue;
    if (line->next == NULL)
        rouse_sem_post(&log_.bell);
}

uint64_t access_log_lost(void)
{
    return __atomic_load_n(&log_.lost, __ATOMIC_RELAXED);
}

/* At most one line per minute. */
static void say(int error)
{
    uint64_t now_ns = rouse_now_ns();

    if (log_.said_ns && now_ns - log_.said_ns < SAY_NS)
        return;
    log_.said_ns = now_ns;
    fprintf(stderr, "rouse-serve: %s: cannot write: %s; %llu lines are lost so far\n",
            settings.access_log, strerror(error), (unsigned long long)access_log_lost());
}

static bool write_all(const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(log_.fd, text, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        text += n;
        bytes -= (size_t)n;
        log_.is_broken = bytes != 0;
    }
    return true;
}

static int open_file(void)
{
    if (strcmp(settings.access_log, "-") == 0)
        return dup(STDOUT_FILENO);
    return open(settings.access_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
}

static void reopen(void)
{
    int fd = open_file();

    if (fd < 0) {
        fprintf(stderr, "rouse-serve: %s: cannot open it again: %s; the old file stays in use\n",
                settings.access_log, strerror(errno));
        return;
    }
    close(log_.fd);
    log_.fd = fd;
    log_.is_broken = false;
}

/* The rest of this file runs on the writer's thread. */

static char *escape(char *to, const char *from, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)from[i];

        if (byte == '"' || byte == '\\') {
            *to++ = '\\';
            *to++ = (char)byte;
        } else if (byte < ' ' || byte > '~') {
            to = mempcpy(to, (char[]){ '\\', 'x', digits[byte >> 4], digits[byte & 15] }, 4);
        } else {
            *to++ = (char)byte;
        }
    }
    return to;
}

static char *put_quoted(char *to, const char *from, size_t bytes)
{
    *to++ = '"';
    if (bytes)
        to = escape(to, from, bytes);
    else
        *to++ = '-';
    *to++ = '"';
    return to;
}

static char *put_peer(char *to, const struct line *line)
{
    const void *address = line->peer.any.sa_family == AF_INET6
                              ? (const void *)&line->peer.v6.sin6_addr
                              : &line->peer.v4.sin_addr;

    if (line->peer.any.sa_family == AF_UNIX)
        return stpcpy(to, "unix:");
    if (inet_ntop(line->peer.any.sa_family, address, to, INET6_ADDRSTRLEN) == NULL)
        return stpcpy(to, "-");
    return to + strlen(to);
}

#define LINE_MOST (INET6_ADDRSTRLEN + 3 * (4 * FIELD_MOST + 3) + 128)

static char *put_line(char *to, const struct line *line)
{
    const char *referer = line->text + line->request, *agent = referer + line->referer;
    struct tm utc;

    to = put_peer(to, line);
    gmtime_r(&line->time, &utc);
    to += strftime(to, 64, " - - [%d/%b/%Y:%H:%M:%S +0000] ", &utc);
    to = put_quoted(to, line->text, line->request);
    to += line->body_bytes
              ? sprintf(to, " %u %llu ", line->status, (unsigned long long)line->body_bytes)
              : sprintf(to, " %u - ", line->status);
    to = put_quoted(to, referer, line->referer);
    *to++ = ' ';
    to = put_quoted(to, agent, line->agent);
    *to++ = '\n';
    return to;
}

/* Write lines in one call, as far as they fit into the buffer. Returns the lines that are left. */
static struct line *write_some(struct line *lines, char *buffer, size_t room)
{
    size_t used = 0, count = 0;
    int error = 0;

    if (log_.is_broken)
        buffer[used++] = '\n';
    while (lines && used + LINE_MOST <= room) {
        struct line *line = lines;

        lines = line->next;
        used = (size_t)(put_line(buffer + used, line) - buffer);
        count++;
        __atomic_fetch_sub(&log_.queued, line->bytes, __ATOMIC_RELAXED);
        free(line);
    }
    if (!write_all(buffer, used)) {
        error = errno;
        __atomic_fetch_add(&log_.lost, count, __ATOMIC_RELAXED);
        say(error);
    }
    return lines;
}

#define BUFFER_BYTES ((size_t)64 * 1024)
_Static_assert(BUFFER_BYTES > LINE_MOST + 1, "each line fits");

static void write_queued(void)
{
    static char buffer[BUFFER_BYTES];
    /* Acquire: pairs with access_log_end. */
    struct line *newest = __atomic_exchange_n(&log_.newest, NULL, __ATOMIC_ACQUIRE);
    struct line *oldest = NULL;

    while (newest) {
        struct line *line = newest;

        newest = line->next;
        line->next = oldest;
        oldest = line;
    }
    while (oldest)
        oldest = write_some(oldest, buffer, sizeof(buffer));
}

static void *write_lines(void *unused)
{
    bool ends = false;

    while (!ends) {
        rouse_sem_wait(&log_.bell);
        ends = __atomic_load_n(&log_.ends, __ATOMIC_ACQUIRE); /* pairs with access_log_stop */
        if (!ends)
            rouse_sleep(BATCH_NS);
        write_queued(); /* what came before a request to open the file again belongs to the old one */
        if (__atomic_exchange_n(&log_.reopens, false, __ATOMIC_RELAXED))
            reopen();
    }
    return unused;
}

int access_log_open(void)
{
    log_.fd = open_file();
    return log_.fd < 0 ? -errno : 0;
}

int access_log_start(void)
{
    struct rouse_thread_attr attr = { .kind = ROUSE_KIND_KERNEL, .name = "access log" };

    return rouse_thread_create(&log_.writer, &attr, write_lines, NULL);
}

void access_log_reopen(void)
{
    __atomic_store_n(&log_.reopens, true, __ATOMIC_RELAXED);
    rouse_sem_post(&log_.bell);
}

void access_log_stop(void)
{
    __atomic_store_n(&log_.ends, true, __ATOMIC_RELEASE);
    rouse_sem_post(&log_.bell);
    if (rouse_thread_join_until(log_.writer, NULL, rouse_now_ns() + settings.drain_ns) < 0) {
        fprintf(stderr,
                "rouse-serve: %s: the disk does not answer; the last lines are not written\n",
                settings.access_log);
        return;
    }
    if (access_log_lost())
        fprintf(stderr, "rouse-serve: %s: %llu lines were lost\n", settings.access_log,
                (unsigned long long)access_log_lost());
}
