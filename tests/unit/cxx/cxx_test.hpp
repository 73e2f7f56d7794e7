/* SPDX-License-Identifier: MIT */
/* cxx_test.hpp - shared by the tests of rouse/rouse.hpp: checks, and a list of named cases with a time limit. */
#ifndef TESTS_CXX_TEST_HPP
#define TESTS_CXX_TEST_HPP

#include <rouse/rouse.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? static_cast<void>(0) : check_failed(#is_so, __FILE__, __LINE__))
/* That a statement throws an exception of this class. */
#define CHECK_THROWS(type, ...) \
    do { \
        bool has_thrown = false; \
        try { \
            __VA_ARGS__; \
        } catch (const type &) { \
            has_thrown = true; \
        } \
        if (!has_thrown) \
            check_failed(#__VA_ARGS__, __FILE__, __LINE__); \
    } while (0)

[[noreturn]] inline void check_failed(const char *text, const char *file, int line)
{
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    rouse_obs_dump(STDERR_FILENO);
    std::abort();
}

struct test_case {
    const char *name;
    void (*run)();
};

inline int run_cases(std::initializer_list<test_case> cases)
{
    for (const test_case &one : cases) {
        std::printf("%s\n", one.name);
        std::fflush(stdout);
        alarm(60); /* a hang ends here */
        one.run();
    }
    return 0;
}

#endif
