/* SPDX-License-Identifier: MIT */
/*
 * same_as_std_test.cpp - what <thread> and its kin promise, asked of rouse::, or of the standard library itself if
 * OF_STD is defined: it is the oracle.
 */
#ifdef OF_STD
#include <barrier>
#include <condition_variable>
#include <future>
#include <latch>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <thread>
#include <version>
#ifdef __cpp_lib_jthread
#include <stop_token>
#endif
namespace lib = std;
#else
#include <rouse/rouse.hpp>
namespace lib = rouse;
#endif
/* libc++ has jthread and stop_token from version 18 on. */
#if !defined(OF_STD) || defined(__cpp_lib_jthread)
#define HAS_STOP_TOKENS 1
#endif
#include "cxx_test.hpp"

#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

namespace
{

constexpr int threads = 8, rounds = 2000;

void threads_have_arguments_and_ids()
{
    auto only = std::make_unique<int>(7);
    int sum = 0, at = 3;
    lib::thread one([&sum](std::unique_ptr<int> owned, int &by_reference,
                           int copied) { sum = *owned + by_reference++ + copied; },
                    std::move(only), std::ref(at), 5);
    CHECK(one.joinable() && one.get_id() != lib::thread::id());
    CHECK(one.get_id() != lib::this_thread::get_id());
    one.join();
    CHECK(!one.joinable() && one.get_id() == lib::thread::id() && sum == 15 && at == 4);
    struct member {
        int value = 0;
        void set(int to)
        {
            value = to;
        }
    } object;
    lib::thread by_member(&member::set, &object, 9);
    lib::thread moved(std::move(by_member));
    CHECK(!by_member.joinable() && moved.joinable());
    swap(by_member, moved);
    by_member.join();
    CHECK(object.value == 9);
    std::unordered_set<lib::thread::id> ids;
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([] { lib::this_thread::yield(); });
    for (auto &each : all)
        ids.insert(each.get_id());
    for (auto &each : all)
        each.join();
    CHECK(ids.size() == threads);
    std::ostringstream text;
    text << lib::this_thread::get_id();
    CHECK(!text.str().empty());
    CHECK_THROWS(std::system_error, lib::thread().join());
    CHECK_THROWS(std::system_error, lib::thread().detach());
    CHECK(lib::thread::hardware_concurrency() > 0);
}

void arguments_are_destroyed_before_the_join_returns()
{
    auto counted = std::make_shared<int>(1);
    lib::thread one([](std::shared_ptr<int>) {}, counted);
    one.join();
    CHECK(counted.use_count() == 1);
}

template <typename Mutex> void excludes()
{
    Mutex mutex;
    int inside = 0, sum = 0;
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] {
            for (int round = 0; round < rounds; round++) {
                std::lock_guard<Mutex> held(mutex);
                CHECK(++inside == 1);
                if (round % 64 == 0)
                    lib::this_thread::yield();
                sum++;
                inside--;
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(sum == threads * rounds);
    CHECK(mutex.try_lock());
    lib::thread([&] { CHECK(!mutex.try_lock()); }).join();
    mutex.unlock();
}

template <typename Mutex> void times_out()
{
    Mutex mutex;
    mutex.lock();
    lib::thread([&] {
        auto begin = steady::now();
        CHECK(!mutex.try_lock_for(5ms));
        CHECK(steady::now() - begin >= 5ms);
        CHECK(!mutex.try_lock_until(steady::now() + 1ms));
        CHECK(!mutex.try_lock_until(std::chrono::system_clock::now() + 1ms));
        /* Not -1h: for a time before the machine was started, libstdc++ 12 says that it took the lock. */
        CHECK(!mutex.try_lock_for(-1ms));
    }).join();
    mutex.unlock();
    CHECK(mutex.try_lock_for(1h));
    mutex.unlock();
}

void mutexes_exclude()
{
    excludes<lib::mutex>();
    excludes<lib::timed_mutex>();
    excludes<lib::recursive_mutex>();
    excludes<lib::recursive_timed_mutex>();
    excludes<lib::shared_mutex>();
    excludes<lib::shared_timed_mutex>();
    times_out<lib::timed_mutex>();
    times_out<lib::recursive_timed_mutex>();
    times_out<lib::shared_timed_mutex>();
}

void locks_of_std_work()
{
    lib::mutex one, other;
    lib::shared_mutex shared;
    int sum = 0;
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&, i] {
            for (int round = 0; round < rounds; round++) {
                if ((i + round) % 2) {
                    std::scoped_lock both(one, other);
                    sum++;
                } else {
                    std::scoped_lock both(other, one);
                    sum++;
                }
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(sum == threads * rounds);
    std::unique_lock<lib::mutex> deferred(one, std::defer_lock);
    CHECK(deferred.try_lock() && !deferred.mutex()->try_lock());
    std::shared_lock<lib::shared_mutex> first(shared), second(shared, std::try_to_lock);
    CHECK(second.owns_lock() && !shared.try_lock());
}

void recursive_mutex_belongs_to_its_thread()
{
    lib::recursive_mutex mutex;
    std::atomic<bool> is_held{ false }, is_done{ false };
    lib::thread owner([&] {
        std::lock_guard<lib::recursive_mutex> outer(mutex);
        for (int round = 0; round < 100; round++) {
            std::lock_guard<lib::recursive_mutex> inner(mutex);
            is_held = true;
            lib::this_thread::yield(); /* it may go on elsewhere */
            CHECK(mutex.try_lock());
            mutex.unlock();
        }
        while (!is_done)
            lib::this_thread::yield();
    });
    lib::thread other([&] {
        while (!is_held)
            lib::this_thread::yield();
        CHECK(!mutex.try_lock());
        is_done = true;
        std::lock_guard<lib::recursive_mutex> held(mutex);
    });
    owner.join();
    other.join();
}

void readers_share()
{
    lib::shared_mutex mutex;
    lib::barrier<> inside(2);
    auto read = [&] {
        std::shared_lock<lib::shared_mutex> held(mutex);
        inside.arrive_and_wait(); /* both are inside, or this hangs */
    };
    lib::thread one(read), other(read);
    one.join();
    other.join();
}

void conditions_wait_for_their_predicate()
{
    lib::mutex mutex;
    lib::condition_variable changed;
    int turn = 0;
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&, i] {
            for (int round = 0; round < rounds / 10; round++) {
                std::unique_lock<lib::mutex> held(mutex);
                changed.wait(held, [&] { return turn % threads == i; });
                CHECK(held.owns_lock());
                turn++;
                changed.notify_all();
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(turn == threads * (rounds / 10));
}

void conditions_time_out()
{
    lib::mutex mutex;
    lib::condition_variable never;
    std::unique_lock<lib::mutex> held(mutex);
    auto begin = steady::now();
    CHECK(!never.wait_for(held, 5ms, [] { return false; }));
    CHECK(steady::now() - begin >= 5ms);
    CHECK(never.wait_for(held, -1h, [] { return true; }));
    begin = steady::now();
    while (never.wait_until(held, begin + 3ms) == std::cv_status::no_timeout) {
    }
    CHECK(steady::now() >= begin + 3ms && held.owns_lock());
    CHECK_THROWS(std::runtime_error,
                 never.wait(held, []() -> bool { throw std::runtime_error("predicate"); }));
    CHECK(held.owns_lock());
}

void condition_any_takes_every_lock()
{
    lib::shared_mutex mutex;
    lib::condition_variable_any changed;
    bool is_set = false;
    lib::thread reader([&] {
        std::shared_lock<lib::shared_mutex> held(mutex);
        changed.wait(held, [&] { return is_set; });
        CHECK(held.owns_lock());
        CHECK(!changed.wait_for(held, 1ms, [] { return false; }));
    });
    {
        std::lock_guard<lib::shared_mutex> held(mutex);
        is_set = true;
    }
    changed.notify_all();
    reader.join();
}

void semaphores_count()
{
    lib::counting_semaphore<10> slots(3);
    std::atomic<int> inside{ 0 }, most{ 0 };
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] {
            for (int round = 0; round < 100; round++) {
                slots.acquire();
                int now = ++inside, before = most;
                while (before < now && !most.compare_exchange_weak(before, now)) {
                }
                lib::this_thread::yield();
                --inside;
                slots.release();
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(most <= 3);
    CHECK(slots.try_acquire() && slots.try_acquire() && slots.try_acquire() &&
          !slots.try_acquire());
    auto begin = steady::now();
    CHECK(!slots.try_acquire_for(3ms) && steady::now() - begin >= 3ms);
    slots.release(2);
    CHECK(slots.try_acquire_until(steady::now() + 1h) && slots.try_acquire());
    CHECK(lib::binary_semaphore::max() >= 1 && lib::counting_semaphore<10>::max() >= 10);
}

void latch_opens_once()
{
    lib::latch open(threads);
    std::atomic<int> arrived{ 0 };
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] {
            arrived++;
            open.arrive_and_wait();
            CHECK(arrived == threads);
        });
    open.wait();
    CHECK(open.try_wait());
    for (auto &each : all)
        each.join();
}

void barrier_completes_each_phase()
{
    int phases = 0;
    std::atomic<int> arrived{ 0 };
    auto complete = [&]() noexcept {
        CHECK(arrived.exchange(0) == threads);
        phases++;
    };
    lib::barrier<decltype(complete)> barrier(threads, complete);
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] {
            for (int round = 0; round < 100; round++) {
                arrived++;
                if (round % 2)
                    barrier.arrive_and_wait();
                else
                    barrier.wait(barrier.arrive());
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(phases == 100);
    lib::barrier<> two(2);
    lib::thread leaves([&] { two.arrive_and_drop(); });
    two.arrive_and_wait();
    two.arrive_and_wait(); /* alone now */
    leaves.join();
}

void call_once_runs_until_one_returns()
{
    lib::once_flag flag;
    std::atomic<int> tried{ 0 }, done{ 0 };
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] {
            try {
                lib::call_once(
                    flag,
                    [&](int amount) {
                        if (tried++ < 2)
                            throw std::runtime_error("again");
                        lib::this_thread::yield();
                        done += amount;
                    },
                    5);
                CHECK(done == 5);
            } catch (const std::runtime_error &) {
            }
        });
    for (auto &each : all)
        each.join();
    CHECK(done == 5 && tried == 3);
}

void futures_carry_values_and_errors()
{
    lib::promise<std::unique_ptr<int>> promise;
    auto future = promise.get_future();
    CHECK(future.valid() && future.wait_for(0s) == std::future_status::timeout);
    lib::thread setter([&] { promise.set_value(std::make_unique<int>(3)); });
    CHECK(*future.get() == 3 && !future.valid());
    setter.join();
    CHECK_THROWS(std::future_error, promise.set_value(nullptr));
    CHECK_THROWS(std::future_error, promise.get_future());
#if !defined(OF_STD) || !defined(_LIBCPP_VERSION)
    CHECK_THROWS(std::future_error, future.get()); /* undefined by the standard; libc++ crashes */
#endif
    lib::promise<void> nothing;
    auto done = nothing.get_future();
    nothing.set_value();
    done.get();
    int object = 1;
    lib::promise<int &> reference;
    auto refers = reference.get_future();
    reference.set_value(object);
    CHECK(&refers.get() == &object);
    lib::future<int> broken;
    {
        lib::promise<int> lost;
        broken = lost.get_future();
    }
    try {
        broken.get();
        CHECK(false);
    } catch (const std::future_error &error) {
        CHECK(error.code() == std::future_errc::broken_promise);
    }
    lib::promise<std::vector<int>> several;
    several.set_value({ 1, 2, 3 });
    CHECK(several.get_future().get().size() == 3);
    lib::promise<int> failing;
    failing.set_exception(std::make_exception_ptr(std::out_of_range("far")));
    auto failed = failing.get_future();
    CHECK_THROWS(std::out_of_range, failed.get());
}

void shared_futures_are_read_by_many()
{
    lib::promise<std::string> promise;
    auto shared = promise.get_future().share();
    std::vector<lib::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([shared] { CHECK(shared.get() == "value"); });
    promise.set_value("value");
    for (auto &each : all)
        each.join();
    CHECK(shared.valid() && &shared.get() == &shared.get());
}

void async_runs_where_it_is_told()
{
    auto here = lib::this_thread::get_id();
    auto elsewhere = lib::async(std::launch::async, [] { return lib::this_thread::get_id(); });
    CHECK(elsewhere.get() != here);
    bool has_run = false;
    auto later = lib::async(std::launch::deferred, [&] {
        has_run = true;
        return lib::this_thread::get_id();
    });
    CHECK(later.wait_for(1h) == std::future_status::deferred && !has_run);
    CHECK(later.get() == here && has_run);
    auto failing = lib::async(
        std::launch::async,
        [](int number) -> int { throw std::runtime_error(std::to_string(number)); }, 4);
    CHECK_THROWS(std::runtime_error, failing.get());
    auto unlucky = lib::async(std::launch::async, []() -> int {
        throw std::future_error(std::future_errc::promise_already_satisfied);
    });
    CHECK_THROWS(std::future_error, unlucky.get());
    std::atomic<bool> is_over{ false };
    {
        auto dropped = lib::async(std::launch::async, [&] {
            lib::this_thread::sleep_for(5ms);
            is_over = true;
        });
    }
    CHECK(is_over); /* the last future of async waits */
}

void packaged_tasks_run_once()
{
    lib::packaged_task<int(int, int)> task([](int one, int other) { return one * other; });
    auto product = task.get_future();
    lib::thread(std::move(task), 6, 7).join();
    CHECK(product.get() == 42 && !task.valid());
    lib::packaged_task<void()> again([] {});
    again();
    CHECK_THROWS(std::future_error, again());
    int runs = 0;
    lib::packaged_task<int()> counted([&] { return ++runs; });
    counted();
    CHECK_THROWS(std::future_error, counted());
    CHECK(runs == 1 && counted.get_future().get() == 1);
    again.reset();
    auto next = again.get_future();
    again();
    next.get();
    CHECK_THROWS(std::future_error, lib::packaged_task<void()>()());
}

#ifdef HAS_STOP_TOKENS
void stop_tokens_tell_of_a_request()
{
    lib::stop_source source;
    auto token = source.get_token();
    CHECK(token.stop_possible() && !token.stop_requested());
    int called = 0;
    {
        lib::stop_callback first(token, [&] { called += 1; });
        lib::stop_callback second(token, [&] { called += 10; });
        {
            lib::stop_callback gone(token, [&] { called += 100; });
        }
        CHECK(source.request_stop() && !source.request_stop());
        CHECK(called == 11 && token.stop_requested() && source.stop_requested());
    }
    lib::stop_callback at_once(token, [&] { called += 1000; });
    CHECK(called == 1011);
    CHECK(!lib::stop_token().stop_possible() && !lib::stop_source(lib::nostopstate).request_stop());
    lib::stop_token orphan;
    {
        lib::stop_source short_lived;
        orphan = short_lived.get_token();
    }
    CHECK(!orphan.stop_possible());
}

void a_callback_that_runs_is_waited_for()
{
    lib::stop_source source;
    std::atomic<bool> is_running{ false }, is_over{ false };
    auto slow = [&] {
        is_running = true;
        lib::this_thread::sleep_for(10ms);
        is_over = true;
    };
    auto callback = std::make_unique<lib::stop_callback<decltype(slow)>>(source.get_token(), slow);
    lib::thread requester([&] { source.request_stop(); });
    while (!is_running)
        lib::this_thread::yield();
    callback.reset();
    CHECK(is_over);
    requester.join();
}

void jthreads_stop_and_join()
{
    std::atomic<int> ended{ 0 };
    {
        lib::jthread with_token(
            [&](lib::stop_token token, int amount) {
                while (!token.stop_requested())
                    lib::this_thread::yield();
                ended += amount;
            },
            2);
        lib::jthread without([&] { ended += 1; });
        lib::jthread moved(std::move(with_token));
        CHECK(!with_token.joinable() && moved.joinable() && moved.get_stop_token().stop_possible());
    }
    CHECK(ended == 3);
    lib::jthread again([&](lib::stop_token token) {
        while (!token.stop_requested())
            lib::this_thread::yield();
        ended = 10;
    });
    again = lib::jthread([] {});
    CHECK(ended == 10);
}

void condition_any_ends_with_a_stop_token()
{
    lib::mutex mutex;
    lib::condition_variable_any never;
    std::atomic<int> ended{ 0 };
    {
        lib::jthread waiting([&](lib::stop_token token) {
            std::unique_lock<lib::mutex> held(mutex);
            CHECK(!never.wait(held, token, [] { return false; }));
            ended++;
        });
        lib::this_thread::yield();
    }
    CHECK(ended == 1);
    /* The request comes before the wait, or while it is about to begin. */
    for (int round = 0; round < 500; round++) {
        lib::jthread waiting([&](lib::stop_token token) {
            std::unique_lock<lib::mutex> held(mutex);
            if (round % 2)
                CHECK(!never.wait(held, token, [] { return false; }));
            else
                CHECK(!never.wait_for(held, token, 1h, [] { return false; }));
            ended++;
        });
        if (round % 3)
            lib::this_thread::yield();
        waiting.request_stop();
    }
    CHECK(ended == 501);
    lib::stop_source source;
    std::unique_lock<lib::mutex> held(mutex);
    CHECK(!never.wait_until(held, source.get_token(), steady::now() + 1ms, [] { return false; }));
    CHECK(never.wait_for(held, source.get_token(), 1h, [] { return true; }));
}
#endif

void sleeps_are_not_short()
{
    auto begin = steady::now();
    lib::this_thread::sleep_for(3ms);
    CHECK(steady::now() - begin >= 3ms);
    lib::this_thread::sleep_until(begin + 6ms);
    CHECK(steady::now() - begin >= 6ms);
    auto wall = std::chrono::system_clock::now();
    lib::this_thread::sleep_until(wall + 2ms);
    CHECK(std::chrono::system_clock::now() - wall >= 2ms);
    lib::this_thread::sleep_for(-1h);
    lib::this_thread::sleep_for(0.5us);
}

void times_in_the_far_past_are_over()
{
    auto long_ago = steady::time_point::min();
    lib::timed_mutex mutex;
    CHECK(mutex.try_lock_until(long_ago));
#ifndef OF_STD
    lib::thread([&] { CHECK(!mutex.try_lock_until(long_ago)); }).join();
#endif
    mutex.unlock();
    lib::mutex lock;
    lib::condition_variable never;
    std::unique_lock<lib::mutex> held(lock);
    CHECK(never.wait_until(held, long_ago) == std::cv_status::timeout);
    CHECK(!never.wait_until(held, std::chrono::system_clock::time_point::min(),
                            [] { return false; }));
    lib::promise<int> unkept;
    CHECK(unkept.get_future().wait_until(long_ago) == std::future_status::timeout);
}

} /* namespace */

int main()
{
    return run_cases({
#define CASE(name) { #name, name }
        CASE(threads_have_arguments_and_ids),
        CASE(arguments_are_destroyed_before_the_join_returns),
        CASE(mutexes_exclude),
        CASE(locks_of_std_work),
        CASE(recursive_mutex_belongs_to_its_thread),
        CASE(readers_share),
        CASE(conditions_wait_for_their_predicate),
        CASE(conditions_time_out),
        CASE(condition_any_takes_every_lock),
        CASE(semaphores_count),
        CASE(latch_opens_once),
        CASE(barrier_completes_each_phase),
        CASE(call_once_runs_until_one_returns),
        CASE(futures_carry_values_and_errors),
        CASE(shared_futures_are_read_by_many),
        CASE(async_runs_where_it_is_told),
        CASE(packaged_tasks_run_once),
#ifdef HAS_STOP_TOKENS
        CASE(stop_tokens_tell_of_a_request),
        CASE(a_callback_that_runs_is_waited_for),
        CASE(jthreads_stop_and_join),
        CASE(condition_any_ends_with_a_stop_token),
#endif
        CASE(sleeps_are_not_short),
        CASE(times_in_the_far_past_are_over),
    });
}
