/* SPDX-License-Identifier: MIT */
/*
 * exception_test.cpp - C++ exceptions of threads that park and move between workers while they throw,
 * catch and unwind. libstdc++ keeps what is in flight for each kernel thread, not for each of ours.
 */
#include <rouse/rouse.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <setjmp.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

namespace
{

constexpr int rounds = 200;
constexpr int threads = 16;

/* Give every other thread of this worker its turn, and others a chance to take this one elsewhere. */
void park(int round)
{
    if (round % 3 == 0)
        rouse_sleep(20000);
    else
        rouse_thread_yield();
}

void check(bool holds, const char *what)
{
    if (holds)
        return;
    std::fprintf(stderr, "exception_test: %s\n", what);
    std::abort();
}

/* Parks while an exception passes through the frame that it lives in. */
struct ParksOnTheWayOut {
    int round;
    explicit ParksOnTheWayOut(int n) : round(n)
    {
    }
    ~ParksOnTheWayOut()
    {
        check(std::uncaught_exceptions() == 1, "an exception under way was lost");
        park(round);
        check(std::uncaught_exceptions() == 1, "an exception under way was lost while parked");
    }
};

void throw_through_parking(int thread, int round)
{
    ParksOnTheWayOut guard(round);
    throw std::runtime_error(std::to_string(thread * 1000 + round));
}

void catch_and_park(int thread, int round)
{
    const std::string mine = std::to_string(thread * 1000 + round);
    try {
        throw_through_parking(thread, round);
    } catch (const std::runtime_error &error) {
        check(mine == error.what(), "caught another thread's exception");
        park(round);
        check(mine == error.what(), "an exception changed while its handler was parked");
        try {
            throw round;
        } catch (int inner) {
            park(round + 1);
            check(inner == round, "the inner exception changed");
        }
        /* Rethrown from inside the handler: the one that this handler has, not what the worker had last. */
        try {
            park(round + 2);
            throw;
        } catch (const std::runtime_error &again) {
            check(mine == again.what(), "another exception was thrown again");
        }
        check(std::current_exception() != nullptr, "the handler's exception is gone");
    }
    check(std::current_exception() == nullptr, "an exception is left over");
    check(std::uncaught_exceptions() == 0, "a count is left over");
}

void *work(void *arg)
{
    const int thread = static_cast<int>(reinterpret_cast<std::intptr_t>(arg));
    for (int round = 0; round < rounds; round++)
        catch_and_park(thread, round);
    return nullptr;
}

void run(enum rouse_kind kind)
{
    struct rouse_thread *all[threads];
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    for (std::intptr_t i = 0; i < threads; i++)
        assert_int_equal(rouse_thread_create(&all[i], &attr, work, reinterpret_cast<void *>(i)), 0);
    for (auto *thread : all)
        assert_int_equal(rouse_thread_join(thread, nullptr), 0);
}

void exceptions_stay_with_their_user_thread(void **)
{
    run(ROUSE_KIND_USER);
}

void exceptions_stay_with_their_kernel_thread(void **)
{
    run(ROUSE_KIND_KERNEL);
}

} // namespace

int main()
{
    alarm(100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exceptions_stay_with_their_user_thread),
        cmocka_unit_test(exceptions_stay_with_their_kernel_thread),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
