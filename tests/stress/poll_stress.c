/* SPDX-License-Identifier: MIT */
/*
 * poll_stress.c - threads of every kind poll changing sets of channels, exclusively or not, beside
 * readers. Tokens come one at a time to each channel, and each must be taken. Most waiting has no
 * deadline: a lost wake-up is a hang, which the watchdog reports. Bystanders wait for events that
 * never come and must not be woken at all. The test prints how often exclusive pollers waited and
 * how many wake-ups were spurious; poll_exclusive_test checks how many there may be.
 *
 * The environment sets ROUSE_SEED (printed) and ROUSE_SCALE (tokens in percent). Runs with 1, 2 and
 * 4 workers, or with ROUSE_WORKERS.
 */
#include "unit/io/poll_test.h"

#define CHANNELS 12
#define GUESTS 12
#define TOKENS 1500

/*
 * ALONE: no thread has a deadline, and few share a channel, so that no thread hides another's lost
 * wake-up.
 */
enum company { ALONE, WITH_GUESTS, WITH_READERS, COMPANIES };
enum taking { TAKE_PLAIN, TAKE_EXCLUSIVE, TAKE_MIXED, TAKE_SETS };

#define POOLS 3
static struct {
    struct rouse_set *sets[POOLS]; /* each has every channel */
    int ends[CHANNELS][2];
    uint32_t sent[CHANNELS], taken[CHANNELS];
    uint32_t is_over;
    uint32_t tokens;
    unsigned pool; /* the only one of those that are alone */
    enum taking taking;
    enum company company;
    uint64_t waits, timeouts, useless; /* of those that poll exclusively */
    uint64_t cancels;
} town;

static uint64_t draw(uint64_t *random, uint64_t below)
{
    return rsi_random_next(random) % below;
}

static uint64_t random_for(unsigned index)
{
    return seed_of_run() * 2654435761u + index * 40503u + 1;
}

/* Take one token if it is still there. */
static void take(unsigned channel)
{
    char bytes[8];
    size_t unit = town.ends[channel][0] == town.ends[channel][1] ? 8 : 1;
    ssize_t got = rouse_read_until(town.ends[channel][0], bytes, unit, 0);
    if (got == -ETIMEDOUT || got == -ECANCELED)
        return;
    EQUALS(got, unit);
    rsi_fetch_add_acq_rel(&town.taken[channel], 1u);
}

static bool is_over(void)
{
    return rsi_load_acquire(&town.is_over) != 0; /* pairs with send_all's release */
}

/* home: the channel that the set always has; CHANNELS: none. */
static unsigned choose(struct pollfd *fds, unsigned *channels, unsigned home, uint64_t *random)
{
    unsigned count = 0, extra = (unsigned)draw(random, 1u << CHANNELS);
    if (draw(random, 3) == 0)
        extra = 0;
    if (town.company == ALONE)
        extra &= 1u << (home + 1) % CHANNELS;
    for (unsigned i = 0; i < CHANNELS; i++)
        if (i == home || (extra & 1u << i) != 0) {
            channels[count] = i;
            fds[count++] = (struct pollfd){ .fd = town.ends[i][0], .events = POLLIN };
        }
    return count;
}

static void poll_round(unsigned home, bool is_exclusive, uint64_t *random)
{
    struct pollfd fds[CHANNELS];
    unsigned channels[CHANNELS];
    struct rouse_wait_record before, after;
    unsigned count = choose(fds, channels, home, random);
    uint64_t deadline_ns = ROUSE_FOREVER;
    if (home == CHANNELS || (town.company != ALONE && draw(random, 4) == 0))
        deadline_ns = rouse_now_ns() + draw(random, 400000);
    rouse_obs_last_wait(&before);
    int ready = is_exclusive ? rouse_poll_exclusive_until(fds, count, deadline_ns)
                             : rouse_poll_until(fds, count, deadline_ns);
    rouse_obs_last_wait(&after);
    if (is_exclusive) {
        rsi_fetch_add_relaxed(&town.waits, after.wait_count - before.wait_count);
        rsi_fetch_add_relaxed(&town.useless, after.useless_count - before.useless_count);
        bool has_ended =
            after.wait_count != before.wait_count &&
            (after.verdict == ROUSE_VERDICT_TIMEOUT || after.verdict == ROUSE_VERDICT_CANCELLED);
        rsi_fetch_add_relaxed(&town.timeouts, has_ended);
    }
    CHECK(ready >= 0 || ready == -ECANCELED);
    if (draw(random, 8) == 0)
        return; /* not handled: the next poll, or a park, hands it on */
    if (draw(random, 8) == 0)
        (void)rouse_sleep(draw(random, 50000));
    for (unsigned i = 0; i < count && ready > 0; i++)
        if (fds[i].revents != 0)
            take(channels[i]);
}

/* One of a pool of threads that wait for a set. It handles most of the events that it receives. */
static void set_round(unsigned pool, uint64_t *random)
{
    struct rouse_set_event events[CHANNELS];
    unsigned most = 1 + (unsigned)draw(random, CHANNELS);
    uint64_t deadline_ns = ROUSE_FOREVER;
    if (town.company != ALONE && draw(random, 4) == 0)
        deadline_ns = rouse_now_ns() + draw(random, 400000);
    int told = rouse_set_wait_until(town.sets[pool], events, most, deadline_ns);
    CHECK(told > 0 || told == -ECANCELED || told == -ETIMEDOUT);
    if (draw(random, 8) == 0)
        (void)rouse_sleep(draw(random, 50000));
    for (int i = 0; i < told; i++) {
        unsigned channel = (unsigned)events[i].data;
        bool is_once = pool == 1;
        if (is_once || draw(random, 8) != 0)
            take(channel);
        /* The other pools handle a descriptor that is in no set for a moment. */
        if (pool == 2 && draw(random, 8) == 0 &&
            rouse_set_remove(town.sets[pool], events[i].fd) == 0)
            EQUALS(rouse_set_add(town.sets[pool], events[i].fd, POLLIN, 0, channel), 0);
        if (is_once)
            EQUALS(
                rouse_set_modify(town.sets[pool], events[i].fd, POLLIN, ROUSE_SET_ONESHOT, channel),
                0);
    }
}

static void set_waiter(void *arg, unsigned index)
{
    uint64_t random = random_for(index);
    (void)arg;
    while (!is_over())
        set_round(town.company == ALONE ? town.pool : index % POOLS, &random);
}

static void resident(void *arg, unsigned index)
{
    uint64_t random = random_for(index);
    bool is_exclusive = town.taking == TAKE_EXCLUSIVE || (town.taking == TAKE_MIXED && index % 2);
    (void)arg;
    while (!is_over())
        poll_round(index % CHANNELS, is_exclusive, &random);
}

static void guest(void *arg, unsigned index)
{
    uint64_t random = random_for(index);
    (void)arg;
    while (!is_over())
        poll_round(CHANNELS, town.taking != TAKE_PLAIN && index % 2 == 0, &random);
}

static void reader(void *arg, unsigned index)
{
    uint64_t random = random_for(index);
    (void)arg;
    while (!is_over()) {
        unsigned channel = (unsigned)draw(&random, CHANNELS);
        char bytes[8];
        size_t unit = town.ends[channel][0] == town.ends[channel][1] ? 8 : 1;
        uint64_t deadline_ns = rouse_now_ns() + draw(&random, 300000);
        if (rouse_read_until(town.ends[channel][0], bytes, unit, deadline_ns) > 0)
            rsi_fetch_add_acq_rel(&town.taken[channel], 1u);
        (void)rouse_sleep(draw(&random, 100000));
    }
}

/* Waits where events come all the time, but none that it asks for. */
static void bystander(void *arg, unsigned index)
{
    struct pollfd fds[CHANNELS];
    struct rouse_wait_record record;
    (void)arg;
    (void)index;
    for (unsigned i = 0; i < CHANNELS; i++)
        fds[i] = (struct pollfd){ .fd = town.ends[i][0], .events = POLLPRI | POLLRDHUP };
    EQUALS(rouse_poll(fds, CHANNELS, -1), -ECANCELED);
    rouse_obs_last_wait(&record);
    EQUALS(record.useless_count, 0);
    CHECK(record.wait_count <= 2); /* arming a descriptor may take a turn */
}

static void send_all(void *arg, unsigned index)
{
    struct crew *crew = arg;
    uint64_t random = random_for(1000 + index);
    for (uint32_t i = 0; i < town.tokens; i++) {
        unsigned channel = (unsigned)draw(&random, CHANNELS);
        uint32_t sent = rsi_load_relaxed(&town.sent[channel]);
        UNTIL(rsi_load_acquire(&town.taken[channel]) == sent);
        rsi_store_relaxed(&town.sent[channel], sent + 1);
        if (town.ends[channel][0] == town.ends[channel][1])
            eventfd_add(town.ends[channel][1], 1);
        else
            put_bytes(town.ends[channel][1], 1);
        if (draw(&random, 16) == 0) {
            town.cancels++;
            (void)rouse_thread_cancel(crew->members[draw(&random, CHANNELS)].thread);
        }
    }
    for (unsigned i = 0; i < CHANNELS; i++)
        UNTIL(rsi_load_acquire(&town.taken[i]) == rsi_load_relaxed(&town.sent[i]));
}

static void run_town(enum taking taking, enum company company, unsigned pool)
{
    static struct crew crew, bystanders;
    const char *scale = getenv("ROUSE_SCALE");
    memset(&town, 0, sizeof town);
    town.taking = taking;
    town.company = company;
    town.pool = pool;
    town.tokens = (uint32_t)(TOKENS * (scale ? strtoul(scale, NULL, 10) : 100) / 100 / SCALE) + 1;
    for (unsigned i = 0; i < CHANNELS; i++) {
        wire_open((enum wire)(i % WIRES), town.ends[i]);
        set_nonblock(town.ends[i][1], true);
    }
    for (unsigned i = 0; i < POOLS; i++) {
        EQUALS(rouse_set_create(&town.sets[i]), 0);
        for (unsigned j = 0; j < CHANNELS && taking == TAKE_SETS; j++)
            EQUALS(rouse_set_add(town.sets[i], town.ends[j][0], POLLIN,
                                 i == 1 ? ROUSE_SET_ONESHOT : 0, j),
                   0);
    }
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    crew_add_many(&bystanders, CREW_USER, 3, bystander, NULL);
    bool has_sets = taking == TAKE_SETS;
    crew_add_many(&crew, CREW_MIXED, CHANNELS, has_sets ? set_waiter : resident, NULL);
    if (company != ALONE)
        crew_add_many(&crew, CREW_MIXED, GUESTS, guest, NULL);
    if (company == WITH_READERS)
        crew_add_many(&crew, CREW_MIXED, 4, reader, NULL);
    send_all(&crew, 0);
    rsi_store_release(&town.is_over, 1u);
    for (unsigned i = 0; i < CHANNELS; i++) /* threads that still poll see that it is over */
        for (unsigned j = 0; j < 2 * CHANNELS; j++)
            (void)rouse_thread_cancel(crew.members[i].thread);
    crew_join(&crew);
    for (unsigned i = 0; i < bystanders.count; i++)
        EQUALS(rouse_thread_cancel(bystanders.members[i].thread), 0);
    crew_join(&bystanders);
    rouse_obs_set_mode(ROUSE_OBS_OFF);
    for (unsigned i = 0; i < POOLS; i++)
        rouse_set_destroy(town.sets[i]);
    for (unsigned i = 0; i < CHANNELS; i++) {
        EQUALS(await_count(town.ends[i][0], RSI_FD_READ), 0);
        wire_close(town.ends[i]);
    }
    printf(
        "%u tokens, %lu cancels; exclusive: %lu waits, %lu ended by time or cancel, %lu useless\n",
        town.tokens, (unsigned long)town.cancels, (unsigned long)town.waits,
        (unsigned long)town.timeouts, (unsigned long)town.useless);
}

static void non_exclusive_pollers_take_each_token(void **state)
{
    (void)state;
    for (enum company company = 0; company < COMPANIES; company++)
        run_town(TAKE_PLAIN, company, 0);
}

static void exclusive_pollers_take_each_token(void **state)
{
    (void)state;
    for (enum company company = 0; company < COMPANIES; company++)
        run_town(TAKE_EXCLUSIVE, company, 0);
}

static void both_take_each_token(void **state)
{
    (void)state;
    for (enum company company = 0; company < COMPANIES; company++)
        run_town(TAKE_MIXED, company, 0);
}

static void waiters_for_sets_take_each_token(void **state)
{
    (void)state;
    for (unsigned pool = 0; pool < POOLS; pool++)
        run_town(TAKE_SETS, ALONE, pool);
    run_town(TAKE_SETS, WITH_GUESTS, 0);
    run_town(TAKE_SETS, WITH_READERS, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(non_exclusive_pollers_take_each_token),
        cmocka_unit_test(exclusive_pollers_take_each_token),
        cmocka_unit_test(both_take_each_token),
        cmocka_unit_test(waiters_for_sets_take_each_token),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
