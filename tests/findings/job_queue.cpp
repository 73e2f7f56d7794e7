// SPDX-License-Identifier: MIT
//
// job_queue.cpp - a queue of jobs and a pool of workers. Fault: each job wakes all idle workers (notify_all), and one
// of them finds it.
//
// Repair: notify_one.
#include "findings.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned clients = 2, workers = 14, job_bytes = 20000;

struct Job {
    std::mutex mutex;
    std::condition_variable finished;
    uint64_t value = 0;
    bool is_finished = false;
};

class Queue
{
    std::mutex queue_mutex;
    std::condition_variable job_ready;
    std::deque<Job *> jobs;
    bool is_closed = false;

  public:
    void submit(Job *job)
    {
        {
            std::lock_guard<std::mutex> guard(queue_mutex);
            jobs.push_back(job);
        }
        if (is_fixed)
            job_ready.notify_one();
        else
            job_ready.notify_all();
    }

    Job *take()
    {
        std::unique_lock<std::mutex> guard(queue_mutex);
        while (jobs.empty() && !is_closed)
            job_ready.wait(guard);
        if (jobs.empty())
            return nullptr;
        Job *job = jobs.front();
        jobs.pop_front();
        return job;
    }

    void close_it()
    {
        std::lock_guard<std::mutex> guard(queue_mutex);
        is_closed = true;
        job_ready.notify_all();
    }
};

Queue queue;

void work()
{
    while (Job *job = queue.take()) {
        job->value = digest(job->value, job_bytes);
        std::lock_guard<std::mutex> guard(job->mutex);
        job->is_finished = true;
        job->finished.notify_one();
    }
}

unsigned long request(Job &job)
{
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        job.is_finished = false; // no worker has the job now
        queue.submit(&job);
        std::unique_lock<std::mutex> guard(job.mutex);
        while (!job.is_finished)
            job.finished.wait(guard);
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<Job> jobs(clients);
    std::vector<unsigned long> ops(clients);
    std::vector<std::thread> pool, callers;
    for (unsigned i = 0; i < workers; i++)
        pool.emplace_back(work);
    for (unsigned i = 0; i < clients; i++)
        callers.emplace_back([&, i] { ops[i] = request(jobs[i]); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < clients; i++) {
        callers[i].join();
        sum += ops[i];
    }
    queue.close_it();
    for (std::thread &worker : pool)
        worker.join();
    finish(sum);
    return 0;
}
