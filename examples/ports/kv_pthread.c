/* SPDX-License-Identifier: MIT */
/*
 * kv_pthread.c - a key-value server for memcached's text protocol: get, set, delete, version, quit.
 *
 * usage: kv_pthread [PORT]    (default: port 11211; port 0 is any free port)
 *
 * One thread per connection, one mutex per bucket. Nothing expires and nothing is evicted: a full store refuses what
 * is set. SIGTERM ends the server after it has closed every connection. Compare: diff kv_pthread.c kv_rouse.c
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUCKETS 4096
#define KEY_BYTES 250
#define VALUE_BYTES ((size_t)1 << 20)
#define STORE_BYTES ((size_t)64 << 20)

struct item {
    struct item *next;
    unsigned references; /* the table's and each reader's; protected by the bucket's lock */
    uint32_t flags;
    size_t key_bytes, value_bytes;
    char bytes[]; /* the key, the value and the end of its line */
};

struct bucket {
    pthread_mutex_t lock;
    struct item *first;
};

struct connection {
    struct connection *next, **link; /* protected by connections_lock */
    int fd;
    char in[2048], out[2048];
    size_t in_begin, in_end, out_bytes;
};

static struct bucket table[BUCKETS];
static atomic_size_t store_bytes;

static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_left = PTHREAD_COND_INITIALIZER;
/* Protected by connections_lock: */
static struct connection *connections;
static unsigned connection_count;

/* Sending and receiving. Each returns false if the connection is over. */

static bool send_all(int fd, const char *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        from += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool flush(struct connection *c)
{
    size_t bytes = c->out_bytes;

    c->out_bytes = 0;
    return send_all(c->fd, c->out, bytes);
}

static bool answer(struct connection *c, const char *from, size_t bytes)
{
    if (bytes > sizeof(c->out) - c->out_bytes && !flush(c))
        return false;
    if (bytes > sizeof(c->out))
        return send_all(c->fd, from, bytes);
    memcpy(c->out + c->out_bytes, from, bytes);
    c->out_bytes += bytes;
    return true;
}

static bool say(struct connection *c, const char *line)
{
    return answer(c, line, strlen(line)) && answer(c, "\r\n", 2);
}

/* Receive more. All answers so far are sent before this waits. */
static bool receive(struct connection *c)
{
    ssize_t got;

    if (!flush(c))
        return false;
    memmove(c->in, c->in + c->in_begin, c->in_end - c->in_begin);
    c->in_end -= c->in_begin;
    c->in_begin = 0;
    got = recv(c->fd, c->in + c->in_end, sizeof(c->in) - c->in_end, 0);
    if (got <= 0)
        return false;
    c->in_end += (size_t)got;
    return true;
}

/* The next line without its end, valid until more is received. NULL if the connection is over. */
static char *receive_line(struct connection *c)
{
    char *line, *end;

    while (!(end = memchr(c->in + c->in_begin, '\n', c->in_end - c->in_begin))) {
        if (c->in_end - c->in_begin == sizeof(c->in)) {
            say(c, "CLIENT_ERROR line too long");
            return NULL;
        }
        if (!receive(c))
            return NULL;
    }
    line = c->in + c->in_begin;
    c->in_begin = (size_t)(end + 1 - c->in);
    if (end > line && end[-1] == '\r')
        end--;
    *end = '\0';
    return line;
}

/* to: NULL to drop the bytes. */
static bool receive_bytes(struct connection *c, char *to, size_t bytes)
{
    while (bytes > 0) {
        size_t part = c->in_end - c->in_begin;

        if (part == 0) {
            if (!receive(c))
                return false;
            continue;
        }
        if (part > bytes)
            part = bytes;
        if (to) {
            memcpy(to, c->in + c->in_begin, part);
            to += part;
        }
        c->in_begin += part;
        bytes -= part;
    }
    return true;
}

/* The store. */

static struct bucket *bucket_of(const char *key, size_t key_bytes)
{
    uint32_t hash = 2166136261; /* FNV-1a */

    for (size_t i = 0; i < key_bytes; i++)
        hash = (hash ^ (unsigned char)key[i]) * 16777619;
    return &table[hash % BUCKETS];
}

/* The place of a key in its bucket: it points to NULL if the key is not there. */
static struct item **find_locked(struct bucket *bucket, const char *key, size_t key_bytes)
{
    struct item **at = &bucket->first;

    while (*at && ((*at)->key_bytes != key_bytes || memcmp((*at)->bytes, key, key_bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void free_item(struct item *item)
{
    size_t bytes = sizeof(*item) + item->key_bytes + item->value_bytes;

    atomic_fetch_sub_explicit(&store_bytes, bytes, memory_order_relaxed);
    free(item);
}

/* NULL if there is no memory for it, or the store is full. */
static struct item *new_item(const char *key, uint32_t flags, size_t value_bytes)
{
    size_t key_bytes = strlen(key), bytes = sizeof(struct item) + key_bytes + value_bytes;
    size_t before = atomic_fetch_add_explicit(&store_bytes, bytes, memory_order_relaxed);
    struct item *item = before + bytes > STORE_BYTES ? NULL : malloc(bytes);

    if (!item) {
        atomic_fetch_sub_explicit(&store_bytes, bytes, memory_order_relaxed);
        return NULL;
    }
    *item = (struct item){ .references = 1, .flags = flags };
    item->key_bytes = key_bytes;
    item->value_bytes = value_bytes;
    memcpy(item->bytes, key, key_bytes);
    return item;
}

static void drop_locked(struct item *item)
{
    if (--item->references == 0)
        free_item(item);
}

/* Put item at the key's place, or nothing if it is NULL. Returns whether the key was there. */
static bool replace(const char *key, size_t key_bytes, struct item *item)
{
    struct bucket *bucket = bucket_of(key, key_bytes);
    struct item **at, *old;

    pthread_mutex_lock(&bucket->lock);
    at = find_locked(bucket, key, key_bytes);
    old = *at;
    if (item) {
        item->next = old ? old->next : NULL;
        *at = item;
    } else if (old) {
        *at = old->next;
    }
    if (old)
        drop_locked(old);
    pthread_mutex_unlock(&bucket->lock);
    return old;
}

/* The requests. Each returns false if the connection is over. */

static bool get_one(struct connection *c, const char *key)
{
    struct bucket *bucket = bucket_of(key, strlen(key));
    char head[KEY_BYTES + 64];
    struct item *item;
    bool is_open;
    int length;

    pthread_mutex_lock(&bucket->lock);
    item = *find_locked(bucket, key, strlen(key));
    if (item)
        item->references++;
    pthread_mutex_unlock(&bucket->lock);
    if (!item)
        return true;
    /* No lock is held while this waits for a slow client. */
    length = snprintf(head, sizeof(head), "VALUE %s %" PRIu32 " %zu\r\n", key, item->flags,
                      item->value_bytes - 2);
    is_open = answer(c, head, (size_t)length) &&
              answer(c, item->bytes + item->key_bytes, item->value_bytes);
    pthread_mutex_lock(&bucket->lock);
    drop_locked(item);
    pthread_mutex_unlock(&bucket->lock);
    return is_open;
}

static bool is_key(const char *word)
{
    return word && strlen(word) <= KEY_BYTES;
}

static bool obey_get(struct connection *c, char **rest)
{
    char *key = strtok_r(NULL, " ", rest);

    if (!key)
        return say(c, "ERROR");
    for (; key; key = strtok_r(NULL, " ", rest)) {
        if (!is_key(key))
            return say(c, "CLIENT_ERROR bad command line format");
        if (!get_one(c, key))
            return false;
    }
    return say(c, "END");
}

static bool is_number(const char *word, unsigned long most, unsigned long *number)
{
    char *end;

    if (!word || *word < '0' || *word > '9')
        return false;
    errno = 0;
    *number = strtoul(word, &end, 10);
    return errno == 0 && *end == '\0' && *number <= most;
}

/* set KEY FLAGS EXPIRY BYTES [noreply], and on the next line the value. */
static bool obey_set(struct connection *c, char **rest)
{
    char *key = strtok_r(NULL, " ", rest), *flags_word = strtok_r(NULL, " ", rest);
    char *expiry = strtok_r(NULL, " ", rest), *bytes_word = strtok_r(NULL, " ", rest);
    char *last = strtok_r(NULL, " ", rest);
    bool is_quiet = last && strcmp(last, "noreply") == 0;
    unsigned long flags, value_bytes;
    struct item *item;

    if (!is_key(key) || !expiry || !is_number(flags_word, UINT32_MAX, &flags) ||
        !is_number(bytes_word, SIZE_MAX / 2, &value_bytes)) {
        /* The end of the value is unknown, so nothing that follows can be understood. */
        say(c, "CLIENT_ERROR bad command line format");
        return false;
    }
    value_bytes += 2;
    item = value_bytes <= VALUE_BYTES + 2 ? new_item(key, (uint32_t)flags, value_bytes) : NULL;
    if (!item)
        return receive_bytes(c, NULL, value_bytes) &&
               say(c, value_bytes > VALUE_BYTES + 2 ? "SERVER_ERROR object too large for cache"
                                                    : "SERVER_ERROR out of memory storing object");
    if (!receive_bytes(c, item->bytes + item->key_bytes, value_bytes)) {
        free_item(item);
        return false;
    }
    if (memcmp(item->bytes + item->key_bytes + value_bytes - 2, "\r\n", 2) != 0) {
        free_item(item);
        say(c, "CLIENT_ERROR bad data chunk");
        return false;
    }
    /* The line with the key is overwritten by now, but the item has a copy. */
    replace(item->bytes, item->key_bytes, item);
    return is_quiet || say(c, "STORED");
}

static bool obey_delete(struct connection *c, char **rest)
{
    char *key = strtok_r(NULL, " ", rest), *last = strtok_r(NULL, " ", rest);
    bool is_quiet = last && strcmp(last, "noreply") == 0, was_there;

    if (!is_key(key))
        return say(c, "CLIENT_ERROR bad command line format");
    was_there = replace(key, strlen(key), NULL);
    return is_quiet || say(c, was_there ? "DELETED" : "NOT_FOUND");
}

static bool obey(struct connection *c, char *line)
{
    char *rest, *command = strtok_r(line, " ", &rest);

    if (!command)
        return say(c, "ERROR");
    if (strcmp(command, "get") == 0)
        return obey_get(c, &rest);
    if (strcmp(command, "set") == 0)
        return obey_set(c, &rest);
    if (strcmp(command, "delete") == 0)
        return obey_delete(c, &rest);
    if (strcmp(command, "version") == 0)
        return say(c, "VERSION kv");
    return strcmp(command, "quit") != 0 && say(c, "ERROR");
}

/* The connections. */

static void enter(struct connection *c)
{
    pthread_mutex_lock(&connections_lock);
    c->next = connections;
    c->link = &connections;
    if (c->next)
        c->next->link = &c->next;
    connections = c;
    connection_count++;
    pthread_mutex_unlock(&connections_lock);
}

static void leave(struct connection *c)
{
    pthread_mutex_lock(&connections_lock);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    pthread_mutex_unlock(&connections_lock);
    /* Now close_all() does not find it, and may not shut down another connection with the same number. */
    close(c->fd);
    free(c);
    pthread_mutex_lock(&connections_lock);
    if (--connection_count == 0)
        pthread_cond_signal(&all_left);
    pthread_mutex_unlock(&connections_lock);
}

static void close_all(void)
{
    pthread_mutex_lock(&connections_lock);
    for (struct connection *c = connections; c; c = c->next)
        shutdown(c->fd, SHUT_RDWR);
    while (connection_count > 0)
        pthread_cond_wait(&all_left, &connections_lock);
    pthread_mutex_unlock(&connections_lock);
}

/* One connection, on its own thread. */
static void *serve(void *arg)
{
    struct connection *c = arg;
    char *line;

    while ((line = receive_line(c)) && obey(c, line))
        continue;
    flush(c);
    leave(c);
    return NULL;
}

/* Returns an error number. */
static int start(int fd)
{
    struct connection *c = calloc(1, sizeof(*c));
    pthread_attr_t attr;
    pthread_t thread;
    int on = 1, error;

    if (!c) {
        close(fd);
        return ENOMEM;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    c->fd = fd;
    enter(c);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attr, serve, c);
    pthread_attr_destroy(&attr);
    if (error)
        leave(c);
    return error;
}

/* Accept connections until main() shuts the listener down. */
static void *accept_all(void *arg)
{
    int listen_fd = *(int *)arg;

    for (;;) {
        int fd = accept(listen_fd, NULL, NULL);
        int error = fd < 0 ? errno : start(fd);

        if (error == 0 || error == ECONNABORTED)
            continue;
        if (fd < 0 && error == EINVAL)
            return NULL;
        /* Out of descriptors, threads or memory: connections that end free some. */
        fprintf(stderr, "kv: a connection must wait: %s\n", strerror(error));
        usleep(100000);
    }
}

_Noreturn static void fail(const char *what, int error)
{
    fprintf(stderr, "kv: %s: %s\n", what, strerror(error));
    exit(1);
}

static int listen_at(unsigned short port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t length = sizeof(address);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        fail("cannot listen", errno);
    printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void empty_table(void)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct item *item, *next;

        for (item = table[i].first; item; item = next) {
            next = item->next;
            free_item(item);
        }
        pthread_mutex_destroy(&table[i].lock);
    }
}

int main(int argc, char **argv)
{
    int port = argc > 1 ? atoi(argv[1]) : 11211, listen_fd, signal_number, error;
    pthread_t acceptor;
    sigset_t ends;

    /* Before the first thread starts, which inherits the mask: only main() receives these signals. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    for (size_t i = 0; i < BUCKETS; i++)
        pthread_mutex_init(&table[i].lock, NULL);
    listen_fd = listen_at((unsigned short)port);
    error = pthread_create(&acceptor, NULL, accept_all, &listen_fd);
    if (error)
        fail("cannot start", error);
    sigwait(&ends, &signal_number);

    shutdown(listen_fd, SHUT_RDWR);
    pthread_join(acceptor, NULL);
    close(listen_fd);
    close_all();
    empty_table();
    return 0;
}
