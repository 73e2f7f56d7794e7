/* SPDX-License-Identifier: MIT */
/*
 * turns.h - whose turn it is among participants that share a listener and trust no one to stay alive.
 *
 * A participant is a process (the runtime's listener, io/accept/gates.c) or a thread of any process (`--accept`,
 * preload/accept/order.c). All shared state is in memory that the participants map: one word for the turn, and one
 * place per participant. No lock is held, so a participant may die or stop anywhere.
 *
 * The users decide who is next, and how the next participant is notified (struct rsi_turns_rules).
 */
#ifndef RSI_TURNS_TURNS_H
#define RSI_TURNS_TURNS_H

#include "base/base.h"

#define RSI_TURNS_PLACES_MOST 256u
/* A turn that is not used for so long, while a connection waits, passes on. */
#define RSI_TURNS_OVERDUE_NS UINT64_C(100000000)

/* The turn word: a number that grows with each swap, and the place that has the turn. */
RSI_INLINE unsigned rsi_turn_place(uint64_t turn)
{
    return (unsigned)(turn & 0xffff); /* from 1; 0: the turn is nobody's */
}

/*
 * The places: an array of structs that begin with the word owner. It holds the participant's id (of a process or
 * thread) and whether the place has missed a turn. 0: the place is free.
 */
struct rsi_turns_places {
    void *first;
    size_t stride; /* bytes from one place to the next */
    unsigned count;
};

RSI_INLINE uint64_t rsi_turns_owner_make(unsigned id)
{
    return (uint64_t)id << 32 | 2;
}

RSI_INLINE unsigned rsi_turns_owner_id(uint64_t owner)
{
    return (unsigned)(owner >> 32);
}

RSI_INLINE bool rsi_turns_is_missed(uint64_t owner)
{
    return (owner & 1) != 0;
}

/* The owner word of a place, from 1. */
RSI_INLINE uint64_t *rsi_turns_owner_word(const struct rsi_turns_places *places, unsigned place)
{
    return (uint64_t *)(void *)((char *)places->first + (place - 1) * places->stride);
}

RSI_INLINE uint64_t rsi_turns_owner(const struct rsi_turns_places *places, unsigned place)
{
    return rsi_load_seq_cst(rsi_turns_owner_word(places, place));
}

/* Whether a place may get the turn: it has an owner, and is not marked as missed. */
RSI_INLINE bool rsi_turns_may_have(uint64_t owner)
{
    return owner != 0 && !rsi_turns_is_missed(owner);
}

/* Whether the owner has exited. Also true for a free place. One kill(2). */
bool rsi_turns_is_dead(uint64_t owner);

/*
 * Take a place for owner: a free one, else that of a dead owner, else, if may_take_missed, one that missed a turn.
 * Returns the place, or 0: all are taken.
 */
unsigned rsi_turns_place_take(const struct rsi_turns_places *places, uint64_t owner,
                              bool may_take_missed);

/* owner leaves its place, marked or not, unless the place has another owner now. */
void rsi_turns_place_leave(const struct rsi_turns_places *places, unsigned place, uint64_t owner);

/* Mark a place that missed its turn. It gets no turn until its owner removes the mark. */
void rsi_turns_mark(const struct rsi_turns_places *places, unsigned place);

/* owner removes the mark from its place. Returns false if the place has another owner now. */
bool rsi_turns_unmark(const struct rsi_turns_places *places, unsigned place, uint64_t owner);

struct rsi_turns_rules {
    /*
     * The place that is next after turn; 0: no participant waits. *ticket: identifies the stay of its owner, for
     * is_there.
     */
    unsigned (*choose)(void *user, uint64_t turn, uint64_t *ticket);
    /* After the swap to place: whether the owner that was chosen has not left. */
    bool (*is_there)(void *user, unsigned place, uint64_t ticket);
    /* It has the turn now: notify it. */
    void (*notify)(void *user, unsigned place);
};

/*
 * Give the turn to the next participant if *word is still turn. Returns false if it was not: another participant was
 * faster.
 */
bool rsi_turns_give(uint64_t *word, uint64_t turn, const struct rsi_turns_rules *rules, void *user);

/* Take the turn for place if *word is still turn. Returns false if it was not. */
bool rsi_turns_take(uint64_t *word, uint64_t turn, unsigned place);

/* The watch of one participant that waits out of turn. Zeros: it has seen nothing yet. */
struct rsi_turns_watch {
    uint64_t turn;       /* at the last check */
    uint64_t overdue_ns; /* when the connection that was found then is overdue; 0: there was none */
};

/*
 * One check: turn is the word now, and has_connection whether a connection waits. Returns 0 if the turn is overdue, so
 * that the caller marks the place and gives the turn on; else when to check again, in ns from now_ns.
 */
uint64_t rsi_turns_check(struct rsi_turns_watch *watch, uint64_t turn, bool has_connection,
                         uint64_t now_ns);

#endif
