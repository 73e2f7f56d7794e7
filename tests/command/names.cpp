/* SPDX-License-Identifier: MIT */
/* names.cpp - a program whose waits are in functions of C++; says "ready" after them, and ends with its input. */
#include <rouse/rouse.h>

#include <cstdio>
#include <cstdlib>

namespace app
{

constexpr unsigned naps = 3;

template <typename T> struct box {
    T kept;
    __attribute__((noinline)) void nap(const char *why)
    {
        for (unsigned i = 0; i < naps; i++)
            rouse_sleep(1000000);
        std::printf("%s\n", why);
    }
};

} // namespace app

int main()
{
    struct rouse_thread *thread;
    auto run = [](void *unused) -> void * {
        app::box<int>{ 1 }.nap("ready");
        std::fflush(stdout);
        return unused;
    };
    if (rouse_thread_create(&thread, nullptr, run, nullptr) != 0)
        std::abort();
    rouse_thread_join(thread, nullptr);
    std::getchar();
    return 0;
}
