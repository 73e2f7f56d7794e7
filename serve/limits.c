/* SPDX-License-Identifier: MIT */
/*
 * limits.c - what one client may take: connections per address, time, and slowness.
 *
 * Addresses  The connections of an address are counted in a table of chains. A client can choose the lower half of its
 *            IPv6 address, so only the upper half counts. The hash has a random key: nobody can aim at one chain.
 * Receiving  A request's head and its body have one deadline each, from the first byte, so no client can extend its
 *            time by sending a byte now and then. The minimum rate gives an earlier deadline to those that send less.
 * Sending    What counts is what the kernel takes while its buffer is full: as much as the client's side acknowledges. It
 *            calls a socket writable only when a third of the buffer is free, which a slow client needs seconds for. So
 *            the thread tries some times before it judges. Only one that cannot send all does, so other answers pay nothing.
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "serve.h"

#define CHAINS 4096u
#define SECOND_NS ((uint64_t)1000 * 1000 * 1000)

/* Progress is looked for this many times in a time-out: it is noticed at most two parts late. */
#define LOOKS 4u

struct client {
    struct client *next;
    uint64_t address;
    unsigned count;
    bool is_v4;
};

static struct rouse_mutex lock = ROUSE_MUTEX_INIT_NAMED("addresses");
static struct client *clients[CHAINS]; /* under lock */
static uint64_t hash_key;              /* written before the first connection */

static uint64_t ended[CAUSES]; /* by any thread; relaxed, only summed up */

int limits_prepare(void)
{
    return getrandom(&hash_key, sizeof(hash_key), 0) == sizeof(hash_key) ? 0 : -1;
}

void limits_count(const struct connection *c, enum cause cause)
{
    if (!c->is_metrics)
        __atomic_fetch_add(&ended[cause], 1, __ATOMIC_RELAXED);
}

uint64_t limits_counted(enum cause cause)
{
    return __atomic_load_n(&ended[cause], __ATOMIC_RELAXED);
}

/* Whether the peer has an address that counts. One without a network address has none. */
static bool read_peer(int fd, struct client *peer)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } from = { 0 };
    socklen_t length = sizeof(from);
    const uint8_t *bytes = from.v6.sin6_addr.s6_addr;

    if (getpeername(fd, &from.any, &length) < 0)
        return false;
    peer->is_v4 = from.any.sa_family == AF_INET ||
                  (from.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr));
    peer->address = 0;
    if (from.any.sa_family == AF_INET)
        memcpy(&peer->address, &from.v4.sin_addr, 4);
    else if (peer->is_v4)
        memcpy(&peer->address, bytes + 12, 4);
    else if (from.any.sa_family == AF_INET6)
        memcpy(&peer->address, bytes, 8);
    else
        return false;
    return true;
}

/* The finalizer of MurmurHash3, with a key before each of its multiplications. */
static unsigned chain_of(uint64_t address)
{
    uint64_t hash = address ^ hash_key;

    hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ hash >> 33 ^ hash_key) * UINT64_C(0xc4ceb9fe1a85ec53);
    return (unsigned)(hash >> 33) % CHAINS;
}

/* The link to the client with this address, or the empty link at the chain's end. */
static struct client **find_locked(const struct client *peer)
{
    struct client **link = &clients[chain_of(peer->address)];

    while (*link && ((*link)->address != peer->address || (*link)->is_v4 != peer->is_v4))
        link = &(*link)->next;
    return link;
}

/* A client that cannot be counted for lack of memory is over the limit. */
static bool count_locked(struct connection *c, const struct client *peer)
{
    struct client **link = find_locked(peer);

    if (*link == NULL) {
        if ((*link = malloc(sizeof(**link))) == NULL)
            return false;
        **link = *peer;
    } else if ((*link)->count >= settings.per_address) {
        return false;
    }
    (*link)->count++;
    c->client = *link;
    return true;
}

bool limits_enter(struct connection *c)
{
    struct client peer = { 0 };
    bool enters;

    if (c->is_metrics || settings.per_address == 0 || !read_peer(c->fd, &peer))
        return true;
    rouse_mutex_lock(&lock);
    enters = count_locked(c, &peer);
    rouse_mutex_unlock(&lock);
    if (!enters)
        limits_count(c, CAUSE_ADDRESS);
    return enters;
}

void limits_leave(struct connection *c)
{
    struct client **link, *gone = NULL;

    if (c->client == NULL)
        return;
    rouse_mutex_lock(&lock);
    if (--c->client->count == 0) {
        gone = c->client;
        link = find_locked(gone);
        *link = gone->next;
    }
    rouse_mutex_unlock(&lock);
    free(gone);
}

void limits_at_most(struct limits *limits, uint64_t most_ns)
{
    uint64_t *times[] = { &limits->idle_ns, &limits->header_ns, &limits->body_ns,
                          &limits->write_ns };

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (*times[i] > most_ns)
            *times[i] = most_ns;
}

uint64_t limits_receiving(struct connection *c)
{
    const struct limits *limits = &server_of(c)->limits;
    uint64_t rate_ns;

    if (limits->rate == 0)
        return c->deadline_ns;
    rate_ns = c->begun_ns + limits->grace_ns + c->received * SECOND_NS / limits->rate;
    c->by_rate = rate_ns < c->deadline_ns;
    return c->by_rate ? rate_ns : c->deadline_ns;
}

bool limits_sending(struct connection *c, struct sending *s)
{
    const struct limits *limits = &server_of(c)->limits;
    uint64_t now_ns = rouse_now_ns();

    if (s->look_ns && now_ns < s->look_ns)
        return true;
    if (s->look_ns == 0) {
        s->window_ns = now_ns;
        s->window_sent = s->sent;
    }
    if (s->look_ns == 0 || s->sent != s->seen) {
        s->seen = s->sent;
        s->moved_ns = now_ns;
    }
    if (now_ns - s->moved_ns >= limits->write_ns) {
        limits_count(c, CAUSE_WRITE);
        return false;
    }
    if (limits->rate && now_ns - s->window_ns >= limits->grace_ns) {
        uint64_t least = limits->rate * ((now_ns - s->window_ns) / (SECOND_NS / 1000)) / 1000;

        if ((uint64_t)(s->sent - s->window_sent) < least) {
            limits_count(c, CAUSE_RATE);
            return false;
        }
        s->window_ns = now_ns;
        s->window_sent = s->sent;
    }
    s->look_ns = now_ns + limits->write_ns / LOOKS;
    if (limits->rate && limits->grace_ns < limits->write_ns)
        s->look_ns = now_ns + limits->grace_ns / LOOKS;
    return true;
}
