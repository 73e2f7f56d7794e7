/* SPDX-License-Identifier: MIT */
/*
 * weak_litmus.pml - litmus tests of weak.pml itself: what the models with weak loads take for possible.
 *
 * Each run is a test whose outcome is forbidden, by C and on AArch64. Each mutant is one whose outcome is allowed, so
 * the assertion fails. Names are those of the literature.
 *
 *   SB    x = 1; read y       | y = 1; read x          both read 0
 *   MP    x = 1; y = 1        | read y; read x         1, then 0
 *   CORR  x = 1               | read x; read x         1, then 0
 *   WRC   x = 1 | read x; y = 1 | read y; read x       1 and 1, then 0
 *
 * run SB: full fences on both sides
 * run SB LIGHT: a compiler barrier on one side, a membarrier on the other
 * run MP: a release store and an acquire load
 * run MP FENCES: relaxed accesses, a release fence and an acquire fence
 * run MP RMW: the flag is swapped by another CPU in between, without release and acquire
 * run CORR: reads of one word are in order, without fences
 * run WRC: a release store hands on what the CPU has seen, not only what it stored
 * mutant SB_PLAIN SB: no fences
 * mutant SB_ONE SB: a full fence on one side only
 * mutant SB_ACQ_REL SB: release stores and acquire loads
 * mutant SB_RMW SB: the stores are swaps (acquire and release), and no fences: x86-64 forbids this
 * mutant SB_LIGHT_FULL SB: a compiler barrier on one side, a full fence on the other
 * mutant MP_STORE MP: the store of y is relaxed: x86-64 forbids this
 * mutant MP_LOAD MP: the load of y is relaxed: x86-64 forbids this
 * mutant MP_NO_RELEASE MP FENCES: no release fence
 * mutant MP_NO_ACQUIRE MP FENCES: no acquire fence
 * mutant WRC_STORE WRC: the CPU in the middle stores y relaxed
 */
#define CPUS 3
#define WORDS 2
#define STORES 3
#include "weak.pml"

#define X 0
#define Y 1

byte a = 9, b = 9;
byte ended;

#ifdef SB
proctype left()
{
    FENCE_LOCAL;
    byte old;
#ifdef SB_ACQ_REL
    store_release(0, X, 1);
    load_acquire(0, Y, a);
#elif defined(SB_RMW)
    rmw(0, X, 1, true, true, old);
    load_relaxed(0, Y, a);
#else
    store_relaxed(0, X, 1);
#if defined(LIGHT) || defined(SB_LIGHT_FULL)
    fence_light(0);
#elif !defined(SB_PLAIN)
    fence_full(0);
#endif
    load_relaxed(0, Y, a);
#endif
    ended++
}

proctype right()
{
    FENCE_LOCAL;
    byte old;
#ifdef SB_ACQ_REL
    store_release(1, Y, 1);
    load_acquire(1, X, b);
#elif defined(SB_RMW)
    rmw(1, Y, 1, true, true, old);
    load_relaxed(1, X, b);
#else
    store_relaxed(1, Y, 1);
#ifdef LIGHT
    fence_heavy(1);
#elif !defined(SB_PLAIN) && !defined(SB_ONE)
    fence_full(1);
#endif
    load_relaxed(1, X, b);
#endif
    ended++
}
#define FORBIDDEN (a == 0 && b == 0)
#endif

#ifdef MP
proctype left()
{
    store_relaxed(0, X, 1);
#ifdef FENCES
#ifndef MP_NO_RELEASE
    fence_release(0);
#endif
    store_relaxed(0, Y, 1);
#elif defined(MP_STORE)
    store_relaxed(0, Y, 1);
#else
    store_release(0, Y, 1);
#endif
    ended++
}

proctype right()
{
#ifdef FENCES
    load_relaxed(1, Y, a);
#ifndef MP_NO_ACQUIRE
    fence_acquire(1);
#endif
#elif defined(MP_LOAD)
    load_relaxed(1, Y, a);
#else
    load_acquire(1, Y, a);
#endif
    load_relaxed(1, X, b);
    ended++
}

#ifdef RMW
proctype middle()
{
    byte old;
    NEWEST(Y) == 1;
    rmw(2, Y, 2, false, false, old)
}
#define FORBIDDEN (a != 0 && b == 0)
#else
#define FORBIDDEN (a == 1 && b == 0)
#endif
#endif

#ifdef CORR
proctype left()
{
    store_relaxed(0, X, 1);
    ended++
}

proctype right()
{
    load_relaxed(1, X, a);
    load_relaxed(1, X, b);
    ended++
}
#define FORBIDDEN (a == 1 && b == 0)
#endif

#ifdef WRC
byte c = 9;

proctype left()
{
    store_relaxed(0, X, 1);
    ended++
}

proctype middle()
{
    load_relaxed(2, X, c);
#ifdef WRC_STORE
    store_relaxed(2, Y, c)
#else
    store_release(2, Y, c)
#endif
}

proctype right()
{
    load_acquire(1, Y, a);
    load_relaxed(1, X, b);
    ended++
}
#define FORBIDDEN (c == 1 && a == 1 && b == 0)
#endif

init {
    atomic {
        weak_init();
        run left();
        run right();
#if defined(WRC) || defined(RMW)
        run middle()
#endif
    };
    ended == 2;
    assert(!FORBIDDEN)
}
