// SPDX-License-Identifier: MIT
//
// bank.cpp - accounts and their ledger. Fault: the ledger's mutex is held while entries are written to a slow archive.
// Threads that post wait for it with the accounts' mutex held, and so the others wait for the accounts.
//
// Repair: the entries are taken out under the mutex, and written without it.
#include "findings.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 6, accounts = 64, request_bytes = 10000;
constexpr std::chrono::microseconds archive_time(400);

class Bank
{
    std::mutex accounts_mutex; // taken before ledger_mutex
    std::vector<long> balances = std::vector<long>(accounts);
    std::mutex ledger_mutex;
    std::vector<long> entries;

    void append(long amount)
    {
        std::lock_guard<std::mutex> guard(ledger_mutex);
        entries.push_back(amount);
    }

  public:
    void post(unsigned account, long amount)
    {
        std::lock_guard<std::mutex> guard(accounts_mutex);
        balances[account] += amount;
        append(amount);
    }

    void archive()
    {
        std::unique_lock<std::mutex> guard(ledger_mutex);
        std::vector<long> taken;
        taken.swap(entries);
        if (is_fixed)
            guard.unlock();
        std::this_thread::sleep_for(archive_time); // the archive writes
    }
};

unsigned long serve(Bank &bank, uint64_t seed)
{
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        seed = digest(seed, request_bytes);
        bank.post(static_cast<unsigned>(seed % accounts), static_cast<long>(ops));
        bank.archive();
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    static Bank bank;
    std::vector<unsigned long> ops(threads);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&, i] { ops[i] = serve(bank, i); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
