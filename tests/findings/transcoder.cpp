// SPDX-License-Identifier: MIT
//
// transcoder.cpp - three stages with bounded queues between them: read, encode on a device, write. Fault: the middle
// stage has one thread, which waits for the device most of the time.
//
// Repair: it has eight.
#include "findings.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned read_bytes = 3000, write_bytes = 4000, others = 2, few = 1, many = 8;
constexpr std::size_t limit = 16;
constexpr long device_us = 800;

class Channel
{
    std::mutex mutex;
    std::condition_variable frame_came, room_came;
    std::deque<uint64_t> frames;
    bool is_closed = false;

  public:
    void send(uint64_t frame)
    {
        std::unique_lock<std::mutex> guard(mutex);
        while (frames.size() == limit)
            room_came.wait(guard);
        frames.push_back(frame);
        frame_came.notify_one();
    }

    std::optional<uint64_t> receive()
    {
        std::unique_lock<std::mutex> guard(mutex);
        while (frames.empty() && !is_closed)
            frame_came.wait(guard);
        if (frames.empty())
            return std::nullopt;
        uint64_t frame = frames.front();
        frames.pop_front();
        room_came.notify_one();
        return frame;
    }

    void close_it()
    {
        std::lock_guard<std::mutex> guard(mutex);
        is_closed = true;
        frame_came.notify_all();
    }
};

Channel raw, encoded;

void read_frames()
{
    for (uint64_t frame = 0; !is_over(); frame++)
        raw.send(digest(frame, read_bytes));
}

void encode_frames()
{
    int device = service_open();
    while (auto frame = raw.receive()) {
        service_ask(device, device_us);
        encoded.send(*frame);
    }
    close(device);
}

void write_frames(unsigned long &ops)
{
    while (auto frame = encoded.receive()) {
        digest(*frame, write_bytes);
        ops++;
    }
}

void join_all(std::vector<std::thread> &threads)
{
    for (std::thread &each : threads)
        each.join();
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<unsigned long> ops(others);
    std::vector<std::thread> readers, encoders, writers;
    for (unsigned i = 0; i < others; i++) {
        readers.emplace_back(read_frames);
        writers.emplace_back(write_frames, std::ref(ops[i]));
    }
    for (unsigned i = 0; i < (is_fixed ? many : few); i++)
        encoders.emplace_back(encode_frames);
    join_all(readers);
    raw.close_it();
    join_all(encoders);
    encoded.close_it();
    join_all(writers);
    unsigned long sum = 0;
    for (unsigned long each : ops)
        sum += each;
    finish(sum);
    return 0;
}
