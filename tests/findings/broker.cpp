// SPDX-License-Identifier: MIT
//
// broker.cpp - clients that hand requests to two threads and wait for the reply. Fault: nobody signals the condition
// that these threads wait on, so that they find new requests only when their wait times out, after 2 ms.
//
// Repair: a new request signals the condition.
#include "findings.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned clients = 4, brokers = 2, reply_bytes = 20000, request_bytes = 5000;
constexpr std::chrono::milliseconds patience(2);

struct Request {
    std::mutex mutex;
    std::condition_variable replied;
    bool has_reply = false;
};

class Broker
{
    std::mutex requests_mutex;
    std::condition_variable request_came;
    std::deque<Request *> requests;
    bool is_closed = false;

    Request *next()
    {
        std::unique_lock<std::mutex> guard(requests_mutex);
        while (requests.empty() && !is_closed)
            request_came.wait_for(guard, patience);
        if (requests.empty())
            return nullptr;
        Request *request = requests.front();
        requests.pop_front();
        return request;
    }

  public:
    void serve()
    {
        while (Request *request = next()) {
            digest(1, reply_bytes);
            std::lock_guard<std::mutex> guard(request->mutex);
            request->has_reply = true;
            request->replied.notify_one();
        }
    }

    void ask(Request &request)
    {
        {
            std::lock_guard<std::mutex> guard(requests_mutex);
            requests.push_back(&request);
            if (is_fixed)
                request_came.notify_one();
        }
        std::unique_lock<std::mutex> guard(request.mutex);
        while (!request.has_reply)
            request.replied.wait(guard);
        request.has_reply = false;
    }

    void close_it()
    {
        std::lock_guard<std::mutex> guard(requests_mutex);
        is_closed = true;
        request_came.notify_all();
    }
};

Broker broker;

unsigned long run_client(Request &request)
{
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        digest(ops, request_bytes);
        broker.ask(request);
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<Request> requests(clients);
    std::vector<unsigned long> ops(clients);
    std::vector<std::thread> serving, asking;
    for (unsigned i = 0; i < brokers; i++)
        serving.emplace_back([] { broker.serve(); });
    for (unsigned i = 0; i < clients; i++)
        asking.emplace_back([&, i] { ops[i] = run_client(requests[i]); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < clients; i++) {
        asking[i].join();
        sum += ops[i];
    }
    broker.close_it();
    for (std::thread &thread : serving)
        thread.join();
    finish(sum);
    return 0;
}
