/* SPDX-License-Identifier: MIT */
/*
 * response.c - writes answers.
 *
 * Answers are appended to the connection's buffer, and sent when all requests that have arrived are answered. So
 * many pipelined requests cost one system call. A body too long for the buffer is sent by sendfile after the
 * buffer's contents.
 *
 * A client that does not read, or not fast enough, is disconnected (limits.c).
 * No printf here: its frames would touch a second page of every connection's stack.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"

/* Bodies of up to this size are read into the buffer instead of sent from the file. */
#define COPY_LIMIT ((off_t)8 * 1024)
#define SEND_CHUNK ((off_t)512 * 1024)

#define TEXT(literal) (literal), sizeof(literal) - 1

/*
 * The complete constant answer, except the text of its date. constant_head_bytes of it precede the date.
 */
static char *constant;
static size_t constant_bytes, constant_head_bytes;

/* Send everything. The first attempt does not read the clock: it nearly always suffices. */
static bool send_all(struct connection *c, const char *bytes, size_t count, int flags)
{
    struct sending sending = { 0 };

    while (count && !c->failed) {
        ssize_t n = rouse_send_until(c->fd, bytes, count, flags, sending.look_ns);

        if (n > 0) {
            bytes += n;
            count -= (size_t)n;
            sending.sent += n;
        }
        if ((n < 0 && n != -ETIMEDOUT) || (count && !limits_sending(c, &sending)))
            c->failed = true;
    }
    return !c->failed;
}

bool response_flush(struct connection *c, int flags)
{
    size_t count = c->out_used;

    c->out_used = 0;
    return send_all(c, c->out, count, flags);
}

/*
 * Make room for count more bytes at the end of the buffer, if the large buffer can hold them at all.
 */
static bool reserve(struct connection *c, size_t count)
{
    char *large;

    if (c->out_bytes - c->out_used >= count)
        return true;
    if (c->out == c->out_small && (large = malloc(OUT_LARGE)) != NULL) {
        memcpy(large, c->out, c->out_used);
        c->out = large;
        c->out_bytes = OUT_LARGE;
    }
    if (c->out_bytes - c->out_used < count)
        response_flush(c, 0);
    return c->out_bytes >= count;
}

static void put(struct connection *c, const char *text, size_t count)
{
    if (!reserve(c, count)) {
        send_all(c, text, count, 0);
        return;
    }
    memcpy(c->out + c->out_used, text, count);
    c->out_used += count;
}

#define DIGITS 20

/* Write number to the end of the array. Returns its first digit. */
static size_t decimal(char digits[static DIGITS], uint64_t number)
{
    size_t at = DIGITS;

    do
        digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}

static void put_number(struct connection *c, uint64_t number)
{
    char digits[DIGITS];
    size_t at = decimal(digits, number);

    put(c, digits + at, DIGITS - at);
}

static void two_digits(char *to, unsigned number)
{
    to[0] = (char)('0' + number / 10 % 10);
    to[1] = (char)('0' + number % 10);
}

/*
 * The date of a number of days since 1970: H. Hinnant's algorithm, in years that begin in March, so that the leap day
 * is their last. gmtime_r takes 300 instructions for it, in each answer with a file.
 */
static void civil(int64_t days, int *year, unsigned *month, unsigned *day)
{
    int64_t shifted = days + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    unsigned of_era = (unsigned)(shifted - era * 146097);
    unsigned years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * years + years / 4 - years / 100), from_march;

    from_march = (5 * of_year + 2) / 153;
    *day = of_year - (153 * from_march + 2) / 5 + 1;
    *month = from_march < 10 ? from_march + 2 : from_march - 10; /* 0: January */
    *year = (int)(years + (unsigned)(era * 400)) + (*month < 2);
}

/*
 * The date in HTTP format: Sun, 06 Nov 1994 08:49:37 GMT. Its year has four digits: a time before 1 or after 9999 is
 * shown as the nearest that has.
 */
static void write_date(char *to, time_t seconds)
{
    static const char names[] = "MonTueWedThuFriSatSun";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const time_t first = -62135596800, last = 253402300799;
    int64_t days;
    int year, rest;
    unsigned month, day;

    seconds = seconds < first ? first : seconds > last ? last : seconds;
    days = (seconds - first) / 86400; /* since a Monday */
    rest = (int)((seconds - first) % 86400);
    civil(days + first / 86400, &year, &month, &day);
    memcpy(to, "Day, 00 Mon 0000 00:00:00 GMT", DATE_BYTES);
    memcpy(to, names + days % 7 * 3, 3);
    two_digits(to + 5, day);
    memcpy(to + 8, months + (size_t)month * 3, 3);
    two_digits(to + 12, (unsigned)year / 100);
    two_digits(to + 14, (unsigned)year);
    two_digits(to + 17, (unsigned)rest / 3600);
    two_digits(to + 20, (unsigned)rest / 60 % 60);
    two_digits(to + 23, (unsigned)rest % 60);
}

static const char *date_now(struct connection *c)
{
    time_t now = time(NULL);

    if (now != c->date_seconds) {
        c->date_seconds = now;
        write_date(c->date, now);
    }
    return c->date;
}

/* Write the end of a head: whether the connection stays open, and the empty line. */
static void put_end(struct connection *c)
{
    if (!c->keep)
        put(c, TEXT("\r\nConnection: close\r\n\r\n"));
    else if (c->parser.http_minor == 0)
        put(c, TEXT("\r\nConnection: keep-alive\r\n\r\n"));
    else
        put(c, TEXT("\r\n\r\n"));
}

static const char *reason(unsigned status)
{
    switch (status) {
    case 200: return "200 OK";
    case 206: return "206 Partial Content";
    case 301: return "301 Moved Permanently";
    case 304: return "304 Not Modified";
    case 400: return "400 Bad Request";
    case 403: return "403 Forbidden";
    case 404: return "404 Not Found";
    case 405: return "405 Method Not Allowed";
    case 408: return "408 Request Timeout";
    case 411: return "411 Length Required";
    case 412: return "412 Precondition Failed";
    case 413: return "413 Content Too Large";
    case 414: return "414 URI Too Long";
    case 416: return "416 Range Not Satisfiable";
    case 431: return "431 Request Header Fields Too Large";
    case 501: return "501 Not Implemented";
    case 503: return "503 Service Unavailable";
    case 505: return "505 HTTP Version Not Supported";
    default: return "500 Internal Server Error";
    }
}

/* Only the connection's thread writes it and others read it, so no locked instruction is needed. */
static void count_one(uint64_t *word)
{
    __atomic_store_n(word, *word + 1, __ATOMIC_RELAXED);
}

static void put_status(struct connection *c, unsigned status)
{
    const char *text = reason(status);

    c->status = (uint16_t)status;
    c->body_bytes = 0;
    count_one(&c->answers);
    if (status >= 400)
        count_one(&c->errors);
    put(c, TEXT("HTTP/1.1 "));
    put(c, text, strlen(text));
    put(c, TEXT("\r\nDate: "));
    put(c, date_now(c), DATE_BYTES);
}

/* The body of an answer that has no other: its status in words. */
static void put_reason_body(struct connection *c, unsigned status)
{
    const char *text = reason(status);

    put(c, TEXT("\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "));
    put_number(c, strlen(text) + 1);
    put_end(c);
    if (c->head_only)
        return;
    c->body_bytes = strlen(text) + 1;
    put(c, text, strlen(text));
    put(c, TEXT("\n"));
}

void response_status(struct connection *c, unsigned status)
{
    put_status(c, status);
    if (status == 405)
        put(c, TEXT("\r\nAllow: GET, HEAD"));
    if (status == 503)
        put(c, TEXT("\r\nRetry-After: 1"));
    put_reason_body(c, status);
}

int response_prepare(void)
{
    static const char before[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
                                 "Content-Length: ";
    static const char date[] = "\r\nDate: ", after[] = "\r\n\r\n";
    char digits[DIGITS], *to;
    size_t at = decimal(digits, settings.respond_bytes);

    constant_head_bytes = sizeof(before) - 1 + DIGITS - at + sizeof(date) - 1;
    constant_bytes = constant_head_bytes + DATE_BYTES + sizeof(after) - 1 + settings.respond_bytes;
    to = constant = malloc(constant_bytes);
    if (constant == NULL)
        return -ENOMEM;
    to = mempcpy(to, before, sizeof(before) - 1);
    to = mempcpy(to, digits + at, DIGITS - at);
    to = mempcpy(to, date, sizeof(date) - 1);
    memset(to, ' ', DATE_BYTES);
    to = mempcpy(to + DATE_BYTES, after, sizeof(after) - 1);
    memcpy(to, settings.respond, settings.respond_bytes);
    return 0;
}

void response_text(struct connection *c, const char *type, const char *text, size_t bytes)
{
    put_status(c, 200);
    put(c, TEXT("\r\nContent-Type: "));
    put(c, type, strlen(type));
    put(c, TEXT("\r\nContent-Length: "));
    put_number(c, bytes);
    put_end(c);
    if (!c->head_only)
        put(c, text, bytes);
}

void response_constant(struct connection *c)
{
    count_one(&c->answers);
    c->status = 200;
    c->body_bytes = c->head_only ? 0 : settings.respond_bytes;
    /* The usual case needs only one copy. */
    if (c->keep && c->parser.http_minor == 1 && !c->head_only && reserve(c, constant_bytes)) {
        char *to = c->out + c->out_used;

        memcpy(to, constant, constant_bytes);
        memcpy(to + constant_head_bytes, date_now(c), DATE_BYTES);
        c->out_used += constant_bytes;
        return;
    }
    put(c, constant, constant_head_bytes);
    put(c, date_now(c), DATE_BYTES);
    put_end(c);
    if (!c->head_only)
        put(c, settings.respond, settings.respond_bytes);
}

/* Write text, with each byte encoded that is not in plain. */
static void put_encoded(struct connection *c, const char *text, size_t bytes, const char *plain)
{
    static const char digits[] = "0123456789ABCDEF";

    for (const char *end = text + bytes; text < end; text++) {
        unsigned char byte = (unsigned char)*text;

        if (byte && strchr(plain, byte))
            put(c, text, 1);
        else
            put(c, (char[]){ '%', digits[byte >> 4], digits[byte & 15] }, 3);
    }
}

#define UNRESERVED "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

/*
 * Redirect to the same directory with a slash, and the same query. The path was decoded in place: the query is
 * still between its end and the target's end. It was not decoded, so its percent signs stay.
 */
static void redirect(struct connection *c, const char *path, const char *end)
{
    const char *query = path + strlen(path) + 1, *fragment;

    while (query < end && *query != '?' && *query != '#')
        query++;
    for (fragment = query; fragment < end && *fragment != '#'; fragment++)
        continue;
    put_status(c, 301);
    put(c, TEXT("\r\nLocation: /"));
    put_encoded(c, path, strlen(path), UNRESERVED "/");
    put(c, TEXT("/"));
    put_encoded(c, query, (size_t)(fragment - query), UNRESERVED "/?%:@!$&'()*+,;=");
    put_reason_body(c, 301);
}

/* Send a part of the file through the buffer. Returns whether that was possible. */
static bool put_small(struct connection *c, const struct file *file, const struct range *part)
{
    off_t bytes = part->end - part->first;
    ssize_t n;

    if (bytes > COPY_LIMIT || !reserve(c, (size_t)bytes))
        return false;
    n = files_read(file->fd, c->out + c->out_used, (size_t)bytes, part->first);
    if (n != bytes)
        return false;
    c->out_used += (size_t)n;
    c->body_bytes = (uint64_t)n;
    return true;
}

/* If the file has become shorter, the announced length cannot be sent: the connection ends. */
static void send_file(struct connection *c, const struct file *file, const struct range *part)
{
    struct sending sending = { 0 };
    off_t at = part->first;

    response_flush(c, MSG_MORE);
    while (at < part->end && !c->failed) {
        off_t count = part->end - at < SEND_CHUNK ? part->end - at : SEND_CHUNK;
        ssize_t n = rouse_sendfile_until(c->fd, file->fd, &at, (size_t)count, sending.look_ns);

        sending.sent = at - part->first;
        c->body_bytes = (uint64_t)sending.sent;
        if ((n <= 0 && n != -ETIMEDOUT) || (at < part->end && !limits_sending(c, &sending)))
            c->failed = true;
    }
}

/* The status of an answer with the file, and the part of it to send. */
static unsigned status_of(struct connection *c, const struct file *file, struct range *part)
{
    unsigned status = conditional_status(c, file);
    size_t bytes;
    const char *text = conditional_value(c, KEPT_RANGE, &bytes);

    *part = (struct range){ 0, file->bytes };
    if (status == 200 && text && !c->head_only && conditional_range(c, file))
        status = range_of(text, bytes, file->bytes, part);
    return status;
}

static void put_content_range(struct connection *c, unsigned status, const struct range *part,
                              off_t bytes)
{
    put(c, TEXT("\r\nContent-Range: bytes "));
    if (status == 416) {
        put(c, TEXT("*"));
    } else {
        put_number(c, (uint64_t)part->first);
        put(c, TEXT("-"));
        put_number(c, (uint64_t)part->end - 1);
    }
    put(c, TEXT("/"));
    put_number(c, (uint64_t)bytes);
}

static void respond_file(struct connection *c, const char *path, const struct file *file)
{
    struct range part;
    unsigned status = status_of(c, file, &part);
    char modified[DATE_BYTES], tag[TAG_BYTES];

    if (status == 412) {
        response_status(c, status);
        return;
    }
    put_status(c, status);
    if (status == 206 || status == 416)
        put_content_range(c, status, &part, file->bytes);
    if (status == 416) {
        put_reason_body(c, status);
        return;
    }
    write_date(modified, file->modified);
    put(c, TEXT("\r\nLast-Modified: "));
    put(c, modified, sizeof(modified));
    put(c, TEXT("\r\nETag: "));
    put(c, tag, tag_write(tag, file));
    if (status != 304) {
        const char *type = files_type(path);

        put(c, TEXT("\r\nAccept-Ranges: bytes\r\nContent-Type: "));
        put(c, type, strlen(type));
        put(c, TEXT("\r\nContent-Length: "));
        put_number(c, (uint64_t)(part.end - part.first));
    }
    put_end(c);
    if (status != 304 && !c->head_only && part.end > part.first && !put_small(c, file, &part))
        send_file(c, file, &part);
}

void response_target(struct connection *c)
{
    char *target = c->in + c->request_at + c->target.at;
    char *path = files_path(target, c->target.bytes);
    struct file file;
    int result;

    if (path == NULL) {
        response_status(c, 400);
        return;
    }
    result = files_open(settings.root, path, &file);
    switch (-result) {
    case 0:
        respond_file(c, path, &file);
        close(file.fd); /* no thread waits for it: only this function knows the number */
        break;
    case EISDIR: redirect(c, path, target + c->target.bytes); break;
    case EACCES:
    case EPERM: response_status(c, 403); break;
    case EMFILE:
    case ENFILE:
    case ENOMEM: response_status(c, 503); break;
    case EIO: response_status(c, 500); break;
    default: response_status(c, 404);
    }
}
