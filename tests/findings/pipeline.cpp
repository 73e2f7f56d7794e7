// SPDX-License-Identifier: MIT
//
// pipeline.cpp - a healthy program: three stages with bounded queues between them, at low load.
#include "findings.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

namespace
{

constexpr std::chrono::milliseconds gap(4);
constexpr unsigned frame_bytes = 50000;
constexpr std::size_t limit = 8;

template <typename T> class Bounded
{
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<T> items;
    bool is_closed = false;

  public:
    void put(T item)
    {
        std::unique_lock<std::mutex> guard(mutex);
        changed.wait(guard, [&] { return items.size() < limit; });
        items.push_back(item);
        changed.notify_one();
    }

    std::optional<T> get()
    {
        std::unique_lock<std::mutex> guard(mutex);
        changed.wait(guard, [&] { return !items.empty() || is_closed; });
        if (items.empty())
            return std::nullopt;
        T item = items.front();
        items.pop_front();
        changed.notify_one();
        return item;
    }

    void finish_input()
    {
        std::lock_guard<std::mutex> guard(mutex);
        is_closed = true;
        changed.notify_all();
    }
};

Bounded<uint64_t> frames, encoded;

void capture()
{
    auto next = std::chrono::steady_clock::now();
    for (uint64_t frame = 0; !is_over(); frame++) {
        frames.put(frame);
        next += gap;
        std::this_thread::sleep_until(next);
    }
    frames.finish_input();
}

void encode()
{
    while (auto frame = frames.get())
        encoded.put(digest(*frame, frame_bytes));
    encoded.finish_input();
}

unsigned long store()
{
    unsigned long count = 0;
    while (auto frame = encoded.get())
        count += digest(*frame, frame_bytes) != 0;
    return count;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    unsigned long ops = 0;
    std::thread first(capture), second(encode), third([&] { ops = store(); });
    first.join();
    second.join();
    third.join();
    finish(ops);
    return 0;
}
