// SPDX-License-Identifier: MIT
//
// build_farm.cpp - clients that wait for futures, and a pool of threads that compiles on remote machines. Fault: the
// pool has two threads for eight clients, and each of them waits most of the time until the remote machine is done.
//
// Repair: it has eight.
#include "findings.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned clients = 8, small = 2, source_bytes = 30000, object_bytes = 20000;
constexpr std::chrono::microseconds remote_time(700);

class Farm
{
    std::mutex jobs_mutex;
    std::condition_variable job_came;
    std::deque<std::function<void()>> jobs;
    bool is_closed = false;
    std::vector<std::thread> builders;

    void build()
    {
        for (;;) {
            std::function<void()> job;
            {
                std::unique_lock<std::mutex> guard(jobs_mutex);
                while (jobs.empty() && !is_closed)
                    job_came.wait(guard);
                if (jobs.empty())
                    return;
                job = std::move(jobs.front());
                jobs.pop_front();
            }
            job();
        }
    }

  public:
    explicit Farm(unsigned size)
    {
        for (unsigned i = 0; i < size; i++)
            builders.emplace_back([this] { build(); });
    }

    std::future<uint64_t> submit(std::function<uint64_t()> job)
    {
        auto task = std::make_shared<std::packaged_task<uint64_t()>>(std::move(job));
        auto future = task->get_future();
        {
            std::lock_guard<std::mutex> guard(jobs_mutex);
            jobs.emplace_back([task] { (*task)(); });
        }
        job_came.notify_one();
        return future;
    }

    ~Farm()
    {
        {
            std::lock_guard<std::mutex> guard(jobs_mutex);
            is_closed = true;
        }
        job_came.notify_all();
        for (std::thread &builder : builders)
            builder.join();
    }
};

uint64_t compile(uint64_t source)
{
    std::this_thread::sleep_for(remote_time); // the remote machine compiles
    return digest(source, object_bytes);
}

unsigned long request_builds(Farm &farm)
{
    unsigned long ops = 0;
    for (uint64_t source = 0; !is_over(); ops++) {
        uint64_t preprocessed = digest(source, source_bytes);
        source = farm.submit([preprocessed] { return compile(preprocessed); }).get();
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    Farm farm(is_fixed ? clients : small);
    std::vector<unsigned long> ops(clients);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < clients; i++)
        all.emplace_back([&, i] { ops[i] = request_builds(farm); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < clients; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
