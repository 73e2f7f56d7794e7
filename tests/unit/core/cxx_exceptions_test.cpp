/* SPDX-License-Identifier: MIT */
/*
 * cxx_exceptions_test.cpp - C++ exceptions thrown and caught across blocking calls. The C++ library
 * keeps the exceptions in flight and in handlers per kernel thread. A rouse thread must take its
 * own along, also to another worker, and must never see another thread's.
 */
#include <rouse/rouse.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

namespace
{

[[noreturn]] void check_failed(const char *text, const char *file, int line)
{
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    rouse_obs_dump(STDERR_FILENO);
    std::abort();
}

/* A thread that runs any callable. An exception that leaves it is an error of the test. */
class Thread
{
  public:
    template <typename Body> explicit Thread(enum rouse_kind kind, Body body)
    {
        auto *copy = new Body(body);
        struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
        attr.kind = kind;
        attr.stack_bytes = 256 * 1024; /* unwinding needs more than C does */
        CHECK(rouse_thread_create(&thread_, &attr, run<Body>, copy) == 0);
    }
    Thread(const Thread &) = delete;
    Thread &operator=(const Thread &) = delete;
    ~Thread()
    {
        CHECK(rouse_thread_join(thread_, nullptr) == 0);
    }

  private:
    template <typename Body> static void *run(void *arg)
    {
        std::unique_ptr<Body> body(static_cast<Body *>(arg));
        (*body)();
        return nullptr;
    }
    struct rouse_thread *thread_ = nullptr;
};

using Threads = std::vector<std::unique_ptr<Thread>>;

struct Trouble : std::runtime_error {
    explicit Trouble(int which)
        : std::runtime_error("trouble " + std::to_string(which)), number(which)
    {
    }
    int number;
};

void block(int how)
{
    switch (how % 4) {
    case 0: rouse_thread_yield(); break;
    case 1: rouse_sleep(20000); break;
    case 2: Thread(ROUSE_KIND_USER, [] {}); break;
    default: rouse_blocking([](void *arg) { return arg; }, nullptr, nullptr); break;
    }
}

/*
 * Move to another worker: a second thread computes and keeps this one until the caller is back. One
 * at a time, or no worker would be left.
 */
struct rouse_mutex changing = ROUSE_MUTEX_INIT;

void change_worker()
{
    if (rouse_worker_count() == 1 || rouse_worker_index() < 0) {
        rouse_thread_yield();
        return;
    }
    rouse_mutex_lock(&changing);
    {
        std::atomic<bool> is_back{ false };
        Thread hog(ROUSE_KIND_USER, [&] {
            while (!is_back)
                continue;
        });
        rouse_thread_yield();
        is_back = true;
    }
    rouse_mutex_unlock(&changing);
}

void throw_from_below(int depth, int number)
{
    block(number + depth);
    if (depth == 0)
        throw Trouble(number);
    throw_from_below(depth - 1, number);
}

void throw_and_catch(int number)
{
    for (int i = 0; i < 40; i++) {
        int caught = -1;
        try {
            throw_from_below(i % 8, number + i);
        } catch (const Trouble &trouble) {
            caught = trouble.number;
        }
        CHECK(caught == number + i);
        CHECK(std::current_exception() == nullptr);
        CHECK(std::uncaught_exceptions() == 0);
    }
}

/* While the thread blocks within a handler, the exception stays its own. */
void block_in_handler(int number)
{
    for (int i = 0; i < 10; i++) {
        bool rethrown = false;
        try {
            try {
                throw Trouble(number + i);
            } catch (Trouble &trouble) {
                std::exception_ptr before = std::current_exception();
                block(i);
                change_worker();
                CHECK(std::current_exception() == before);
                CHECK(trouble.number == number + i);
                throw;
            }
        } catch (const std::runtime_error &error) {
            rethrown = error.what() == "trouble " + std::to_string(number + i);
        }
        CHECK(rethrown);
        CHECK(std::current_exception() == nullptr);
    }
}

/* Nested handlers, each of which blocks. */
void nest(int depth, int number)
{
    try {
        throw Trouble(number + depth);
    } catch (const Trouble &outer) {
        block(depth);
        if (depth > 0)
            nest(depth - 1, number);
        change_worker();
        try {
            std::rethrow_exception(std::current_exception());
        } catch (const Trouble &again) {
            CHECK(again.number == outer.number);
        }
        CHECK(outer.number == number + depth);
    }
}

/* A destructor that blocks while an exception unwinds past it. */
struct Blocker {
    int uncaught;
    explicit Blocker(int uncaught_then) : uncaught(uncaught_then)
    {
    }
    ~Blocker()
    {
        CHECK(std::uncaught_exceptions() == uncaught);
        block(uncaught);
        change_worker();
        CHECK(std::uncaught_exceptions() == uncaught);
        if (uncaught < 3) {
            try {
                Blocker inner(uncaught + 1);
                throw Trouble(uncaught);
            } catch (const Trouble &trouble) {
                CHECK(trouble.number == uncaught);
            }
        }
        CHECK(std::uncaught_exceptions() == uncaught);
    }
};

void block_while_unwinding(int number)
{
    try {
        Blocker blocker(1);
        throw Trouble(number);
    } catch (const Trouble &trouble) {
        CHECK(trouble.number == number);
    }
    CHECK(std::uncaught_exceptions() == 0);
}

/* An exception handed from one thread to another. */
void hand_over(int number)
{
    std::exception_ptr handed;
    Thread(ROUSE_KIND_USER, [&] {
        try {
            throw_from_below(3, number);
        } catch (...) {
            handed = std::current_exception();
        }
    });
    try {
        std::rethrow_exception(handed);
    } catch (const Trouble &trouble) {
        CHECK(trouble.number == number);
    }
}

/* All threads within handlers at once. */
std::atomic<int> within{ 0 };

void meet_in_handlers(int number, int count)
{
    try {
        throw Trouble(number);
    } catch (const Trouble &trouble) {
        within++;
        while (within < count)
            block(number % 2);
        CHECK(trouble.number == number);
        CHECK(std::current_exception() != nullptr);
    }
}

void everything(int number)
{
    throw_and_catch(number);
    block_in_handler(number);
    nest(6, number);
    block_while_unwinding(number);
    hand_over(number);
}

void run_tests()
{
    everything(0); /* on a foreign thread */
    {
        Threads threads;
        for (int i = 1; i <= 24; i++) {
            auto kind = i % 8 == 0 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER;
            threads.push_back(std::make_unique<Thread>(kind, [i] { everything(i * 1000); }));
        }
        /* Among them, threads without exceptions. */
        for (int i = 0; i < 200; i++)
            Thread(ROUSE_KIND_USER, [] {
                CHECK(std::current_exception() == nullptr);
                CHECK(std::uncaught_exceptions() == 0);
                rouse_thread_yield();
                CHECK(std::current_exception() == nullptr);
            });
    }
    const int count = 300;
    Threads threads;
    for (int i = 0; i < count; i++)
        threads.push_back(
            std::make_unique<Thread>(ROUSE_KIND_USER, [i] { meet_in_handlers(i, count); }));
}

int run_with_workers(const char *workers)
{
    pid_t pid = fork();
    if (pid == 0) {
        setenv("ROUSE_WORKERS", workers, 1);
        execl("/proc/self/exe", "test", "tests", nullptr);
        _exit(127);
    }
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    std::printf("%s workers: %s (status %#x)\n", workers, status == 0 ? "passed" : "FAILED",
                static_cast<unsigned>(status));
    return status != 0;
}

void bite(int)
{
    signal(SIGALRM, SIG_DFL);
    alarm(5);
    kill(getpid(), SIGQUIT);
}

} // namespace

int main(int argc, char **)
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc == 1 && std::getenv("ROUSE_WORKERS") == nullptr)
        return run_with_workers("1") + run_with_workers("2") + run_with_workers("4") != 0;
    signal(SIGALRM, bite);
    alarm(200);
    run_tests();
    return 0;
}
