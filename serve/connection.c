/* SPDX-License-Identifier: MIT */
/*
 * connection.c - one thread per connection: read, parse, answer, with plain blocking calls.
 *
 * Input     Bytes are read into a buffer on the stack. If a head or the waiting input is longer than that buffer,
 *           it moves to the heap until the connection is quiet. Parsing is incremental: each byte is parsed once,
 *           however the input is split.
 * Answers   All complete requests of one read are answered before anything is sent (response.c).
 * Time      The head of a request, and its body, must be complete in a time of their own (else 408), so a client that
 *           sends one byte per minute cannot hold a connection. Between requests the idle time-out closes the
 *           connection silently (limits.c).
 * End       After a refusal the rest of the input is read and dropped for a while: closing with unread input would
 *           reset the connection, and the answer could be lost.
 *
 * A waiting thread should touch only one page of stack: large data below converse() is on the heap.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve.h"

/* A connection that has been quiet for this long frees its large buffers. */
#define QUIET_NS ((uint64_t)100 * 1000 * 1000)

/*
 * The return value of on_headers_complete that makes the parser treat the message as complete without its body.
 */
#define HEAD_IS_ALL 1

/* A client over its limit has this long to send the request that is refused: long enough for one on its way. */
#define REFUSED_NS ((uint64_t)100 * 1000 * 1000)

#define LINGER_NS ((uint64_t)2 * 1000 * 1000 * 1000)

/* A span may arrive in several reads; its pieces are contiguous. */
static void extend(struct connection *c, struct span *span, const char *at, size_t bytes)
{
    if (span->bytes == 0)
        span->at = (uint16_t)(at - (c->in + c->request_at));
    span->bytes += (uint16_t)bytes;
}

static int on_url(llhttp_t *parser, const char *at, size_t bytes)
{
    struct connection *c = parser->data;

    extend(c, &c->target, at, bytes);
    return 0;
}

/*
 * Whether the line before this header consists of white space: a fold with nothing in it. The request line precedes
 * the first header, so the search ends.
 */
static bool ends_in_blank_line(const char *header)
{
    const char *before = header - 3;

    while (*before == ' ' || *before == '\t')
        before--;
    return *before == '\n';
}

static int on_header_field(llhttp_t *parser, const char *at, size_t bytes)
{
    struct connection *c = parser->data;

    if (c->field.bytes == 0 && ends_in_blank_line(at))
        c->refusal = 400;
    extend(c, &c->field, at, bytes);
    return 0;
}

/*
 * As strncasecmp, inline: it runs in every request, and a call would cost more than the comparison.
 */
static bool is_host(const char *name)
{
    return (name[0] | 0x20) == 'h' && (name[1] | 0x20) == 'o' && (name[2] | 0x20) == 's' &&
           (name[3] | 0x20) == 't';
}

/* The value of a header that is kept. */
static struct span *kept_value(struct connection *c, const char *name, size_t bytes)
{
    static const struct {
        const char *name;
        size_t bytes;
        enum kept_header header;
    } kept[] = {
        { "if-modified-since", 17, KEPT_MODIFIED_SINCE },
        { "if-none-match", 13, KEPT_NONE_MATCH },
        { "if-match", 8, KEPT_MATCH },
        { "if-unmodified-since", 19, KEPT_UNMODIFIED_SINCE },
        { "if-range", 8, KEPT_IF_RANGE },
    };

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (bytes == kept[i].bytes && strncasecmp(name, kept[i].name, bytes) == 0)
            return &c->kept[kept[i].header];
    return NULL;
}

/*
 * Replace tabs behind the digits of Content-Length by spaces. Both are valid there, but the parser accepts spaces
 * only.
 */
static void replace_tabs(struct connection *c, char *from)
{
    const char *end = c->in + c->in_used;

    while (from < end && ((*from >= '0' && *from <= '9') || *from == ' ' || *from == '\t')) {
        if (*from == '\t')
            *from = ' ';
        from++;
    }
}

/*
 * Whether further lines of this header continue its list (RFC 9110, 5.3). The span of such a header reaches from the
 * first of its values to the last. A second line of another header replaces the first.
 */
static bool is_list(const struct connection *c, const struct span *value)
{
    return value == &c->kept[KEPT_MATCH] || value == &c->kept[KEPT_NONE_MATCH];
}

static int on_header_field_complete(llhttp_t *parser)
{
    struct connection *c = parser->data;
    char *name = c->in + c->request_at + c->field.at;
    size_t bytes = c->field.bytes;

    c->value = NULL;
    c->in_length = false;
    c->value_end = (uint16_t)(c->field.at + bytes + 1);
    if (bytes == 4 && is_host(name)) {
        if (c->has_host)
            c->refusal = 400;
        c->has_host = true;
        c->value = &c->kept[KEPT_HOST];
    } else if (bytes == 0 || memchr(name, ' ', bytes) != NULL) {
        c->refusal = 400; /* the lenient parser accepts these */
    } else if (bytes == 17 && strncasecmp(name, "transfer-encoding", 17) == 0) {
        c->has_coding = true;
    } else if (bytes == 6 && strncasecmp(name, "expect", 6) == 0) {
        c->has_expect = true;
    } else if (bytes == 14 && strncasecmp(name, "content-length", 14) == 0) {
        c->in_length = true;
        replace_tabs(c, name + bytes + 1);
    } else if (bytes == 5 && strncasecmp(name, "range", 5) == 0) {
        c->value = &c->kept[KEPT_RANGE];
    } else if (bytes >= 8 && (name[0] | 0x20) == 'i' && name[2] == '-') {
        c->value = kept_value(c, name, bytes);
    } else if (settings.access_log && bytes == 10 && strncasecmp(name, "user-agent", 10) == 0) {
        c->value = &c->kept[KEPT_AGENT];
    } else if (settings.access_log && bytes == 7 && strncasecmp(name, "referer", 7) == 0) {
        c->value = &c->kept[KEPT_REFERER];
    }
    if (c->value && !(is_list(c, c->value) && c->value->bytes))
        *c->value = (struct span){ c->value_end, 0 };
    c->field.bytes = 0;
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t bytes)
{
    struct connection *c = parser->data;
    const char *before = at - 1;

    if (bytes == 0)
        return 0;
    /*
     * A value that begins on a new line is an obsolete fold, which other parsers may read differently.
     */
    while (*before == ' ' || *before == '\t')
        before--;
    if (*before == '\n')
        c->refusal = 400;
    c->value_end = (uint16_t)(at + bytes - (c->in + c->request_at));
    if (c->value) {
        if (c->value->bytes == 0)
            c->value->at = (uint16_t)(at - (c->in + c->request_at));
        c->value->bytes = (uint16_t)(c->value_end - c->value->at);
    }
    return 0;
}

/*
 * The status that refuses a request because of its body, or 0. A body in chunks is never read: a file server needs
 * none, and peers that disagree about its end could smuggle a request in it.
 */
static unsigned refusal_of_body(const struct connection *c)
{
    const llhttp_t *parser = &c->parser;

    if (!c->has_coding && parser->content_length == 0)
        return 0;
    if (parser->method != HTTP_GET && parser->method != HTTP_HEAD)
        return 405;
    if (c->has_coding)
        return parser->flags & F_CHUNKED ? 411 : 400;
    return parser->content_length > BODY_LIMIT ? 413 : 0;
}

/* Whether the head is malformed in a way that the parser accepts. */
static bool is_malformed(const struct connection *c)
{
    const char *start = c->in + c->request_at, *target = start + c->target.at;
    const char *after = target + c->target.bytes, *end = start + c->value_end;
    const struct span *host = &c->kept[KEPT_HOST];
    size_t host_bytes = host->bytes;

    if (c->target.bytes == 0 || memcmp(after, " HTTP/", 6) != 0)
        return true;
    if (*target != '/' && c->target.bytes >= 7 && strncasecmp(target, "http://", 7) == 0) {
        const char *authority = target + 7, *slash = authority;

        while (slash < after && *slash != '/' && *slash != '?' && *slash != '#')
            slash++;
        if (slash == authority || *authority == ':' ||
            !host_is_valid(authority, (size_t)(slash - authority)))
            return true;
    }
    while (host_bytes &&
           (start[host->at + host_bytes - 1] == ' ' || start[host->at + host_bytes - 1] == '\t'))
        host_bytes--;
    if (!host_is_valid(start + host->at, host_bytes))
        return true;
    /* The empty line must follow the last value's line: between them would be an empty fold. */
    while (c->value_end && (*end == ' ' || *end == '\t'))
        end++;
    return c->value_end && memcmp(end, "\r\n\r\n", 4) != 0;
}

/*
 * Decide what need not wait for the body. A refusal without a body to skip is an ordinary answer. A client that
 * expects 100 Continue holds the body back until it is answered (HTTP/1.0 has no such expectation). No answer
 * depends on the body, so it receives the final answer. The body may still follow, or never, so the connection ends
 * with that answer.
 */
static int on_headers_complete(llhttp_t *parser)
{
    struct connection *c = parser->data;

    c->head_done = true;
    c->head_only = parser->method == HTTP_HEAD;
    /* A later minor version is answered as the latest one known (RFC 9110, 2.5). */
    if (parser->http_minor > 1)
        parser->http_minor = 1;
    if (parser->http_major != 1)
        c->refusal = 505;
    else if ((c->refusal == 0 && is_malformed(c)) || (parser->http_minor == 1 && !c->has_host))
        c->refusal = 400;
    else if (c->refusal == 0)
        c->refusal = (uint16_t)refusal_of_body(c);
    /*
     * Upgrades are not offered: the input that follows is HTTP as before or, after CONNECT, refused.
     */
    parser->upgrade = 0;
    c->body_left = c->has_expect && parser->http_minor == 1 && parser->content_length > 0;
    if (c->refusal)
        return -1;
    return c->body_left ? HEAD_IS_ALL : 0;
}

static int on_message_complete(llhttp_t *parser)
{
    (void)parser;
    return HPE_PAUSED;
}

static const llhttp_settings_t callbacks = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_message_complete = on_message_complete,
};

static void forget_request(struct connection *c)
{
    c->request_at = c->in_parsed;
    c->target.bytes = c->field.bytes = 0;
    memset(c->kept, 0, sizeof(c->kept));
    c->value_end = 0;
    c->in_length = false;
    c->refusal = 0;
    c->begun = c->head_done = c->head_only = c->in_body = false;
    c->has_host = c->has_coding = c->has_expect = false;
}

static bool grow_input(struct connection *c)
{
    char *large = malloc(IN_LARGE);

    if (large == NULL)
        return false;
    memcpy(large, c->in, c->in_used);
    c->in = large;
    c->in_bytes = IN_LARGE;
    return true;
}

static void release_buffers(struct connection *c)
{
    if (c->in != c->in_small)
        free(c->in);
    c->in = c->in_small;
    c->in_bytes = IN_SMALL;
    c->in_filled = false;
    if (c->out != c->out_small)
        free(c->out);
    c->out = c->out_small;
    c->out_bytes = OUT_SMALL;
}

/* Up to one tick too early, for time-outs of seconds; rouse_now_ns costs five times as much. */
static uint64_t about_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Wait for the next request. A quiet connection keeps only its stack. */
static ssize_t receive_first(struct connection *c)
{
    uint64_t now_ns = about_now_ns();
    bool large = c->in != c->in_small || c->out != c->out_small;

    c->request_at = c->in_parsed = c->in_used = 0;
    c->deadline_ns = now_ns + server_of(c)->limits.idle_ns;
    __atomic_store_n(&c->waits_since_ns, now_ns, __ATOMIC_RELAXED);
    if (large) {
        ssize_t n = rouse_recv_until(c->fd, c->in,
                                     HEAD_LIMIT < c->in_bytes ? HEAD_LIMIT : c->in_bytes, 0,
                                     now_ns + QUIET_NS);

        if (n != -ETIMEDOUT)
            return n;
        release_buffers(c);
    }
    return rouse_recv_until(c->fd, c->in, IN_SMALL, 0, c->deadline_ns);
}

/* Read more of a request that has begun. -EMSGSIZE: its head is too long. */
static ssize_t receive_rest(struct connection *c)
{
    size_t limit;

    if (!c->waits_since_ns)
        __atomic_store_n(&c->waits_since_ns, about_now_ns(), __ATOMIC_RELAXED);
    if (c->request_at) {
        memmove(c->in, c->in + c->request_at, c->in_used - c->request_at);
        c->in_used -= c->request_at;
        c->in_parsed = c->in_used;
        c->request_at = 0;
    }
    if (c->head_done && !c->in_body) {
        c->in_body = true;
        c->deadline_ns = about_now_ns() + server_of(c)->limits.body_ns;
    }
    if (c->head_done) {
        /* The body is dropped: keep only the parts of the head that are still needed. */
        size_t end = c->target.at + c->target.bytes + FILES_INDEX_ROOM;

        for (unsigned i = 0; i < KEPT_HEADERS; i++)
            if ((size_t)c->kept[i].at + c->kept[i].bytes > end)
                end = (size_t)c->kept[i].at + c->kept[i].bytes;
        if (c->in_used > end)
            c->in_used = c->in_parsed = end;
    }
    limit = c->head_done || c->in_bytes < HEAD_LIMIT ? c->in_bytes : HEAD_LIMIT;
    if (c->in_used == limit)
        return -EMSGSIZE;
    return rouse_recv_until(c->fd, c->in + c->in_used, limit - c->in_used, 0, limits_receiving(c));
}

/* Returns the bytes read, 0 at the end of input, or -errno. */
static ssize_t receive(struct connection *c)
{
    size_t before;
    ssize_t n;

    if (c->in_filled && c->in == c->in_small && !grow_input(c))
        return -ENOMEM;
    n = c->begun ? receive_rest(c) : receive_first(c);
    if (n <= 0)
        return n;
    before = c->in_used;
    c->in_used = before + (size_t)n;
    c->received += (uint32_t)n;
    c->in_filled = c->in_used == c->in_bytes;
    return n;
}

/* Simulates a table or a log that all connections share: computes while it holds the lock. */
static void use_what_is_shared(void)
{
    static struct rouse_mutex shared = ROUSE_MUTEX_INIT_NAMED("shared");
    uint64_t end_ns;

    rouse_mutex_lock(&shared);
    end_ns = rouse_now_ns() + settings.shared_ns;
    while (rouse_now_ns() < end_ns)
        continue;
    rouse_mutex_unlock(&shared);
}

static void answer(struct connection *c)
{
    struct line *line = access_log_begin(c);

    __atomic_store_n(&c->waits_since_ns, 0, __ATOMIC_RELAXED);
    c->keep = llhttp_should_keep_alive(&c->parser) && !c->body_left &&
              !server_draining(server_of(c));
    if (settings.shared_ns && !c->is_metrics)
        use_what_is_shared();
    if (c->parser.method != HTTP_GET && c->parser.method != HTTP_HEAD)
        response_status(c, 405);
    else
        server_of(c)->answer(c);
    access_log_end(c, line);
}

/* Unknown methods are refused as such; any other invalid request is malformed. */
static unsigned refusal_of(struct connection *c, llhttp_errno_t error)
{
    const char *start = c->in + c->request_at;
    size_t count = 0, bytes = c->in_used - c->request_at;

    if (c->refusal)
        return c->refusal;
    if (error == HPE_PAUSED_H2_UPGRADE)
        return 505;
    if (error != HPE_INVALID_METHOD)
        return 400;
    while (count < bytes && ((start[count] >= 'A' && start[count] <= 'Z') || start[count] == '-'))
        count++;
    return count && (count == bytes || start[count] == ' ') ? 501 : 400;
}

/* Whether the request, of which perhaps only a part has arrived, is a HEAD. */
static bool begins_with_head(const struct connection *c)
{
    const char *start = c->in + c->request_at, *end = c->in + c->in_used;

    while (start < end && (*start == '\r' || *start == '\n'))
        start++;
    return end - start >= 5 && memcmp(start, "HEAD ", 5) == 0;
}

static void refuse(struct connection *c, unsigned status)
{
    struct line *line = access_log_begin(c);

    c->keep = false;
    c->head_only = begins_with_head(c);
    response_status(c, status);
    access_log_end(c, line);
}

/* A part of a request has arrived: from now on its sender has limited time. */
static void begin_request(struct connection *c)
{
    c->begun = true;
    c->begun_ns = about_now_ns();
    c->deadline_ns = c->begun_ns + server_of(c)->limits.header_ns;
    c->received = (uint32_t)(c->in_used - c->request_at);
}

/* Answer every request that has arrived. Returns whether the connection stays open. */
static bool answer_input(struct connection *c)
{
    c->keep = true;
    while (c->keep && !c->failed && c->in_parsed < c->in_used) {
        llhttp_errno_t error;

        if (c->in_length)
            replace_tabs(c, c->in + c->in_parsed);
        error = llhttp_execute(&c->parser, c->in + c->in_parsed, c->in_used - c->in_parsed);

        if (error == HPE_OK) {
            c->in_parsed = c->in_used;
            if (!c->begun)
                begin_request(c);
        } else if (error == HPE_PAUSED) {
            c->in_parsed = (size_t)(llhttp_get_error_pos(&c->parser) - c->in);
            answer(c);
            llhttp_resume(&c->parser);
            forget_request(c);
        } else {
            refuse(c, refusal_of(c, error));
        }
    }
    return response_flush(c, 0) && c->keep;
}

/*
 * Let the client read the last answer before the connection is closed: see the head of this file.
 */
static void linger(struct connection *c)
{
    uint64_t deadline_ns = rouse_now_ns() + LINGER_NS;

    if (c->failed || rouse_shutdown(c->fd, SHUT_WR) < 0)
        return;
    while (rouse_recv_until(c->fd, c->in_small, IN_SMALL, 0, deadline_ns) > 0 &&
           rouse_now_ns() < deadline_ns)
        ;
}

/* Whether everything that has arrived of the request belongs to the target in its first line. */
static bool target_goes_on(const struct connection *c)
{
    return c->request_at + c->target.at + c->target.bytes == c->in_used;
}

static enum cause cause_of_timeout(const struct connection *c)
{
    if (!c->begun)
        return CAUSE_IDLE;
    if (c->by_rate)
        return CAUSE_RATE;
    return c->head_done ? CAUSE_BODY : CAUSE_HEADER;
}

/* Refuse the first request of a client that has too many connections. Its place is free again at once. */
static void turn_away(struct connection *c)
{
    ssize_t n = rouse_recv_until(c->fd, c->in, IN_SMALL, 0, rouse_now_ns() + REFUSED_NS);

    c->in_used = n > 0 ? (size_t)n : 0;
    refuse(c, 503);
    if (!response_flush(c, 0) || rouse_shutdown(c->fd, SHUT_WR) < 0)
        return;
    /* Unread input would reset the connection, and the answer could be lost. */
    while (rouse_recv_until(c->fd, c->in, IN_SMALL, 0, 0) > 0)
        ;
}

static void converse(struct connection *c)
{
    ssize_t n;

    do
        n = receive(c);
    while (n > 0 && answer_input(c));

    if (n == -ETIMEDOUT)
        limits_count(c, cause_of_timeout(c));
    if (n <= 0 && c->begun && !server_draining(server_of(c))) {
        if (n == -ETIMEDOUT)
            refuse(c, 408);
        else if (n == -EMSGSIZE)
            refuse(c, target_goes_on(c) ? 414 : 431);
        else if (n == 0) /* the input ends within a request */
            refuse(c, __atomic_load_n(&c->is_shut, __ATOMIC_RELAXED) ? 408 : 400);
        if (c->out_used)
            response_flush(c, 0);
    }
    /*
     * After an ordinary last answer no input can be unread, unless more requests or a body followed it.
     */
    if (c->begun || c->refusal || c->body_left || c->in_parsed < c->in_used)
        linger(c);
}

void *connection_run(void *arg)
{
    struct connection c;

    memset(&c, 0, offsetof(struct connection, out_small));
    c.is_metrics = (intptr_t)arg & 1;
    c.fd = (int)((intptr_t)arg / 2);
    c.in = c.in_small;
    c.in_bytes = IN_SMALL;
    c.out = c.out_small;
    c.out_bytes = OUT_SMALL;
    llhttp_init(&c.parser, HTTP_REQUEST, &callbacks);
    c.parser.data = &c;
    /* Versions are checked in on_headers_complete, which distinguishes 505 from 400. */
    c.parser.lenient_flags |= LENIENT_VERSION;

    server_enter(&c);
    if (limits_enter(&c))
        converse(&c);
    else
        turn_away(&c);
    limits_leave(&c);
    release_buffers(&c);
    server_leave(&c);
    return NULL;
}
