// SPDX-License-Identifier: MIT
//
// connection_pool.cpp - eight threads that query a database through a pool. Fault: the pool has two connections.
//
// Repair: it has eight.
#include "findings.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 8, small = 2, row_bytes = 10000;
constexpr long query_us = 500;

class Pool
{
    std::mutex pool_mutex;
    std::condition_variable connection_free;
    std::vector<int> connections;

  public:
    explicit Pool(unsigned size)
    {
        for (unsigned i = 0; i < size; i++)
            connections.push_back(service_open());
    }

    ~Pool()
    {
        for (int connection : connections)
            close(connection);
    }

    int acquire()
    {
        std::unique_lock<std::mutex> guard(pool_mutex);
        while (connections.empty())
            connection_free.wait(guard);
        int connection = connections.back();
        connections.pop_back();
        return connection;
    }

    void release(int connection)
    {
        {
            std::lock_guard<std::mutex> guard(pool_mutex);
            connections.push_back(connection);
        }
        connection_free.notify_one();
    }
};

unsigned long serve(Pool &pool)
{
    unsigned long ops = 0;
    for (uint64_t rows = 0; !is_over(); ops++) {
        int connection = pool.acquire();
        service_ask(connection, query_us);
        pool.release(connection);
        rows = digest(rows, row_bytes);
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    Pool pool(is_fixed ? threads : small);
    std::vector<unsigned long> ops(threads);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&, i] { ops[i] = serve(pool); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
