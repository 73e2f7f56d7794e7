/* SPDX-License-Identifier: MIT */
/* turns_test.c - who gets the turn when participants enter, leave, die or stop while it is given. */
#include "turns/turns.h"
#include "unit/core/core_test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#define COUNT 4u

/* A line of participants in a round robin. A participant is in line while its place has an owner. */
struct line {
    uint64_t turn;
    struct {
        uint64_t owner, stays; /* stays: the ticket, which grows each time the participant enters */
    } places[COUNT];
    /* Called between the choice and the swap, once. */
    void (*before_swap)(struct line *line);
    unsigned notified[8], notified_count;
};

static struct rsi_turns_places places_of(struct line *line)
{
    return (struct rsi_turns_places){ line->places, sizeof line->places[0], COUNT };
}

static uint64_t owner_of(unsigned place)
{
    return rsi_turns_owner_make(1000000000 + place); /* above the largest process id */
}

static unsigned choose(void *user, uint64_t turn, uint64_t *ticket)
{
    struct line *line = user;
    struct rsi_turns_places places = places_of(line);
    unsigned chosen = 0;
    for (unsigned i = 0; i < COUNT && chosen == 0; i++) {
        unsigned place = (rsi_turn_place(turn) + i) % COUNT + 1;
        if (rsi_turns_may_have(rsi_turns_owner(&places, place)))
            chosen = place;
    }
    if (chosen != 0)
        *ticket = rsi_load_seq_cst(&line->places[chosen - 1].stays);
    if (line->before_swap) {
        void (*call)(struct line *) = line->before_swap;
        line->before_swap = NULL;
        call(line);
    }
    return chosen;
}

static bool is_there(void *user, unsigned place, uint64_t ticket)
{
    struct line *line = user;
    struct rsi_turns_places places = places_of(line);
    return rsi_turns_owner(&places, place) != 0 &&
           rsi_load_seq_cst(&line->places[place - 1].stays) == ticket;
}

static void notify(void *user, unsigned place)
{
    struct line *line = user;
    CHECK(line->notified_count < LENGTH(line->notified));
    line->notified[line->notified_count++] = place;
}

static const struct rsi_turns_rules rules = { choose, is_there, notify };

static void enter(struct line *line, unsigned place)
{
    rsi_fetch_add_seq_cst(&line->places[place - 1].stays, UINT64_C(1));
    rsi_store_seq_cst(&line->places[place - 1].owner, owner_of(place)); /* E1 */
    uint64_t turn = rsi_load_seq_cst(&line->turn);                      /* E2 */
    if (rsi_turn_place(turn) == 0)
        (void)rsi_turns_take(&line->turn, turn, place);
}

static void leave_by(struct line *line, unsigned place, const struct rsi_turns_rules *by)
{
    struct rsi_turns_places places = places_of(line);
    rsi_turns_place_leave(&places, place, owner_of(place)); /* L1 */
    uint64_t turn = rsi_load_seq_cst(&line->turn);          /* L2 */
    if (rsi_turn_place(turn) == place)
        (void)rsi_turns_give(&line->turn, turn, by, line);
}

static void leave(struct line *line, unsigned place)
{
    leave_by(line, place, &rules);
}

static void expect_notified(const struct line *line, unsigned place)
{
    CHECK_EQUAL(line->notified_count, 1);
    CHECK_EQUAL(line->notified[0], place);
    CHECK_EQUAL(rsi_turn_place(line->turn), place);
}

static void turn_goes_round(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    for (unsigned place = 1; place <= COUNT; place++)
        enter(&line, place);
    CHECK_EQUAL(rsi_turn_place(line.turn), 1); /* the first to enter took it */
    for (unsigned i = 1; i <= COUNT; i++) {
        CHECK(rsi_turns_give(&line.turn, line.turn, &rules, &line));
        CHECK_EQUAL(line.notified[i - 1], i % COUNT + 1);
        CHECK_EQUAL(rsi_turn_place(line.turn), i % COUNT + 1);
    }
    CHECK_EQUAL(line.turn >> 16, 1 + COUNT); /* one swap per turn */
}

static void second_leaves(struct line *line)
{
    leave(line, 2);
}

/* The second of three is chosen, and before_swap runs: the third gets the turn. */
static void expect_that_the_third_gets_it(void (*before_swap)(struct line *line))
{
    struct line line = { .before_swap = before_swap };
    for (unsigned place = 1; place <= 3; place++)
        enter(&line, place);
    CHECK(rsi_turns_give(&line.turn, line.turn, &rules, &line));
    expect_notified(&line, 3);
}

static void turn_of_a_participant_that_left_before_the_swap_passes_on(void **state)
{
    (void)state;
    expect_that_the_third_gets_it(second_leaves);
}

static void second_leaves_and_comes_back(struct line *line)
{
    leave(line, 2);
    enter(line, 2);
}

/* The stay that was chosen has ended, although the place has the same owner again. */
static void turn_belongs_to_one_stay(void **state)
{
    (void)state;
    expect_that_the_third_gets_it(second_leaves_and_comes_back);
}

static void third_enters(struct line *line)
{
    enter(line, 3);
}

static void participant_that_enters_while_none_is_chosen_gets_the_turn(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    enter(&line, 1);
    line.before_swap = third_enters;
    leave(&line, 1);
    expect_notified(&line, 3);
}

static void last_participant_leaves_the_turn_to_nobody(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    enter(&line, 1);
    leave(&line, 1);
    CHECK_EQUAL(line.notified_count, 0);
    CHECK_EQUAL(rsi_turn_place(line.turn), 0);
}

static void another_gives_first(struct line *line)
{
    CHECK(rsi_turns_give(&line->turn, line->turn, &rules, line));
}

static void turn_is_given_once_by_two(void **state)
{
    (void)state;
    struct line line = { .before_swap = another_gives_first };
    for (unsigned place = 1; place <= 3; place++)
        enter(&line, place);
    CHECK(!rsi_turns_give(&line.turn, line.turn, &rules, &line));
    expect_notified(&line, 2);
}

/* The id of a process that has exited and been reaped. */
static unsigned id_of_a_dead(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
    return (unsigned)child;
}

static void place_of_a_dead_owner_is_taken_after_the_free_ones(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    struct rsi_turns_places places = places_of(&line);
    uint64_t mine = rsi_turns_owner_make((unsigned)getpid());
    uint64_t dead = rsi_turns_owner_make(id_of_a_dead());
    CHECK(rsi_turns_is_dead(dead));
    CHECK(rsi_turns_is_dead(0));
    CHECK(!rsi_turns_is_dead(mine));
    line.places[0].owner = mine;
    line.places[1].owner = dead;
    line.places[2].owner = mine;
    CHECK_EQUAL(rsi_turns_place_take(&places, mine, false), 4); /* it is free */
    CHECK_EQUAL(rsi_turns_place_take(&places, mine, false), 2);
    CHECK_EQUAL(rsi_turns_place_take(&places, mine, true), 0);
}

static void missed_place_gets_no_turn_until_its_owner_returns(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    struct rsi_turns_places places = places_of(&line);
    for (unsigned place = 1; place <= 3; place++)
        enter(&line, place);
    rsi_turns_mark(&places, 2);
    rsi_turns_mark(&places, 4); /* free: it stays so */
    CHECK_EQUAL(line.places[3].owner, 0);
    CHECK(rsi_turns_give(&line.turn, line.turn, &rules, &line));
    CHECK_EQUAL(line.notified[0], 3);
    CHECK(rsi_turns_unmark(&places, 2, owner_of(2)));
    CHECK(rsi_turns_unmark(&places, 2, owner_of(2)));            /* not marked any more */
    CHECK(rsi_turns_give(&line.turn, line.turn, &rules, &line)); /* to 1 */
    CHECK(rsi_turns_give(&line.turn, line.turn, &rules, &line));
    CHECK_EQUAL(line.notified[2], 2);
}

static void missed_place_is_taken_last_and_its_owner_finds_out(void **state)
{
    (void)state;
    struct line line = { .turn = 0 };
    struct rsi_turns_places places = places_of(&line);
    uint64_t mine = rsi_turns_owner_make((unsigned)getpid()), newcomer = mine + 4;
    for (unsigned i = 0; i < COUNT; i++)
        line.places[i].owner = mine;
    rsi_turns_mark(&places, 3);
    CHECK_EQUAL(rsi_turns_place_take(&places, newcomer, false), 0);
    CHECK_EQUAL(rsi_turns_place_take(&places, newcomer, true), 3);
    CHECK(!rsi_turns_unmark(&places, 3, mine));
    rsi_turns_place_leave(&places, 3, mine); /* not its own any more */
    CHECK(line.places[2].owner == newcomer);
    rsi_turns_mark(&places, 3);
    rsi_turns_place_leave(&places, 3, newcomer); /* marked, but its own */
    CHECK_EQUAL(line.places[2].owner, 0);
}

static void turn_is_overdue_after_100_ms_with_a_connection(void **state)
{
    (void)state;
    struct rsi_turns_watch watch = { .turn = 7 };
    CHECK_EQUAL(rsi_turns_check(&watch, 7, false, 1000 * MS), 100 * MS);
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1100 * MS), 100 * MS); /* first found */
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1101 * MS), 99 * MS);
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1200 * MS - 1), 1);
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1200 * MS), 0);
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1201 * MS), 100 * MS); /* starts again */
}

static void watch_starts_again_when_the_connection_or_the_turn_is_another(void **state)
{
    (void)state;
    struct rsi_turns_watch watch = { .turn = 7 };
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1000 * MS), 100 * MS);
    CHECK_EQUAL(rsi_turns_check(&watch, 7, false, 1099 * MS), 100 * MS); /* it was taken */
    CHECK_EQUAL(rsi_turns_check(&watch, 7, true, 1150 * MS), 100 * MS);
    CHECK_EQUAL(rsi_turns_check(&watch, 8, true, 1250 * MS), 100 * MS); /* the turn moved */
    CHECK_EQUAL(rsi_turns_check(&watch, 8, true, 1349 * MS), 1 * MS);
    CHECK_EQUAL(rsi_turns_check(&watch, 8, true, 1350 * MS), 0);
}

/* The threads of the race, without notifications: each spins until the turn is its own. */
static struct line race;
static unsigned race_rounds;
static pthread_barrier_t race_barrier;

/* Other threads run between the choice and the swap. */
static unsigned choose_slowly(void *user, uint64_t turn, uint64_t *ticket)
{
    unsigned place = choose(user, turn, ticket);
    sched_yield();
    return place;
}

static void no_notification(void *user, unsigned place)
{
    (void)user, (void)place;
}

static const struct rsi_turns_rules race_rules = { choose_slowly, is_there, no_notification };

static void *enter_and_leave(void *arg)
{
    unsigned place = *(unsigned *)arg;
    uint64_t random = place + 1;
    for (unsigned i = 0; i < race_rounds; i++) {
        enter(&race, place);
        if (rsi_random_next(&random) >> 63)
            UNTIL(rsi_turn_place(rsi_load_seq_cst(&race.turn)) == place);
        else
            sched_yield(); /* it leaves without the turn, perhaps while it is chosen */
        leave_by(&race, place, &race_rules);
        pthread_barrier_wait(&race_barrier); /* no thread comes back before all have left */
        CHECK_EQUAL(rsi_turn_place(rsi_load_seq_cst(&race.turn)), 0);
        pthread_barrier_wait(&race_barrier);
    }
    return NULL;
}

/* A participant that leaves while it is chosen does not keep the turn. */
static void leaver_and_giver_race(void **state)
{
    (void)state;
    static unsigned numbers[COUNT];
    pthread_t threads[COUNT];
    race_rounds = rounds_of(2000);
    CHECK(pthread_barrier_init(&race_barrier, NULL, COUNT) == 0);
    for (unsigned i = 0; i < COUNT; i++) {
        numbers[i] = i + 1;
        CHECK(pthread_create(&threads[i], NULL, enter_and_leave, &numbers[i]) == 0);
    }
    for (unsigned i = 0; i < COUNT; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_barrier_destroy(&race_barrier) == 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(turn_goes_round),
        cmocka_unit_test(turn_of_a_participant_that_left_before_the_swap_passes_on),
        cmocka_unit_test(turn_belongs_to_one_stay),
        cmocka_unit_test(participant_that_enters_while_none_is_chosen_gets_the_turn),
        cmocka_unit_test(last_participant_leaves_the_turn_to_nobody),
        cmocka_unit_test(turn_is_given_once_by_two),
        cmocka_unit_test(place_of_a_dead_owner_is_taken_after_the_free_ones),
        cmocka_unit_test(missed_place_gets_no_turn_until_its_owner_returns),
        cmocka_unit_test(missed_place_is_taken_last_and_its_owner_finds_out),
        cmocka_unit_test(turn_is_overdue_after_100_ms_with_a_connection),
        cmocka_unit_test(watch_starts_again_when_the_connection_or_the_turn_is_another),
        cmocka_unit_test(leaver_and_giver_race),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
