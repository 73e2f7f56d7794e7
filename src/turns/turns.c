/* SPDX-License-Identifier: MIT */
/*
 * turns.c - the turn word, the places, and the watch over both.
 *
 * One word, turn, names the place whose turn it is. A participant that enters, leaves or gives the turn on does:
 *   enter: E1 make its place eligible          E2 if turn is nobody's, swap in its own place
 *   leave: L1 make its place ineligible        L2 if turn is its own, give it
 *   give:  G1 choose an eligible place         G2 swap turn to it
 *          G3 read its place again: if its owner has left, give again, else notify it
 *          If there was none to choose: swap turn to nobody, and choose again.
 *
 * Invariant: while a place is eligible, the turn is nobody's for no longer than a give takes, and a participant that
 * has left does not keep it. E1 comes before E2, and G2 before the next choice, so E2 sees nobody or the choice sees
 * E1. L1 comes before L2, and G2 before G3, so L2 sees that the turn is its own or G3 sees that the owner has left. All
 * of these are seq_cst. Model: tests/model/order.pml.
 *
 * A participant that dies or stops while it has the turn only leaves it unused. Those that wait out of turn watch it:
 * if turn has not changed since a check found a connection 100 ms ago, the place is marked as missed and the turn given
 * on. A missed place is not eligible until its owner finds the mark and removes it. So the turn can also be nobody's
 * while all places are marked, or because a participant died while giving it. A check that finds this takes the turn.
 *
 * Rejected: a lock in shared memory (it must be broken when its holder dies or stops); pidfds (they report a death, but
 * not a stop).
 */
#include "turns/turns.h"

#include "base/syscall.h"

#include <errno.h>

static uint64_t turn_after(uint64_t turn, unsigned place)
{
    return ((turn >> 16) + 1) << 16 | place;
}

bool rsi_turns_is_dead(uint64_t owner)
{
    return owner == 0 || rsi_syscall2(SYS_kill, (long)rsi_turns_owner_id(owner), 0) == -ESRCH;
}

unsigned rsi_turns_place_take(const struct rsi_turns_places *places, uint64_t owner,
                              bool may_take_missed)
{
    enum { FREE, DEAD, MISSED, ALL };
    for (unsigned kind = FREE; kind < (may_take_missed ? ALL : MISSED); kind++)
        for (unsigned place = 1; place <= places->count; place++) {
            uint64_t old = rsi_turns_owner(places, place);
            bool may_take = old == 0 || (kind == DEAD && rsi_turns_is_dead(old)) ||
                            (kind == MISSED && rsi_turns_is_missed(old));
            if (may_take && rsi_cas_seq_cst(rsi_turns_owner_word(places, place), &old, owner))
                return place;
        }
    return 0;
}

void rsi_turns_place_leave(const struct rsi_turns_places *places, unsigned place, uint64_t owner)
{
    uint64_t *word = rsi_turns_owner_word(places, place), missed = owner | 1;
    if (!rsi_cas_seq_cst(word, &owner, UINT64_C(0))) /* others only ever add the mark */
        (void)rsi_cas_seq_cst(word, &missed, UINT64_C(0));
}

void rsi_turns_mark(const struct rsi_turns_places *places, unsigned place)
{
    uint64_t owner = rsi_turns_owner(places, place);
    if (owner != 0)
        (void)rsi_cas_seq_cst(rsi_turns_owner_word(places, place), &owner, owner | 1);
}

bool rsi_turns_unmark(const struct rsi_turns_places *places, unsigned place, uint64_t owner)
{
    uint64_t missed = owner | 1;
    return rsi_turns_owner(places, place) == owner ||
           rsi_cas_seq_cst(rsi_turns_owner_word(places, place), &missed, owner);
}

bool rsi_turns_give(uint64_t *word, uint64_t turn, const struct rsi_turns_rules *rules, void *user)
{
    for (bool is_first = true;; is_first = false) {
        uint64_t ticket = 0;
        unsigned place = rules->choose(user, turn, &ticket); /* G1 */
        if (place == 0 && rsi_turn_place(turn) == 0)
            return true; /* no participant has entered meanwhile */
        uint64_t next = turn_after(turn, place);
        if (!rsi_cas_seq_cst(word, &turn, next)) /* G2 */
            return !is_first;
        turn = next;
        if (place != 0 && rules->is_there(user, place, ticket)) { /* G3 */
            rules->notify(user, place);
            return true;
        }
    }
}

bool rsi_turns_take(uint64_t *word, uint64_t turn, unsigned place)
{
    return rsi_cas_seq_cst(word, &turn, turn_after(turn, place)); /* E2 */
}

uint64_t rsi_turns_check(struct rsi_turns_watch *watch, uint64_t turn, bool has_connection,
                         uint64_t now_ns)
{
    bool is_same = turn == watch->turn;
    watch->turn = turn;
    if (!has_connection)
        watch->overdue_ns = 0;
    else if (!is_same || watch->overdue_ns == 0)
        watch->overdue_ns = now_ns + RSI_TURNS_OVERDUE_NS;
    else if (now_ns < watch->overdue_ns)
        return watch->overdue_ns - now_ns;
    else
        return watch->overdue_ns = 0;
    return RSI_TURNS_OVERDUE_NS;
}
