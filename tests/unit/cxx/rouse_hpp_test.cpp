/* SPDX-License-Identifier: MIT */
/* rouse_hpp_test.cpp - the parts of rouse/rouse.hpp that the standard library lacks. */
#include <rouse/rouse.hpp>

#include "cxx_test.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <vector>

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

namespace
{

/* Return the text that a child writes to standard error. It must end by SIGABRT. */
std::string last_words(const std::function<void()> &run)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char some[512];
    for (ssize_t n; (n = read(ends[0], some, sizeof some)) > 0;)
        said.append(some, static_cast<std::size_t>(n));
    close(ends[0]);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return said;
}

void an_exception_reaches_join()
{
    rouse::thread failing([] { throw std::out_of_range("too far"); });
    CHECK_THROWS(std::out_of_range, failing.join());
    CHECK(!failing.joinable());
    rouse::jthread again([](rouse::stop_token) { throw 5; });
    CHECK_THROWS(int, again.join());
    rouse::binary_semaphore go(0);
    rouse::thread waiting([&] {
        go.acquire();
        throw std::out_of_range("late");
    });
    CHECK(!waiting.try_join() && waiting.joinable());
    go.release();
    CHECK_THROWS(std::out_of_range, while (!waiting.try_join()) rouse::this_thread::yield());
}

void an_exception_that_nobody_joins_names_its_thread()
{
    std::string said = last_words([] {
        rouse::thread failing(rouse::attributes("ledger"),
                              [] { throw std::runtime_error("no ink"); });
        failing.detach();
        rouse::this_thread::sleep_for(1h);
    });
    CHECK(said.find("(ledger) ended by an exception: no ink\n") != std::string::npos);
    said = last_words([] { rouse::jthread failing(rouse::attributes("clerk"), [] { throw 1; }); });
    CHECK(said.find("(clerk) ended by an exception\n") != std::string::npos);
    said = last_words([] {
        std::atomic<bool> is_over{ false };
        rouse::thread failing(rouse::attributes("porter"), [&] {
            is_over = true;
            throw std::runtime_error("no key");
        });
        while (!is_over)
            rouse::this_thread::yield();
        rouse::this_thread::sleep_for(10ms); /* either line is right, and names it */
    });
    CHECK(said.find("(porter) ") != std::string::npos);
    said = last_words([] {
        rouse::thread(rouse::attributes("guard"), [] { rouse::this_thread::sleep_for(1h); });
    });
    CHECK(said.find("(guard) was neither joined nor detached\n") != std::string::npos);
}

void attributes_are_those_of_the_thread()
{
    rouse::attributes attr("counter");
    attr.kind = ROUSE_KIND_KERNEL;
    rouse::thread one(attr, [] {
        char name[ROUSE_NAME_BYTES];
        rouse_thread_name(rouse_thread_self(), name, sizeof name);
        CHECK(std::string(name) == "counter");
        CHECK(rouse_thread_kind(rouse_thread_self()) == ROUSE_KIND_KERNEL);
    });
    one.join();
    attr.stack_bytes = static_cast<std::size_t>(1) << 40;
    CHECK_THROWS(std::system_error, rouse::thread(attr, [] {}).join());
}

/* Run a function that waits for ever in a thread, which is asked to stop before or while it waits. */
void ends_by_request(const std::function<void()> &wait)
{
    for (bool is_early : { true, false }) {
        std::atomic<int> step{ 0 };
        rouse::jthread waiting([&] {
            step = 1;
            while (is_early && step < 2)
                rouse::this_thread::yield();
            CHECK_THROWS(rouse::cancelled, wait());
            step = 3;
            wait();
        });
        while (step < 1)
            rouse::this_thread::yield();
        waiting.request_stop();
        int waits = 1;
        step.compare_exchange_strong(waits, 2);
        while (step < 3)
            rouse::this_thread::yield();
        waiting.cancel();
        waiting.join();
    }
}

void each_wait_ends_when_the_thread_is_asked_to_stop()
{
    rouse::mutex mutex;
    rouse::timed_mutex held;
    rouse::shared_timed_mutex written;
    rouse::condition_variable never;
    rouse::condition_variable_any never_any;
    rouse::counting_semaphore<> none(0);
    rouse::latch shut(1);
    rouse::barrier<> alone(100);
    rouse::promise<int> unset;
    auto future = unset.get_future().share();
    rouse::channel<int> empty(1), full(1);
    full.send(1);
    rouse::listener listener(0, "127.0.0.1");
    held.lock();
    written.lock();
    ends_by_request([] { rouse::this_thread::sleep_for(1h); });
    ends_by_request([] { rouse::this_thread::sleep_until(std::chrono::system_clock::now() + 1h); });
    ends_by_request([&] {
        std::unique_lock<rouse::mutex> lock(mutex);
        never.wait(lock, [] { return false; });
    });
    ends_by_request([&] {
        std::unique_lock<rouse::mutex> lock(mutex);
        never.wait_for(lock, 1h);
    });
    ends_by_request([&] {
        std::unique_lock<rouse::mutex> lock(mutex);
        never_any.wait(lock);
    });
    ends_by_request([&] { none.acquire(); });
    ends_by_request([&] { none.try_acquire_for(1h); });
    ends_by_request([&] { held.try_lock_for(1h); });
    ends_by_request([&] { written.try_lock_shared_for(1h); });
    ends_by_request([&] { shut.wait(); });
    ends_by_request([&] { alone.arrive_and_wait(); });
    ends_by_request([&] { future.get(); });
    ends_by_request([&] { future.wait_for(1h); });
    ends_by_request([&] { empty.receive(); });
    ends_by_request([&] { full.send(2); });
    ends_by_request([&] { rouse::select(rouse::on_receive(empty, [](std::optional<int>) {})); });
    ends_by_request([&] { listener.accept(); });
    CHECK(mutex.try_lock());
    mutex.unlock();
    held.unlock();
    written.unlock();
}

void a_cancelled_thread_has_ended_as_if_it_returned()
{
    auto destroyed = std::make_shared<int>();
    std::atomic<bool> has_begun{ false };
    rouse::thread waiting([&has_begun, destroyed] {
        has_begun = true;
        rouse::this_thread::sleep_for(1h);
    });
    while (!has_begun)
        rouse::this_thread::yield();
    waiting.cancel();
    waiting.join(); /* throws nothing */
    CHECK(destroyed.use_count() == 1);
    rouse::jthread computing([] {
        for (;;)
            rouse::this_thread::check_cancelled();
    });
}

/* Requests that race with the ends of their threads, whose blocks other threads reuse at once. */
void a_request_reaches_no_other_thread()
{
    std::atomic<bool> is_over{ false };
    std::vector<rouse::thread> innocent;
    for (int i = 0; i < 4; i++)
        innocent.emplace_back([&] {
            while (!is_over)
                rouse::thread([] { rouse::this_thread::sleep_for(10us); }).join();
        });
    for (int round = 0; round < 3000; round++) {
        rouse::jthread brief([] { rouse::this_thread::yield(); });
        rouse::thread requester(
            [source = brief.get_stop_source()]() mutable { source.request_stop(); });
        brief.join();
        requester.join();
    }
    is_over = true;
    for (auto &each : innocent)
        each.join();
}

void a_stop_of_the_joiner_is_kept_for_its_next_call()
{
    rouse::jthread outer([] {
        {
            rouse::jthread inner(
                [] { CHECK_THROWS(rouse::cancelled, rouse::this_thread::sleep_for(1h)); });
            CHECK_THROWS(rouse::cancelled, rouse::this_thread::sleep_for(1h));
            rouse_thread_cancel(rouse_thread_self()); /* pending when inner is joined */
        }
        CHECK_THROWS(rouse::cancelled, rouse::this_thread::sleep_for(1h));
    });
    rouse::this_thread::yield();
}

void a_channel_keeps_order_and_bounds()
{
    rouse::channel<std::unique_ptr<int>> channel(3);
    rouse::thread sender([&] {
        for (int i = 0; i < 1000; i++)
            CHECK(channel.send(std::make_unique<int>(i)));
        channel.close();
        CHECK(!channel.send(nullptr) && channel.is_closed());
    });
    int expected = 0;
    for (auto &value : channel)
        CHECK(*value == expected++);
    CHECK(expected == 1000 && !channel.receive());
    sender.join();
    rouse::channel<int> small(1);
    int five = 5;
    std::optional<int> got;
    CHECK(small.try_receive(got) == rouse::channel_status::empty);
    CHECK(small.receive_for(got, 2ms) == rouse::channel_status::timeout && !got);
    CHECK(small.try_send(five) == rouse::channel_status::success);
    CHECK(small.try_send(five) == rouse::channel_status::full);
    CHECK(small.send_for(6, 2ms) == rouse::channel_status::timeout);
    small.close();
    CHECK(small.try_send(five) == rouse::channel_status::closed);
    CHECK(small.try_receive(got) == rouse::channel_status::success && *got == 5);
    CHECK(small.try_receive(got) == rouse::channel_status::closed);
    CHECK_THROWS(std::invalid_argument, rouse::channel<int>(0));
}

void many_senders_and_receivers_lose_nothing()
{
    rouse::channel<int> channel(7);
    std::atomic<long> sum{ 0 };
    constexpr int senders = 6, each = 3000;
    std::vector<rouse::thread> all;
    for (int i = 0; i < 4; i++)
        all.emplace_back([&] {
            while (auto value = channel.receive())
                sum += *value;
        });
    {
        std::vector<rouse::thread> sending;
        for (int i = 0; i < senders; i++)
            sending.emplace_back([&] {
                for (int value = 1; value <= each; value++)
                    channel.send(value);
            });
        for (auto &one : sending)
            one.join();
    }
    channel.close();
    for (auto &one : all)
        one.join();
    CHECK(sum == static_cast<long>(senders) * each * (each + 1) / 2);
}

void select_takes_what_is_ready()
{
    rouse::channel<int> numbers(1);
    rouse::channel<std::string> texts(1);
    int got = 0;
    std::string said;
    auto number =
        rouse::on_receive(numbers, [&](std::optional<int> value) { got = value.value_or(-1); });
    auto text = rouse::on_receive(
        texts, [&](std::optional<std::string> value) { said = value.value_or("closed"); });
    CHECK(rouse::select_for(2ms, number, text) == 2);
    rouse::thread later([&] {
        rouse::this_thread::sleep_for(2ms);
        texts.send("hello");
    });
    CHECK(rouse::select(number, text) == 1 && said == "hello");
    later.join();
    bool is_sent = false;
    auto put = rouse::on_send(numbers, 8, [&](bool has_room) { is_sent = has_room; });
    CHECK(rouse::select(put, text) == 0 && is_sent);
    CHECK(rouse::select(number, text) == 0 && got == 8);
    texts.close();
    CHECK(rouse::select(number, text) == 1 && said == "closed");
}

void select_among_many_loses_nothing()
{
    rouse::channel<int> one(1), other(2);
    constexpr int each = 3000, readers = 3;
    std::atomic<int> received{ 0 }, from_one{ 0 }, from_other{ 0 };
    std::vector<rouse::thread> reading;
    for (int i = 0; i < readers; i++)
        reading.emplace_back([&] {
            bool has_one = true, has_other = true;
            auto count = [&](bool &is_open, std::atomic<int> &from) {
                return [&](std::optional<int> value) {
                    is_open = value.has_value();
                    from += is_open;
                    received += is_open;
                };
            };
            while (has_one || has_other) {
                if (has_one && has_other)
                    rouse::select(rouse::on_receive(one, count(has_one, from_one)),
                                  rouse::on_receive(other, count(has_other, from_other)));
                else if (has_one)
                    rouse::select(rouse::on_receive(one, count(has_one, from_one)));
                else
                    rouse::select(rouse::on_receive(other, count(has_other, from_other)));
            }
        });
    auto send = [](rouse::channel<int> &to) {
        for (int i = 0; i < each; i++)
            rouse::select(rouse::on_send(to, i, [](bool is_sent) { CHECK(is_sent); }));
        to.close();
    };
    rouse::thread first(send, std::ref(one)), second(send, std::ref(other));
    first.join();
    second.join();
    for (auto &thread : reading)
        thread.join();
    CHECK(received == 2 * each && from_one == each && from_other == each);
}

void sockets_have_deadlines()
{
    rouse::listener listener(0, "127.0.0.1");
    CHECK(!listener.accept_for(2ms));
    rouse::jthread server([&] {
        for (;;) {
            rouse::socket client = listener.accept();
            char some[64];
            while (std::size_t bytes = client.read_some(some, sizeof some))
                client.write(some, bytes);
        }
    });
    rouse::socket client("localhost", std::to_string(listener.port()), 10s);
    client.write("echo");
    char back[4];
    CHECK(client.read(back, 4) == 4 && std::string(back, 4) == "echo");
    client.expires_after(5ms);
    auto begin = steady::now();
    try {
        client.read_some(back, 4);
        CHECK(false);
    } catch (const std::system_error &error) {
        CHECK(error.code() == std::errc::timed_out);
    }
    CHECK(steady::now() - begin >= 5ms);
    client.expires_never();
    client.shutdown_write();
    CHECK(client.read_some(back, 4) == 0);
    rouse::socket moved(std::move(client));
    CHECK(!client && moved);
    CHECK_THROWS(std::system_error, rouse::socket("nowhere.invalid", "1"));
    rouse::listener brief(0, "127.0.0.1");
    std::string port = std::to_string(brief.port());
    brief.close();
    CHECK_THROWS(std::system_error, rouse::socket("127.0.0.1", port));
    CHECK_THROWS(std::system_error, rouse::listener(0, "not an address"));
}

} /* namespace */

int main()
{
    return run_cases({
#define CASE(name) { #name, name }
        CASE(an_exception_that_nobody_joins_names_its_thread), /* it forks: first */
        CASE(an_exception_reaches_join),
        CASE(attributes_are_those_of_the_thread),
        CASE(each_wait_ends_when_the_thread_is_asked_to_stop),
        CASE(a_cancelled_thread_has_ended_as_if_it_returned),
        CASE(a_request_reaches_no_other_thread),
        CASE(a_stop_of_the_joiner_is_kept_for_its_next_call),
        CASE(a_channel_keeps_order_and_bounds),
        CASE(many_senders_and_receivers_lose_nothing),
        CASE(select_takes_what_is_ready),
        CASE(select_among_many_loses_nothing),
        CASE(sockets_have_deadlines),
    });
}
