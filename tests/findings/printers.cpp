// SPDX-License-Identifier: MIT
//
// printers.cpp - a queue of pages, and a pool of eight threads that print them. Fault: a new page wakes a thread only if
// the queue was empty. It never is again, so one thread prints all pages, and the others never start.
//
// Repair: each page wakes a thread.
#include "findings.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned printers = 8, authors = 8;
constexpr long print_us = 400;

struct Page {
    std::mutex mutex;
    std::condition_variable printed;
    bool is_printed = false;
};

class Queue
{
    std::mutex queue_mutex;
    std::condition_variable page_came, printer_came;
    std::deque<Page *> pages;
    unsigned waiting = 0;
    bool is_closed = false;

    void push(Page *page) // with queue_mutex
    {
        bool was_empty = pages.empty();
        pages.push_back(page);
        if (was_empty || is_fixed)
            page_came.notify_one();
    }

  public:
    // Add the first pages, when all printers wait.
    void open(std::vector<Page> &first)
    {
        std::unique_lock<std::mutex> guard(queue_mutex);
        while (waiting < printers)
            printer_came.wait(guard);
        for (Page &page : first)
            push(&page);
    }

    void add(Page *page)
    {
        std::lock_guard<std::mutex> guard(queue_mutex);
        push(page);
    }

    Page *take()
    {
        std::unique_lock<std::mutex> guard(queue_mutex);
        while (pages.empty() && !is_closed) {
            waiting++;
            printer_came.notify_one();
            page_came.wait(guard);
            waiting--;
        }
        if (pages.empty())
            return nullptr;
        Page *page = pages.front();
        pages.pop_front();
        return page;
    }

    void close_it()
    {
        std::lock_guard<std::mutex> guard(queue_mutex);
        is_closed = true;
        page_came.notify_all();
    }
};

Queue queue;

void print()
{
    int printer = service_open();
    while (Page *page = queue.take()) {
        service_ask(printer, print_us);
        std::lock_guard<std::mutex> guard(page->mutex);
        page->is_printed = true;
        page->printed.notify_one();
    }
    close(printer);
}

unsigned long write_pages(Page &page)
{
    unsigned long ops = 0;
    for (;;) {
        std::unique_lock<std::mutex> guard(page.mutex);
        while (!page.is_printed)
            page.printed.wait(guard);
        page.is_printed = false;
        ops++;
        if (is_over())
            return ops;
        queue.add(&page);
    }
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<Page> pages(authors);
    std::vector<unsigned long> ops(authors);
    std::vector<std::thread> pool, callers;
    for (unsigned i = 0; i < printers; i++)
        pool.emplace_back(print);
    queue.open(pages);
    for (unsigned i = 0; i < authors; i++)
        callers.emplace_back([&, i] { ops[i] = write_pages(pages[i]); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < authors; i++) {
        callers[i].join();
        sum += ops[i];
    }
    queue.close_it();
    for (std::thread &printer : pool)
        printer.join();
    finish(sum);
    return 0;
}
