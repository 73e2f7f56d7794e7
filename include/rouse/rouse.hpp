/* SPDX-License-Identifier: MIT */
/*
 * rouse/rouse.hpp - rouse for C++17: the threads, locks, conditions, semaphores, latches, barriers, futures and stop tokens
 * of the standard library, for user threads; and channels and sockets. Header-only, over the C interface.
 *
 * Names, arguments and results are those of <thread>, <mutex>, <shared_mutex>, <condition_variable>, <semaphore>, <latch>,
 * <barrier>, <future> and <stop_token>, also where the compiler is set to C++17. std::unique_lock, std::scoped_lock,
 * std::shared_lock and std::lock work with these mutexes. Each object may be used by every kind of thread.
 *
 * Differences from the standard library:
 *   - Cancellation. A thread that is asked to stop (jthread::request_stop, rouse_thread_cancel) gets an exception of class
 *     rouse::cancelled from the call in which it waits, or from its next one: sleep, join, wait for a condition, a
 *     semaphore, a latch, a barrier, a future or a channel, I/O, and every lock with a deadline. Each request is delivered
 *     once. A thread that rouse::cancelled leaves has ended as if its function had returned. Plain lock() is not cancelled.
 *   - An exception that leaves the function of a thread is thrown again by join(). If nobody joins the thread, the program
 *     ends with one line that names the thread.
 *   - Stacks have 256 KiB of address space, since exceptions need more than the 64 KiB of C. See rouse::attributes.
 *   - Errors of sockets are std::system_error; std::errc::timed_out if a deadline passed.
 *
 * Deadlines of clocks other than std::chrono::steady_clock are converted when the call begins.
 */
#ifndef ROUSE_ROUSE_HPP
#define ROUSE_ROUSE_HPP

#include <rouse/rouse.h>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <shared_mutex>
#include <string>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rouse
{

/* Thrown by a call that waits, in a thread that was asked to stop. */
class cancelled : public std::system_error
{
  public:
    cancelled() : std::system_error(std::make_error_code(std::errc::operation_canceled))
    {
    }
};

namespace detail
{

[[noreturn]] inline void fail(int error, const char *what)
{
    if (error == ECANCELED)
        throw cancelled();
    throw std::system_error(error, std::generic_category(), what);
}

/* The result of a call of C: throws if it is an error. */
template <typename Result> Result checked(Result result, const char *what)
{
    if (result < 0)
        fail(static_cast<int>(-result), what);
    return result;
}

template <typename Rep, typename Period>
std::uint64_t deadline_in(const std::chrono::duration<Rep, Period> &time)
{
    std::uint64_t now = rouse_now_ns();
    if (time <= time.zero())
        return now;
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max() / 2;
    if (std::chrono::duration<double, std::nano>(time).count() >= static_cast<double>(most))
        return ROUSE_FOREVER;
    auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time);
    if (ns < time) /* no wait ends early */
        ++ns;
    return now + static_cast<std::uint64_t>(ns.count());
}

template <typename Clock, typename Duration>
std::uint64_t deadline_at(const std::chrono::time_point<Clock, Duration> &time)
{
    auto now = Clock::now(); /* the difference to a time far in the past has no room */
    return time <= now ? rouse_now_ns() : deadline_in(time - now);
}

/* End the program, since an exception left a thread that nobody joins. */
[[noreturn]] inline void unhandled(const std::string &thread,
                                   const std::exception_ptr &error) noexcept
{
    try {
        std::rethrow_exception(error);
    } catch (const std::exception &known) {
        std::fprintf(stderr, "rouse: thread %s ended by an exception: %s\n", thread.c_str(),
                     known.what());
    } catch (...) {
        std::fprintf(stderr, "rouse: thread %s ended by an exception\n", thread.c_str());
    }
    std::terminate();
}

} /* namespace detail */

/* Locks. */

class mutex
{
  public:
    using native_handle_type = rouse_mutex *;
    constexpr mutex() noexcept = default;
    /* name: shown by reports and dumps; not copied. */
    constexpr explicit mutex(const char *name) noexcept : raw_ ROUSE_MUTEX_INIT_NAMED(name)
    {
    }
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;
    ~mutex()
    {
        rouse_mutex_destroy(&raw_);
    }
    void lock()
    {
        rouse_mutex_lock(&raw_);
    }
    bool try_lock()
    {
        return rouse_mutex_lock_try(&raw_) == 0;
    }
    void unlock()
    {
        rouse_mutex_unlock(&raw_);
    }
    native_handle_type native_handle()
    {
        return &raw_;
    }

  protected:
    bool lock_until(std::uint64_t deadline_ns)
    {
        int result = rouse_mutex_lock_until(&raw_, deadline_ns);
        return result != -ETIMEDOUT && (detail::checked(result, "mutex"), true);
    }

  private:
    rouse_mutex raw_ = ROUSE_MUTEX_INIT;
};

class timed_mutex : public mutex
{
  public:
    using mutex::mutex;
    template <typename Rep, typename Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period> &time)
    {
        return lock_until(detail::deadline_in(time));
    }
    template <typename Clock, typename Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &time)
    {
        return lock_until(detail::deadline_at(time));
    }
};

/* Its owner is a thread, on whatever worker it runs. */
class recursive_timed_mutex
{
  public:
    recursive_timed_mutex() noexcept = default;
    explicit recursive_timed_mutex(const char *name) noexcept : mutex_(name)
    {
    }
    void lock()
    {
        if (!again()) {
            mutex_.lock();
            begin();
        }
    }
    bool try_lock()
    {
        return again() || (mutex_.try_lock() && begin());
    }
    template <typename Rep, typename Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period> &time)
    {
        return again() || (mutex_.try_lock_for(time) && begin());
    }
    template <typename Clock, typename Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &time)
    {
        return again() || (mutex_.try_lock_until(time) && begin());
    }
    void unlock()
    {
        if (--depth_ == 0) {
            owner_.store(nullptr, std::memory_order_relaxed);
            mutex_.unlock();
        }
    }

  private:
    /* Relaxed: a thread finds itself there only if it stored that itself. */
    bool again()
    {
        if (owner_.load(std::memory_order_relaxed) != rouse_thread_self())
            return false;
        ++depth_;
        return true;
    }
    bool begin()
    {
        owner_.store(rouse_thread_self(), std::memory_order_relaxed);
        depth_ = 1;
        return true;
    }

    timed_mutex mutex_;
    std::atomic<struct rouse_thread *> owner_{ nullptr };
    std::size_t depth_ = 0; /* under the mutex */
};

class recursive_mutex : private recursive_timed_mutex
{
  public:
    using recursive_timed_mutex::lock;
    using recursive_timed_mutex::recursive_timed_mutex;
    using recursive_timed_mutex::try_lock;
    using recursive_timed_mutex::unlock;
};

class shared_timed_mutex
{
  public:
    using native_handle_type = rouse_rwlock *;
    constexpr shared_timed_mutex() noexcept = default;
    constexpr explicit shared_timed_mutex(const char *name) noexcept
        : raw_ ROUSE_RWLOCK_INIT_NAMED(name)
    {
    }
    shared_timed_mutex(const shared_timed_mutex &) = delete;
    shared_timed_mutex &operator=(const shared_timed_mutex &) = delete;
    ~shared_timed_mutex()
    {
        rouse_rwlock_destroy(&raw_);
    }
    void lock()
    {
        rouse_rwlock_write_lock(&raw_);
    }
    bool try_lock()
    {
        return rouse_rwlock_write_lock_try(&raw_) == 0;
    }
    void unlock()
    {
        rouse_rwlock_write_unlock(&raw_);
    }
    void lock_shared()
    {
        rouse_rwlock_read_lock(&raw_);
    }
    bool try_lock_shared()
    {
        return rouse_rwlock_read_lock_try(&raw_) == 0;
    }
    void unlock_shared()
    {
        rouse_rwlock_read_unlock(&raw_);
    }
    template <typename Rep, typename Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period> &time)
    {
        return is_locked(rouse_rwlock_write_lock_until(&raw_, detail::deadline_in(time)));
    }
    template <typename Clock, typename Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &time)
    {
        return is_locked(rouse_rwlock_write_lock_until(&raw_, detail::deadline_at(time)));
    }
    template <typename Rep, typename Period>
    bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &time)
    {
        return is_locked(rouse_rwlock_read_lock_until(&raw_, detail::deadline_in(time)));
    }
    template <typename Clock, typename Duration>
    bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &time)
    {
        return is_locked(rouse_rwlock_read_lock_until(&raw_, detail::deadline_at(time)));
    }
    native_handle_type native_handle()
    {
        return &raw_;
    }

  private:
    static bool is_locked(int result)
    {
        return result != -ETIMEDOUT && (detail::checked(result, "shared_mutex"), true);
    }

    rouse_rwlock raw_ = ROUSE_RWLOCK_INIT;
};

class shared_mutex : private shared_timed_mutex
{
  public:
    using native_handle_type = shared_timed_mutex::native_handle_type;
    using shared_timed_mutex::lock;
    using shared_timed_mutex::lock_shared;
    using shared_timed_mutex::native_handle;
    using shared_timed_mutex::shared_timed_mutex;
    using shared_timed_mutex::try_lock;
    using shared_timed_mutex::try_lock_shared;
    using shared_timed_mutex::unlock;
    using shared_timed_mutex::unlock_shared;
};

/* Conditions. */

/*
 * All threads that wait at the same time use the same mutex. The forms with a predicate let reports tell useful wake-ups
 * from spurious ones. A cancelled wait throws with the lock held.
 */
class condition_variable
{
  public:
    using native_handle_type = rouse_cond *;
    constexpr condition_variable() noexcept = default;
    constexpr explicit condition_variable(const char *name) noexcept
        : raw_ ROUSE_COND_INIT_NAMED(name)
    {
    }
    condition_variable(const condition_variable &) = delete;
    condition_variable &operator=(const condition_variable &) = delete;
    ~condition_variable()
    {
        rouse_cond_destroy(&raw_);
    }
    void notify_one() noexcept
    {
        rouse_cond_signal(&raw_);
    }
    void notify_all() noexcept
    {
        rouse_cond_broadcast(&raw_);
    }
    void wait(std::unique_lock<mutex> &lock)
    {
        detail::checked(rouse_cond_wait(&raw_, raw(lock)), "condition_variable");
    }
    template <typename Predicate> void wait(std::unique_lock<mutex> &lock, Predicate predicate)
    {
        wait_while(lock, ROUSE_FOREVER, predicate);
    }
    template <typename Clock, typename Duration>
    std::cv_status wait_until(std::unique_lock<mutex> &lock,
                              const std::chrono::time_point<Clock, Duration> &time)
    {
        return wait_once(lock, detail::deadline_at(time));
    }
    template <typename Clock, typename Duration, typename Predicate>
    bool wait_until(std::unique_lock<mutex> &lock,
                    const std::chrono::time_point<Clock, Duration> &time, Predicate predicate)
    {
        return wait_while(lock, detail::deadline_at(time), predicate);
    }
    template <typename Rep, typename Period>
    std::cv_status wait_for(std::unique_lock<mutex> &lock,
                            const std::chrono::duration<Rep, Period> &time)
    {
        return wait_once(lock, detail::deadline_in(time));
    }
    template <typename Rep, typename Period, typename Predicate>
    bool wait_for(std::unique_lock<mutex> &lock, const std::chrono::duration<Rep, Period> &time,
                  Predicate predicate)
    {
        return wait_while(lock, detail::deadline_in(time), predicate);
    }
    native_handle_type native_handle()
    {
        return &raw_;
    }

  private:
    template <typename Predicate> struct asked {
        Predicate &predicate;
        std::exception_ptr error;
    };

    static rouse_mutex *raw(const std::unique_lock<mutex> &lock)
    {
        return lock.mutex()->native_handle();
    }

    std::cv_status wait_once(std::unique_lock<mutex> &lock, std::uint64_t deadline_ns)
    {
        int result = rouse_cond_wait_until(&raw_, raw(lock), deadline_ns);
        if (result == -ETIMEDOUT)
            return std::cv_status::timeout;
        detail::checked(result, "condition_variable");
        return std::cv_status::no_timeout;
    }

    /* Wait until the predicate holds. Returns false if the deadline passed first. */
    template <typename Predicate>
    bool wait_while(std::unique_lock<mutex> &lock, std::uint64_t deadline_ns, Predicate &predicate)
    {
        asked<Predicate> question = { predicate, nullptr };
        /* An exception must not pass through C. */
        auto is_false = [](void *arg) -> bool {
            auto *one = static_cast<asked<Predicate> *>(arg);
            try {
                return !one->predicate();
            } catch (...) {
                one->error = std::current_exception();
                return false;
            }
        };
        int result =
            deadline_ns == ROUSE_FOREVER
                ? rouse_cond_wait_while(&raw_, raw(lock), is_false, &question)
                : rouse_cond_wait_while_until(&raw_, raw(lock), is_false, &question, deadline_ns);
        if (question.error)
            std::rethrow_exception(question.error);
        return result != -ETIMEDOUT && (detail::checked(result, "condition_variable"), true);
    }

    rouse_cond raw_ = ROUSE_COND_INIT;
};

/* Stop tokens. */

namespace detail
{

struct stop_state {
    struct callback {
        callback *next = nullptr;
        std::function<void()> run;
        bool is_listed = true;
    };
    mutex lock;
    condition_variable done;
    callback *first = nullptr;
    callback *running = nullptr;
    struct rouse_thread *runner = nullptr;
    std::atomic<bool> is_requested{ false };
    std::atomic<std::size_t> sources{ 0 };

    bool request()
    {
        std::unique_lock<mutex> held(lock);
        if (is_requested.load(std::memory_order_relaxed))
            return false;
        is_requested.store(true, std::memory_order_release); /* pairs with stop_token's load */
        runner = rouse_thread_self();
        while (first) {
            running = std::exchange(first, first->next);
            running->is_listed = false;
            callback *one = running;
            held.unlock();
            one->run();
            held.lock();
            running = nullptr;
            done.notify_all();
        }
        return true;
    }

    /* Returns whether it was added; if not, a stop was requested already. */
    bool add(callback *one)
    {
        std::lock_guard<mutex> held(lock);
        if (is_requested.load(std::memory_order_relaxed))
            return false;
        one->next = std::exchange(first, one);
        return true;
    }

    /* Afterwards the callback does not run, except in the caller itself. */
    void remove(callback *one)
    {
        std::unique_lock<mutex> held(lock);
        if (one->is_listed) {
            for (callback **at = &first; *at; at = &(*at)->next)
                if (*at == one) {
                    *at = one->next;
                    return;
                }
            return;
        }
        bool is_cancelled = false;
        while (running == one && runner != rouse_thread_self())
            if (rouse_cond_wait(done.native_handle(), lock.native_handle()) == -ECANCELED)
                is_cancelled = true;
        if (is_cancelled) /* for the caller's next call: this wait had to end first */
            rouse_thread_cancel(rouse_thread_self());
    }
};

} /* namespace detail */

struct nostopstate_t {
    explicit nostopstate_t() = default;
};
inline constexpr nostopstate_t nostopstate{};

class stop_token
{
  public:
    stop_token() noexcept = default;
    bool stop_requested() const noexcept
    {
        return state_ && state_->is_requested.load(std::memory_order_acquire);
    }
    bool stop_possible() const noexcept
    {
        return state_ && (stop_requested() || state_->sources.load(std::memory_order_acquire) > 0);
    }
    void swap(stop_token &other) noexcept
    {
        state_.swap(other.state_);
    }
    friend bool operator==(const stop_token &one, const stop_token &other) noexcept
    {
        return one.state_ == other.state_;
    }
    friend bool operator!=(const stop_token &one, const stop_token &other) noexcept
    {
        return !(one == other);
    }

  private:
    explicit stop_token(std::shared_ptr<detail::stop_state> state) noexcept
        : state_(std::move(state))
    {
    }
    std::shared_ptr<detail::stop_state> state_;
    friend class stop_source;
    template <typename Callback> friend class stop_callback;
};

class stop_source
{
  public:
    stop_source() : state_(std::make_shared<detail::stop_state>())
    {
        count(1);
    }
    explicit stop_source(nostopstate_t) noexcept
    {
    }
    stop_source(const stop_source &other) noexcept : state_(other.state_)
    {
        count(1);
    }
    stop_source(stop_source &&other) noexcept = default;
    stop_source &operator=(stop_source other) noexcept
    {
        state_.swap(other.state_);
        return *this;
    }
    ~stop_source()
    {
        count(static_cast<std::size_t>(-1));
    }
    bool request_stop() noexcept
    {
        return state_ && state_->request();
    }
    stop_token get_token() const noexcept
    {
        return stop_token(state_);
    }
    bool stop_requested() const noexcept
    {
        return get_token().stop_requested();
    }
    bool stop_possible() const noexcept
    {
        return state_ != nullptr;
    }
    void swap(stop_source &other) noexcept
    {
        state_.swap(other.state_);
    }
    friend bool operator==(const stop_source &one, const stop_source &other) noexcept
    {
        return one.state_ == other.state_;
    }
    friend bool operator!=(const stop_source &one, const stop_source &other) noexcept
    {
        return !(one == other);
    }

  private:
    void count(std::size_t by) noexcept
    {
        if (state_)
            state_->sources.fetch_add(by, std::memory_order_acq_rel);
    }
    std::shared_ptr<detail::stop_state> state_;
};

template <typename Callback> class stop_callback
{
  public:
    using callback_type = Callback;
    template <typename From>
    explicit stop_callback(const stop_token &token, From &&from)
        : callback_(std::forward<From>(from)), state_(token.state_)
    {
        listed_.run = [this] { callback_(); };
        if (state_ && !state_->add(&listed_)) {
            state_.reset();
            callback_();
        }
    }
    stop_callback(const stop_callback &) = delete;
    stop_callback &operator=(const stop_callback &) = delete;
    ~stop_callback()
    {
        if (state_)
            state_->remove(&listed_);
    }

  private:
    Callback callback_;
    detail::stop_state::callback listed_;
    std::shared_ptr<detail::stop_state> state_;
};
template <typename Callback> stop_callback(stop_token, Callback) -> stop_callback<Callback>;

/* Works with every lock that has lock() and unlock(). */
class condition_variable_any
{
  public:
    condition_variable_any() : inner_(std::make_shared<inner>())
    {
    }
    condition_variable_any(const condition_variable_any &) = delete;
    condition_variable_any &operator=(const condition_variable_any &) = delete;
    void notify_one() noexcept
    {
        std::lock_guard<mutex> held(inner_->lock);
        inner_->changed.notify_one();
    }
    void notify_all() noexcept
    {
        std::lock_guard<mutex> held(inner_->lock);
        inner_->changed.notify_all();
    }
    template <typename Lock> void wait(Lock &lock)
    {
        wait_once(lock, ROUSE_FOREVER);
    }
    template <typename Lock, typename Predicate> void wait(Lock &lock, Predicate predicate)
    {
        while (!predicate())
            wait(lock);
    }
    template <typename Lock, typename Clock, typename Duration>
    std::cv_status wait_until(Lock &lock, const std::chrono::time_point<Clock, Duration> &time)
    {
        return wait_once(lock, detail::deadline_at(time));
    }
    template <typename Lock, typename Clock, typename Duration, typename Predicate>
    bool wait_until(Lock &lock, const std::chrono::time_point<Clock, Duration> &time,
                    Predicate predicate)
    {
        return wait_before(lock, detail::deadline_at(time), predicate);
    }
    template <typename Lock, typename Rep, typename Period>
    std::cv_status wait_for(Lock &lock, const std::chrono::duration<Rep, Period> &time)
    {
        return wait_once(lock, detail::deadline_in(time));
    }
    template <typename Lock, typename Rep, typename Period, typename Predicate>
    bool wait_for(Lock &lock, const std::chrono::duration<Rep, Period> &time, Predicate predicate)
    {
        return wait_before(lock, detail::deadline_in(time), predicate);
    }
    /* These return whether the predicate holds; it may not if a stop was requested or the time is over. */
    template <typename Lock, typename Predicate>
    bool wait(Lock &lock, stop_token token, Predicate predicate)
    {
        return wait_before(lock, std::move(token), ROUSE_FOREVER, predicate);
    }
    template <typename Lock, typename Clock, typename Duration, typename Predicate>
    bool wait_until(Lock &lock, stop_token token,
                    const std::chrono::time_point<Clock, Duration> &time, Predicate predicate)
    {
        return wait_before(lock, std::move(token), detail::deadline_at(time), predicate);
    }
    template <typename Lock, typename Rep, typename Period, typename Predicate>
    bool wait_for(Lock &lock, stop_token token, const std::chrono::duration<Rep, Period> &time,
                  Predicate predicate)
    {
        return wait_before(lock, std::move(token), detail::deadline_in(time), predicate);
    }

  private:
    template <typename Lock, typename Predicate>
    bool wait_before(Lock &lock, std::uint64_t deadline_ns, Predicate &predicate)
    {
        while (!predicate())
            if (wait_once(lock, deadline_ns) == std::cv_status::timeout)
                return predicate();
        return true;
    }
    /*
     * The token may be that of the waiting jthread, which is then cancelled as well. Whichever comes first, the wait
     * ends in the same way: the request to cancel is left for the next one.
     */
    template <typename Lock, typename Predicate>
    bool wait_before(Lock &lock, stop_token token, std::uint64_t deadline_ns, Predicate &predicate)
    {
        stop_callback wake(token, [this] { notify_all(); });
        while (!predicate()) {
            if (token.stop_requested())
                return false;
            try {
                if (wait_once(lock, deadline_ns, &token) == std::cv_status::timeout)
                    return predicate();
            } catch (const cancelled &) {
                if (!token.stop_requested())
                    throw;
                rouse_thread_cancel(rouse_thread_self());
                return predicate();
            }
        }
        return true;
    }

    struct inner {
        mutex lock;
        condition_variable changed;
    };

    /* The inner lock is taken before the user's is released, so that no notification is lost between them. */
    template <typename Lock>
    std::cv_status wait_once(Lock &lock, std::uint64_t deadline_ns,
                             const stop_token *token = nullptr)
    {
        std::shared_ptr<inner> kept =
            inner_; /* the object may be destroyed once all were notified */
        struct relock {
            Lock &lock;
            ~relock()
            {
                lock.lock();
            }
        };
        std::unique_lock<mutex> held(kept->lock);
        if (token && token->stop_requested())
            return std::cv_status::no_timeout;
        lock.unlock();
        relock at_end = { lock };
        std::unique_lock<mutex> own(std::move(held)); /* released before the user's is taken */
        int result = rouse_cond_wait_until(kept->changed.native_handle(),
                                           kept->lock.native_handle(), deadline_ns);
        if (result == -ETIMEDOUT)
            return std::cv_status::timeout;
        detail::checked(result, "condition_variable_any");
        return std::cv_status::no_timeout;
    }

    std::shared_ptr<inner> inner_;
};

/* Threads. */

/* A rouse_thread_attr with a stack for C++. name, kind, stack_bytes and cluster may be set. */
struct attributes : rouse_thread_attr {
    explicit attributes(const char *thread_name = nullptr)
        : rouse_thread_attr ROUSE_THREAD_ATTR_INIT
    {
        name = thread_name;
        stack_bytes = 256 * 1024;
    }
};

namespace detail
{

enum class fate { open, failed, detached };

/* Shared by a thread and its handles. */
struct thread_state {
    std::function<void()> run;
    std::exception_ptr error; /* written by the thread before its end, read after the join */
    std::atomic<fate> end{ fate::open };
    mutex lock;
    struct rouse_thread *handle =
        nullptr;            /* under the lock; null once the thread is about to end */
    bool has_ended = false; /* so is this */
    std::string name;

    /* Ask the thread to stop. A handle that is not null is that of a thread that has not ended. */
    void cancel()
    {
        std::lock_guard<mutex> held(lock);
        if (handle)
            rouse_thread_cancel(handle);
    }
};

inline std::string name_of(struct rouse_thread *thread)
{
    char text[ROUSE_NAME_BYTES];
    std::string number = std::to_string(rouse_thread_id(thread));
    return rouse_thread_name(thread, text, sizeof text) ? number + " (" + text + ")" : number;
}

inline void *thread_main(void *arg)
{
    std::unique_ptr<std::shared_ptr<thread_state>> owned(
        static_cast<std::shared_ptr<thread_state> *>(arg));
    thread_state &state = **owned;
    {
        std::lock_guard<mutex> held(state.lock);
        state.handle = rouse_thread_self();
        state.name = name_of(state.handle);
    }
    try {
        state.run();
    } catch (const cancelled &) {
    } catch (...) {
        state.error = std::current_exception();
    }
    state.run = nullptr; /* arguments are destroyed in the thread that used them */
    {
        std::lock_guard<mutex> held(state.lock);
        state.handle = nullptr;
        state.has_ended = true;
    }
    if (state.error && state.end.exchange(fate::failed) == fate::detached)
        unhandled(state.name, state.error);
    return nullptr;
}

} /* namespace detail */

class thread
{
  public:
    using native_handle_type = struct rouse_thread *;

    class id
    {
      public:
        id() noexcept = default;
        friend bool operator==(id one, id other) noexcept
        {
            return one.number_ == other.number_;
        }
        friend bool operator!=(id one, id other) noexcept
        {
            return one.number_ != other.number_;
        }
        friend bool operator<(id one, id other) noexcept
        {
            return one.number_ < other.number_;
        }
        friend bool operator<=(id one, id other) noexcept
        {
            return one.number_ <= other.number_;
        }
        friend bool operator>(id one, id other) noexcept
        {
            return one.number_ > other.number_;
        }
        friend bool operator>=(id one, id other) noexcept
        {
            return one.number_ >= other.number_;
        }
        template <typename Char, typename Traits>
        friend std::basic_ostream<Char, Traits> &operator<<(std::basic_ostream<Char, Traits> &out,
                                                            id one)
        {
            return one.number_ ? out << one.number_ : out << "no thread";
        }

      private:
        explicit id(std::uint64_t number) noexcept : number_(number)
        {
        }
        std::uint64_t number_ = 0;
        friend class thread;
        friend struct std::hash<id>;
    };

    thread() noexcept = default;
    template <typename Function, typename... Args,
              typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, thread> &&
                                          !std::is_same_v<std::decay_t<Function>, attributes>>>
    explicit thread(Function &&function, Args &&...args)
        : thread(attributes(), std::forward<Function>(function), std::forward<Args>(args)...)
    {
    }
    template <typename Function, typename... Args>
    explicit thread(const attributes &attr, Function &&function, Args &&...args)
        : state_(std::make_shared<detail::thread_state>())
    {
        static_assert(std::is_invocable_v<std::decay_t<Function>, std::decay_t<Args>...>,
                      "the function cannot be called with these arguments");
        auto call = std::make_shared<std::tuple<std::decay_t<Function>, std::decay_t<Args>...>>(
            std::forward<Function>(function), std::forward<Args>(args)...);
        state_->run = [call] {
            std::apply([](auto &&...all) { std::invoke(std::forward<decltype(all)>(all)...); },
                       std::move(*call));
        };
        call.reset();
        auto shared = std::make_unique<std::shared_ptr<detail::thread_state>>(state_);
        int result = rouse_thread_create(&handle_, &attr, detail::thread_main, shared.get());
        if (result < 0) {
            state_.reset();
            detail::fail(-result, "thread");
        }
        shared.release();
        id_ = id(rouse_thread_id(handle_));
        std::lock_guard<mutex> held(state_->lock);
        if (!state_->has_ended)
            state_->handle = handle_;
    }
    thread(thread &&other) noexcept
    {
        swap(other);
    }
    thread &operator=(thread &&other) noexcept
    {
        if (joinable())
            left();
        swap(other);
        return *this;
    }
    thread(const thread &) = delete;
    thread &operator=(const thread &) = delete;
    ~thread()
    {
        if (joinable())
            left();
    }
    bool joinable() const noexcept
    {
        return handle_ != nullptr;
    }
    id get_id() const noexcept
    {
        return id_;
    }
    native_handle_type native_handle() noexcept
    {
        return handle_;
    }
    /* Throws what left the thread's function, except cancelled. */
    void join()
    {
        check_joinable();
        if (handle_ == rouse_thread_self())
            detail::fail(EDEADLK, "join");
        detail::checked(rouse_thread_join(handle_, nullptr), "join");
        has_joined();
    }
    /* Join if the thread has ended. Returns whether it has. */
    bool try_join()
    {
        check_joinable();
        int result = rouse_thread_join_try(handle_, nullptr);
        if (result == -EBUSY)
            return false;
        detail::checked(result, "join");
        has_joined();
        return true;
    }
    void detach()
    {
        check_joinable();
        detail::checked(rouse_thread_detach(handle_), "detach");
        handle_ = nullptr;
        id_ = id();
        std::shared_ptr<detail::thread_state> state = std::move(state_);
        if (state->end.exchange(detail::fate::detached) == detail::fate::failed)
            detail::unhandled(state->name, state->error);
    }
    /* Ask the thread to stop: see rouse::cancelled. */
    void cancel()
    {
        check_joinable();
        state_->cancel();
    }
    void swap(thread &other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(id_, other.id_);
        state_.swap(other.state_);
    }
    friend void swap(thread &one, thread &other) noexcept
    {
        one.swap(other);
    }
    static unsigned hardware_concurrency() noexcept
    {
        return rouse_worker_count();
    }
    /* The id of the calling thread. */
    static id self() noexcept
    {
        return id(rouse_thread_id(rouse_thread_self()));
    }

  private:
    /* End the program, and tell what is lost: the thread was neither joined nor detached. */
    [[noreturn]] void left() noexcept
    {
        std::string name = detail::name_of(handle_);
        if (rouse_thread_join_try(handle_, nullptr) == 0 && state_->error)
            detail::unhandled(name, state_->error);
        std::fprintf(stderr, "rouse: thread %s was neither joined nor detached\n", name.c_str());
        std::terminate();
    }
    void has_joined()
    {
        handle_ = nullptr;
        id_ = id();
        std::shared_ptr<detail::thread_state> state = std::move(state_);
        if (state->error)
            std::rethrow_exception(state->error);
    }
    void check_joinable() const
    {
        if (!joinable())
            detail::fail(EINVAL, "thread");
    }

    struct rouse_thread *handle_ = nullptr;
    id id_;
    std::shared_ptr<detail::thread_state> state_;
    friend class jthread;
};

/*
 * A thread that is asked to stop and joined by its destructor. A request to stop cancels what the thread waits for. Its
 * function gets a stop_token as the first argument if it takes one.
 */
class jthread
{
  public:
    using id = thread::id;
    using native_handle_type = thread::native_handle_type;

    jthread() noexcept : source_(nostopstate)
    {
    }
    template <typename Function, typename... Args,
              typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, jthread> &&
                                          !std::is_same_v<std::decay_t<Function>, attributes>>>
    explicit jthread(Function &&function, Args &&...args)
        : jthread(attributes(), std::forward<Function>(function), std::forward<Args>(args)...)
    {
    }
    template <typename Function, typename... Args>
    explicit jthread(const attributes &attr, Function &&function, Args &&...args)
    {
        if constexpr (std::is_invocable_v<std::decay_t<Function>, stop_token,
                                          std::decay_t<Args>...>)
            thread_ = thread(attr, std::forward<Function>(function), source_.get_token(),
                             std::forward<Args>(args)...);
        else
            thread_ = thread(attr, std::forward<Function>(function), std::forward<Args>(args)...);
        auto cancel = [state = thread_.state_] { state->cancel(); };
        on_stop_ =
            std::make_unique<stop_callback<std::function<void()>>>(source_.get_token(), cancel);
    }
    jthread(jthread &&other) noexcept = default;
    jthread &operator=(jthread &&other) noexcept
    {
        end();
        swap(other);
        return *this;
    }
    ~jthread()
    {
        end();
    }
    bool joinable() const noexcept
    {
        return thread_.joinable();
    }
    id get_id() const noexcept
    {
        return thread_.get_id();
    }
    native_handle_type native_handle() noexcept
    {
        return thread_.native_handle();
    }
    void join()
    {
        thread_.join();
    }
    bool try_join()
    {
        return thread_.try_join();
    }
    void detach()
    {
        thread_.detach();
    }
    stop_source get_stop_source() noexcept
    {
        return source_;
    }
    stop_token get_stop_token() const noexcept
    {
        return source_.get_token();
    }
    bool request_stop() noexcept
    {
        return source_.request_stop();
    }
    /* Ask the thread once more, or without telling its tokens. */
    void cancel()
    {
        thread_.cancel();
    }
    void swap(jthread &other) noexcept
    {
        source_.swap(other.source_);
        thread_.swap(other.thread_);
        on_stop_.swap(other.on_stop_);
    }
    friend void swap(jthread &one, jthread &other) noexcept
    {
        one.swap(other);
    }
    static unsigned hardware_concurrency() noexcept
    {
        return thread::hardware_concurrency();
    }

  private:
    /* Stop and join. The caller's own cancellation is kept for its next call. */
    void end() noexcept
    {
        if (!joinable())
            return;
        request_stop();
        std::string name = detail::name_of(thread_.handle_);
        for (bool is_cancelled = false;; is_cancelled = true) {
            try {
                thread_.join();
            } catch (const cancelled &) {
                continue;
            } catch (...) {
                detail::unhandled(name, std::current_exception());
            }
            if (is_cancelled)
                rouse_thread_cancel(rouse_thread_self());
            return;
        }
    }

    stop_source source_;
    thread thread_;
    std::unique_ptr<stop_callback<std::function<void()>>> on_stop_;
};

namespace this_thread
{

inline thread::id get_id() noexcept
{
    return thread::self();
}
inline void yield() noexcept
{
    rouse_thread_yield();
}
template <typename Rep, typename Period>
void sleep_for(const std::chrono::duration<Rep, Period> &time)
{
    detail::checked(rouse_sleep_until(detail::deadline_in(time)), "sleep");
}
template <typename Clock, typename Duration>
void sleep_until(const std::chrono::time_point<Clock, Duration> &time)
{
    while (Clock::now() < time) /* the clock may have been set */
        detail::checked(rouse_sleep_until(detail::deadline_at(time)), "sleep");
}
/* Throws cancelled if the calling thread was asked to stop. For threads that compute for long. */
inline void check_cancelled()
{
    if (rouse_thread_cancel_pending())
        detail::checked(rouse_sleep(0), "check_cancelled");
}

} /* namespace this_thread */

/* Semaphores, latches, barriers, once. */

template <std::ptrdiff_t Most = INT32_MAX> class counting_semaphore
{
    static_assert(Most >= 0 && Most <= INT32_MAX, "a semaphore has at most 2^31 - 1 units");

  public:
    explicit counting_semaphore(std::ptrdiff_t units, const char *name = nullptr) noexcept
    {
        rouse_sem_init(&raw_, static_cast<std::uint32_t>(units), name);
    }
    counting_semaphore(const counting_semaphore &) = delete;
    counting_semaphore &operator=(const counting_semaphore &) = delete;
    ~counting_semaphore()
    {
        rouse_sem_destroy(&raw_);
    }
    static constexpr std::ptrdiff_t max() noexcept
    {
        return Most;
    }
    void release(std::ptrdiff_t units = 1)
    {
        for (; units > 0; units--)
            detail::checked(rouse_sem_post(&raw_), "semaphore");
    }
    void acquire()
    {
        detail::checked(rouse_sem_wait(&raw_), "semaphore");
    }
    bool try_acquire() noexcept
    {
        return rouse_sem_wait_try(&raw_) == 0;
    }
    template <typename Rep, typename Period>
    bool try_acquire_for(const std::chrono::duration<Rep, Period> &time)
    {
        return acquire_until(detail::deadline_in(time));
    }
    template <typename Clock, typename Duration>
    bool try_acquire_until(const std::chrono::time_point<Clock, Duration> &time)
    {
        return acquire_until(detail::deadline_at(time));
    }

  private:
    bool acquire_until(std::uint64_t deadline_ns)
    {
        int result = rouse_sem_wait_until(&raw_, deadline_ns);
        return result != -ETIMEDOUT && (detail::checked(result, "semaphore"), true);
    }
    rouse_sem raw_;
};
using binary_semaphore = counting_semaphore<1>;

class latch
{
  public:
    explicit latch(std::ptrdiff_t expected) noexcept : left_(expected)
    {
    }
    static constexpr std::ptrdiff_t max() noexcept
    {
        return std::numeric_limits<std::ptrdiff_t>::max();
    }
    void count_down(std::ptrdiff_t by = 1)
    {
        std::lock_guard<mutex> held(lock_);
        left_ -= by;
        if (left_ == 0)
            open_.notify_all();
    }
    bool try_wait() const
    {
        std::lock_guard<mutex> held(lock_);
        return left_ == 0;
    }
    void wait() const
    {
        std::unique_lock<mutex> held(lock_);
        open_.wait(held, [this] { return left_ == 0; });
    }
    void arrive_and_wait(std::ptrdiff_t by = 1)
    {
        count_down(by);
        wait();
    }

  private:
    mutable mutex lock_;
    mutable condition_variable open_;
    std::ptrdiff_t left_; /* under the lock */
};

namespace detail
{
struct nothing {
    void operator()() const noexcept
    {
    }
};
} /* namespace detail */

/* The last thread of a phase runs the completion before the others go on. */
template <typename Completion = detail::nothing> class barrier
{
  public:
    class arrival_token
    {
        explicit arrival_token(std::uint64_t phase) noexcept : phase_(phase)
        {
        }
        std::uint64_t phase_;
        friend class barrier;
    };
    explicit barrier(std::ptrdiff_t expected, Completion completion = Completion())
        : expected_(expected), left_(expected), completion_(std::move(completion))
    {
    }
    static constexpr std::ptrdiff_t max() noexcept
    {
        return std::numeric_limits<std::ptrdiff_t>::max();
    }
    [[nodiscard]] arrival_token arrive(std::ptrdiff_t by = 1)
    {
        std::lock_guard<mutex> held(lock_);
        arrival_token token(phase_);
        left_ -= by;
        end_phase_if_all();
        return token;
    }
    void wait(arrival_token &&token) const
    {
        std::unique_lock<mutex> held(lock_);
        ended_.wait(held, [&] { return phase_ != token.phase_; });
    }
    void arrive_and_wait()
    {
        wait(arrive());
    }
    void arrive_and_drop()
    {
        std::lock_guard<mutex> held(lock_);
        --expected_;
        --left_;
        end_phase_if_all();
    }

  private:
    void end_phase_if_all()
    {
        if (left_ != 0)
            return;
        completion_();
        left_ = expected_;
        ++phase_;
        ended_.notify_all();
    }
    mutable mutex lock_;
    mutable condition_variable ended_;
    std::ptrdiff_t expected_, left_; /* under the lock, with the phase */
    std::uint64_t phase_ = 0;
    Completion completion_;
};

class once_flag
{
  public:
    constexpr once_flag() noexcept = default;
    once_flag(const once_flag &) = delete;
    once_flag &operator=(const once_flag &) = delete;

  private:
    mutex lock_;
    std::atomic<bool> is_done_{ false };
    template <typename Function, typename... Args>
    friend void call_once(once_flag &, Function &&, Args &&...);
};

/* If the function throws, the next caller runs it again. */
template <typename Function, typename... Args>
void call_once(once_flag &flag, Function &&function, Args &&...args)
{
    if (flag.is_done_.load(std::memory_order_acquire)) /* pairs with the store below */
        return;
    std::lock_guard<mutex> held(flag.lock_);
    if (flag.is_done_.load(std::memory_order_relaxed))
        return;
    std::invoke(std::forward<Function>(function), std::forward<Args>(args)...);
    flag.is_done_.store(true, std::memory_order_release);
}

/* Futures. The error codes are those of <future>. */

template <typename> class packaged_task;
template <typename Value> class future;
template <typename Value> class shared_future;

namespace detail
{

template <typename Value>
using held_t = std::conditional_t<
    std::is_void_v<Value>, std::monostate,
    std::conditional_t<std::is_reference_v<Value>, std::remove_reference_t<Value> *, Value>>;

[[noreturn]] inline void fail(std::future_errc error)
{
    throw std::future_error(error);
}

template <typename Value> struct shared_state {
    mutex lock;
    condition_variable ready;
    std::variant<std::monostate, std::optional<held_t<Value>>, std::exception_ptr> outcome;
    bool is_ready = false, is_set = false; /* under the lock, with the outcome */
    bool is_taken = false;                 /* there is a future */
    std::function<void()> deferred;
    thread runner; /* of async: the last future waits for it */

    ~shared_state()
    {
        for (bool is_cancelled = false; runner.joinable(); is_cancelled = true) {
            try {
                runner.join();
            } catch (const cancelled &) {
                continue;
            }
            if (is_cancelled)
                rouse_thread_cancel(rouse_thread_self());
        }
    }

    /* fill: sets the outcome, under the lock. */
    template <typename Fill> void finish(Fill fill, bool is_now = true)
    {
        std::lock_guard<mutex> held(lock);
        if (is_set)
            fail(std::future_errc::promise_already_satisfied);
        fill(outcome);
        is_set = true;
        if (is_now)
            announce_locked();
    }
    void announce()
    {
        std::lock_guard<mutex> held(lock);
        announce_locked();
    }
    void announce_locked()
    {
        is_ready = true;
        ready.notify_all();
    }
    void run_deferred(std::unique_lock<mutex> &held)
    {
        if (!deferred)
            return;
        std::function<void()> run = std::exchange(deferred, nullptr);
        held.unlock();
        run();
        held.lock();
    }
    void wait()
    {
        std::unique_lock<mutex> held(lock);
        run_deferred(held);
        ready.wait(held, [this] { return is_ready; });
    }
    std::future_status wait_until(std::uint64_t deadline_ns)
    {
        std::unique_lock<mutex> held(lock);
        if (deferred)
            return std::future_status::deferred;
        while (!is_ready) {
            int result =
                rouse_cond_wait_until(ready.native_handle(), lock.native_handle(), deadline_ns);
            if (result == -ETIMEDOUT)
                return is_ready ? std::future_status::ready : std::future_status::timeout;
            checked(result, "future");
        }
        return std::future_status::ready;
    }
    /* After wait(). */
    held_t<Value> &value()
    {
        if (auto *error = std::get_if<std::exception_ptr>(&outcome))
            std::rethrow_exception(*error);
        return *std::get<1>(outcome);
    }
    template <typename... From> void set_value(bool is_now, From &&...from)
    {
        finish(
            [&](auto &out) { out.template emplace<1>(std::in_place, std::forward<From>(from)...); },
            is_now);
    }
    void set_error(std::exception_ptr error, bool is_now = true)
    {
        finish([&](auto &out) { out.template emplace<2>(std::move(error)); }, is_now);
    }
    /* Set what a call returns or throws. Throws if the outcome is set already. */
    template <typename Function> void set_from(Function &&function)
    {
        std::optional<held_t<Value>> made;
        std::exception_ptr error;
        try {
            if constexpr (std::is_void_v<Value>) {
                function();
                made.emplace();
            } else if constexpr (std::is_reference_v<Value>) {
                made.emplace(&function());
            } else {
                made.emplace(function());
            }
        } catch (...) {
            error = std::current_exception();
        }
        finish([&](auto &out) {
            try {
                if (!error)
                    out.template emplace<1>(std::move(made));
            } catch (...) { /* of moving the value */
                error = std::current_exception();
            }
            if (error)
                out.template emplace<2>(std::move(error));
        });
    }
};

template <typename Value> class future_base
{
  public:
    bool valid() const noexcept
    {
        return state_ != nullptr;
    }
    void wait() const
    {
        state().wait();
    }
    template <typename Rep, typename Period>
    std::future_status wait_for(const std::chrono::duration<Rep, Period> &time) const
    {
        return state().wait_until(deadline_in(time));
    }
    template <typename Clock, typename Duration>
    std::future_status wait_until(const std::chrono::time_point<Clock, Duration> &time) const
    {
        return state().wait_until(deadline_at(time));
    }

  protected:
    using pointer = std::shared_ptr<shared_state<Value>>;
    future_base() noexcept = default;
    explicit future_base(pointer state) noexcept : state_(std::move(state))
    {
    }
    shared_state<Value> &state() const
    {
        if (!state_)
            fail(std::future_errc::no_state);
        return *state_;
    }
    pointer state_;
};

} /* namespace detail */

template <typename Value> class future : public detail::future_base<Value>
{
    using base = detail::future_base<Value>;

  public:
    future() noexcept = default;
    future(future &&) noexcept = default;
    future &operator=(future &&) noexcept = default;
    Value get()
    {
        this->state().wait();
        typename base::pointer state = std::move(this->state_);
        if constexpr (std::is_void_v<Value>)
            state->value();
        else if constexpr (std::is_reference_v<Value>)
            return *state->value();
        else
            return std::move(state->value());
    }
    shared_future<Value> share() noexcept
    {
        return shared_future<Value>(std::move(*this));
    }

    /* For promise, packaged_task and async. */
    static future from(typename base::pointer state)
    {
        if (std::exchange(state->is_taken, true))
            detail::fail(std::future_errc::future_already_retrieved);
        return future(std::move(state));
    }

  private:
    explicit future(typename base::pointer state) noexcept : base(std::move(state))
    {
    }
    friend class shared_future<Value>;
};

template <typename Value> class shared_future : public detail::future_base<Value>
{
    using base = detail::future_base<Value>;

  public:
    shared_future() noexcept = default;
    shared_future(future<Value> &&other) noexcept : base(std::move(other.state_))
    {
    }
    decltype(auto) get() const
    {
        this->state().wait();
        if constexpr (std::is_void_v<Value>)
            static_cast<void>(this->state().value());
        else if constexpr (std::is_reference_v<Value>)
            return static_cast<Value>(*this->state().value());
        else
            return static_cast<const Value &>(this->state().value());
    }
};

template <typename Value> class promise
{
  public:
    promise() : state_(std::make_shared<detail::shared_state<Value>>())
    {
    }
    promise(promise &&) noexcept = default;
    promise &operator=(promise &&other) noexcept
    {
        promise(std::move(other)).swap(*this);
        return *this;
    }
    ~promise()
    {
        if (state_ && !state_->is_set)
            state_->set_error(
                std::make_exception_ptr(std::future_error(std::future_errc::broken_promise)));
    }
    void swap(promise &other) noexcept
    {
        state_.swap(other.state_);
    }
    future<Value> get_future()
    {
        return future<Value>::from(pointer());
    }
    /* From braces too. */
    template <typename Made = Value, typename Own = Value,
              typename = std::enable_if_t<!std::is_void_v<Own> && !std::is_reference_v<Own>>>
    void set_value(Made made)
    {
        pointer()->set_value(true, std::move(made));
    }
    /* Without an argument for void. */
    template <typename... From> void set_value(From &&...from)
    {
        if constexpr (std::is_reference_v<Value>)
            pointer()->set_value(true, &from...);
        else
            pointer()->set_value(true, std::forward<From>(from)...);
    }
    void set_exception(std::exception_ptr error)
    {
        pointer()->set_error(std::move(error));
    }

  private:
    const std::shared_ptr<detail::shared_state<Value>> &pointer() const
    {
        if (!state_)
            detail::fail(std::future_errc::no_state);
        return state_;
    }
    std::shared_ptr<detail::shared_state<Value>> state_;
    template <typename> friend class packaged_task;
};

template <typename Result, typename... Args> class packaged_task<Result(Args...)>
{
  public:
    packaged_task() noexcept = default;
    template <typename Function,
              typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, packaged_task>>>
    explicit packaged_task(Function &&function)
        : function_(std::make_shared<std::decay_t<Function>>(std::forward<Function>(function))),
          call_([](void *held, Args... args) -> Result {
              return std::invoke(*static_cast<std::decay_t<Function> *>(held),
                                 std::forward<Args>(args)...);
          }),
          promise_(std::in_place)
    {
    }
    packaged_task(packaged_task &&) noexcept = default;
    packaged_task &operator=(packaged_task &&) noexcept = default;
    bool valid() const noexcept
    {
        return function_ != nullptr;
    }
    void swap(packaged_task &other) noexcept
    {
        std::swap(*this, other);
    }
    future<Result> get_future()
    {
        return held().get_future();
    }
    void operator()(Args... args)
    {
        held();
        if (has_run_)
            detail::fail(std::future_errc::promise_already_satisfied);
        has_run_ = true;
        promise_->pointer()->set_from(
            [&]() -> Result { return call_(function_.get(), std::forward<Args>(args)...); });
    }
    /* It may run again, for a new future. */
    void reset()
    {
        held();
        promise_.emplace();
        has_run_ = false;
    }

  private:
    promise<Result> &held()
    {
        if (!valid())
            detail::fail(std::future_errc::no_state);
        return *promise_;
    }
    std::shared_ptr<void> function_;
    Result (*call_)(void *, Args...) = nullptr;
    std::optional<promise<Result>> promise_;
    bool has_run_ = false;
};

template <typename Function, typename... Args>
using async_result = std::invoke_result_t<std::decay_t<Function>, std::decay_t<Args>...>;

/* Runs the function in a thread of its own, or, if only deferred is allowed, in the thread that waits for it. */
template <typename Function, typename... Args>
[[nodiscard]] future<async_result<Function, Args...>> async(std::launch how, Function &&function,
                                                            Args &&...args)
{
    using value = async_result<Function, Args...>;
    auto state = std::make_shared<detail::shared_state<value>>();
    auto call = std::make_shared<std::tuple<std::decay_t<Function>, std::decay_t<Args>...>>(
        std::forward<Function>(function), std::forward<Args>(args)...);
    auto run = [raw = state.get(), call] {
        raw->set_from([&]() -> value {
            return std::apply(
                [](auto &&...all) -> value {
                    return std::invoke(std::forward<decltype(all)>(all)...);
                },
                std::move(*call));
        });
    };
    if ((how & std::launch::async) == std::launch::async)
        state->runner = thread(run);
    else
        state->deferred = run;
    return future<value>::from(std::move(state));
}

template <typename Function, typename... Args,
          typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, std::launch>>>
[[nodiscard]] future<async_result<Function, Args...>> async(Function &&function, Args &&...args)
{
    return rouse::async(std::launch::async | std::launch::deferred,
                        std::forward<Function>(function), std::forward<Args>(args)...);
}

/* Channels. */

namespace detail
{

/* A select waits for it: a unit of the semaphore says that one of its channels has changed. */
struct selector {
    counting_semaphore<> changed{ 0 };
    std::atomic<bool> is_told{ false };

    void tell()
    {
        if (!is_told.exchange(true))
            changed.release();
    }
};

class channel_base
{
  public:
    channel_base(const channel_base &) = delete;
    channel_base &operator=(const channel_base &) = delete;

    /* Senders fail from now on; receivers get what is there, and then nothing. */
    void close()
    {
        std::lock_guard<mutex> held(lock_);
        is_closed_ = true;
        filled_.notify_all();
        freed_.notify_all();
        tell_locked();
    }
    bool is_closed() const
    {
        std::lock_guard<mutex> held(lock_);
        return is_closed_;
    }
    std::size_t capacity() const noexcept
    {
        return capacity_;
    }
    void listen(selector *one)
    {
        std::lock_guard<mutex> held(lock_);
        selectors_.push_back(one);
    }
    void ignore(selector *one)
    {
        std::lock_guard<mutex> held(lock_);
        selectors_.erase(std::find(selectors_.begin(), selectors_.end(), one));
    }

  protected:
    explicit channel_base(std::size_t capacity) : capacity_(capacity)
    {
        if (capacity == 0)
            throw std::invalid_argument("a channel has room for at least one value");
    }
    ~channel_base() = default;
    void tell_locked()
    {
        for (selector *one : selectors_)
            one->tell();
    }
    mutable mutex lock_;
    condition_variable filled_, freed_;
    bool is_closed_ = false; /* under the lock, as all that follows */
    const std::size_t capacity_;
    std::vector<selector *> selectors_;
};

} /* namespace detail */

enum class channel_status { success, empty, full, closed, timeout };

/* A queue of at most so many values, from any number of senders to any number of receivers. */
template <typename Value> class channel : public detail::channel_base
{
  public:
    explicit channel(std::size_t capacity) : channel_base(capacity)
    {
    }
    /* Wait for room. Returns false if the channel is closed; the value is then lost. */
    bool send(Value value)
    {
        return send_until_ns(std::move(value), ROUSE_FOREVER) == channel_status::success;
    }
    /* Wait for a value. Empty: the channel is closed, and all values were received. */
    std::optional<Value> receive()
    {
        std::optional<Value> value;
        receive_until_ns(value, ROUSE_FOREVER);
        return value;
    }
    channel_status try_send(Value &value)
    {
        std::lock_guard<mutex> held(lock_);
        if (is_closed_)
            return channel_status::closed;
        if (values_.size() == capacity_)
            return channel_status::full;
        put_locked(std::move(value));
        return channel_status::success;
    }
    channel_status try_receive(std::optional<Value> &value)
    {
        std::lock_guard<mutex> held(lock_);
        if (values_.empty())
            return is_closed_ ? channel_status::closed : channel_status::empty;
        value = take_locked();
        return channel_status::success;
    }
    template <typename Rep, typename Period>
    channel_status send_for(Value value, const std::chrono::duration<Rep, Period> &time)
    {
        return send_until_ns(std::move(value), detail::deadline_in(time));
    }
    template <typename Clock, typename Duration>
    channel_status send_until(Value value, const std::chrono::time_point<Clock, Duration> &time)
    {
        return send_until_ns(std::move(value), detail::deadline_at(time));
    }
    template <typename Rep, typename Period>
    channel_status receive_for(std::optional<Value> &value,
                               const std::chrono::duration<Rep, Period> &time)
    {
        return receive_until_ns(value, detail::deadline_in(time));
    }
    template <typename Clock, typename Duration>
    channel_status receive_until(std::optional<Value> &value,
                                 const std::chrono::time_point<Clock, Duration> &time)
    {
        return receive_until_ns(value, detail::deadline_at(time));
    }

    /* for (Value &value : channel): until it is closed and empty. */
    class iterator
    {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Value;
        using difference_type = std::ptrdiff_t;
        using pointer = Value *;
        using reference = Value &;
        iterator() noexcept = default;
        explicit iterator(channel *from) : from_(from)
        {
            ++*this;
        }
        Value &operator*()
        {
            return *value_;
        }
        Value *operator->()
        {
            return &*value_;
        }
        iterator &operator++()
        {
            value_ = from_->receive();
            if (!value_)
                from_ = nullptr;
            return *this;
        }
        friend bool operator==(const iterator &one, const iterator &other) noexcept
        {
            return one.from_ == other.from_;
        }
        friend bool operator!=(const iterator &one, const iterator &other) noexcept
        {
            return !(one == other);
        }

      private:
        channel *from_ = nullptr;
        std::optional<Value> value_;
    };
    iterator begin()
    {
        return iterator(this);
    }
    iterator end() noexcept
    {
        return iterator();
    }

  private:
    void put_locked(Value &&value)
    {
        values_.push_back(std::move(value));
        filled_.notify_one();
        tell_locked();
    }
    Value take_locked()
    {
        Value value = std::move(values_.front());
        values_.pop_front();
        freed_.notify_one();
        tell_locked();
        return value;
    }
    template <typename Predicate>
    static bool wait(condition_variable &changed, std::unique_lock<mutex> &held,
                     std::uint64_t deadline_ns, Predicate predicate)
    {
        if (deadline_ns == ROUSE_FOREVER) {
            changed.wait(held, predicate);
            return true;
        }
        using clock = std::chrono::steady_clock;
        std::uint64_t now = rouse_now_ns();
        std::chrono::nanoseconds left(deadline_ns > now ? deadline_ns - now : 0);
        return changed.wait_until(held, clock::now() + left, predicate);
    }
    channel_status send_until_ns(Value &&value, std::uint64_t deadline_ns)
    {
        std::unique_lock<mutex> held(lock_);
        if (!wait(freed_, held, deadline_ns,
                  [this] { return is_closed_ || values_.size() < capacity_; }))
            return channel_status::timeout;
        if (is_closed_)
            return channel_status::closed;
        put_locked(std::move(value));
        return channel_status::success;
    }
    channel_status receive_until_ns(std::optional<Value> &value, std::uint64_t deadline_ns)
    {
        std::unique_lock<mutex> held(lock_);
        value.reset();
        if (!wait(filled_, held, deadline_ns, [this] { return is_closed_ || !values_.empty(); }))
            return channel_status::timeout;
        if (values_.empty())
            return channel_status::closed;
        value = take_locked();
        return channel_status::success;
    }
    std::deque<Value> values_;
};

namespace detail
{

template <typename Value, typename Function> struct receive_case {
    channel<Value> &from;
    Function run;

    /* Returns whether a value was there, or the channel is closed. */
    bool attempt()
    {
        std::optional<Value> value;
        if (from.try_receive(value) == channel_status::empty)
            return false;
        run(std::move(value));
        return true;
    }
    channel_base &base()
    {
        return from;
    }
};

template <typename Value, typename Function> struct send_case {
    channel<Value> &to;
    Value value;
    Function run;

    bool attempt()
    {
        channel_status status = to.try_send(value);
        if (status == channel_status::full)
            return false;
        run(status == channel_status::success);
        return true;
    }
    channel_base &base()
    {
        return to;
    }
};

template <typename... Cases> std::size_t attempt_each(std::size_t first, Cases &...cases)
{
    /* The first case that is tried differs, so that a busy channel does not keep the others waiting. */
    std::size_t found = sizeof...(Cases);
    for (std::size_t round = 0; round < 2 && found == sizeof...(Cases); round++) {
        std::size_t at = 0;
        ((found == sizeof...(Cases) && (round == 0) == (at >= first) && cases.attempt()
              ? static_cast<void>(found = at)
              : static_cast<void>(0),
          at++),
         ...);
    }
    return found;
}

template <typename... Cases> std::size_t select_until_ns(std::uint64_t deadline_ns, Cases &...cases)
{
    static_assert(sizeof...(Cases) > 0, "a select has cases");
    thread_local unsigned turn;
    std::size_t first = turn++ % sizeof...(Cases);
    std::size_t done = attempt_each(first, cases...);
    if (done < sizeof...(Cases))
        return done;
    selector own;
    struct listening {
        selector *own;
        std::vector<channel_base *> channels;
        ~listening()
        {
            for (channel_base *one : channels)
                one->ignore(own);
        }
    } heard{ &own, {} };
    heard.channels.reserve(sizeof...(Cases));
    ((cases.base().listen(&own), heard.channels.push_back(&cases.base())), ...);
    for (;;) {
        done = attempt_each(first, cases...);
        if (done < sizeof...(Cases))
            return done;
        auto now = rouse_now_ns();
        if (deadline_ns == ROUSE_FOREVER)
            own.changed.acquire();
        else if (!own.changed.try_acquire_for(
                     std::chrono::nanoseconds(deadline_ns > now ? deadline_ns - now : 0)))
            return sizeof...(Cases);
        own.is_told.store(false); /* before the next attempt, which sees each change until here */
    }
}

} /* namespace detail */

/* A case of select: call run(std::optional<Value>), empty if the channel is closed, and all values were received. */
template <typename Value, typename Function>
detail::receive_case<Value, Function> on_receive(channel<Value> &from, Function run)
{
    return { from, std::move(run) };
}

/* A case of select: send the value and call run(true), or run(false) if the channel is closed. */
template <typename Value, typename Function>
detail::send_case<Value, Function> on_send(channel<Value> &to, Value value, Function run)
{
    return { to, std::move(value), std::move(run) };
}

/* Wait until one of the cases can go on, let it, and return its number, from 0. */
template <typename... Cases> std::size_t select(Cases... cases)
{
    return detail::select_until_ns(ROUSE_FOREVER, cases...);
}

/* The number of cases: the time passed first. */
template <typename Rep, typename Period, typename... Cases>
std::size_t select_for(const std::chrono::duration<Rep, Period> &time, Cases... cases)
{
    return detail::select_until_ns(detail::deadline_in(time), cases...);
}

/* Sockets. */

/* A connection. Calls wait until the deadline that was set last, at first for ever, and throw if they cannot go on. */
class socket
{
  public:
    socket() noexcept = default;
    /* Takes over a descriptor. */
    explicit socket(int fd) noexcept : fd_(fd)
    {
    }
    /* Connect to a host by TCP: the first of its addresses that answers. */
    socket(const std::string &host, const std::string &service)
        : socket(host, service, ROUSE_FOREVER)
    {
    }
    template <typename Rep, typename Period>
    socket(const std::string &host, const std::string &service,
           const std::chrono::duration<Rep, Period> &time)
        : socket(host, service, detail::deadline_in(time))
    {
    }
    socket(socket &&other) noexcept
        : fd_(std::exchange(other.fd_, -1)), deadline_ns_(other.deadline_ns_)
    {
    }
    socket &operator=(socket &&other) noexcept
    {
        close();
        fd_ = std::exchange(other.fd_, -1);
        deadline_ns_ = other.deadline_ns_;
        return *this;
    }
    ~socket()
    {
        close();
    }
    explicit operator bool() const noexcept
    {
        return fd_ >= 0;
    }
    int native_handle() const noexcept
    {
        return fd_;
    }
    int release() noexcept
    {
        return std::exchange(fd_, -1);
    }
    /* Threads that wait for the socket get std::errc::bad_file_descriptor. */
    void close() noexcept
    {
        if (fd_ >= 0)
            rouse_close(std::exchange(fd_, -1));
    }
    template <typename Rep, typename Period>
    void expires_after(const std::chrono::duration<Rep, Period> &time)
    {
        deadline_ns_ = detail::deadline_in(time);
    }
    template <typename Clock, typename Duration>
    void expires_at(const std::chrono::time_point<Clock, Duration> &time)
    {
        deadline_ns_ = detail::deadline_at(time);
    }
    void expires_never() noexcept
    {
        deadline_ns_ = ROUSE_FOREVER;
    }
    /* Read what is there, at least one byte. 0: the other side has closed its end. */
    std::size_t read_some(void *buffer, std::size_t bytes)
    {
        return static_cast<std::size_t>(
            detail::checked(rouse_recv_until(fd_, buffer, bytes, 0, deadline_ns_), "read"));
    }
    /* Read all of the buffer. Less only if the other side has closed its end. */
    std::size_t read(void *buffer, std::size_t bytes)
    {
        std::size_t done = 0;
        while (done < bytes) {
            std::size_t some = read_some(static_cast<char *>(buffer) + done, bytes - done);
            if (some == 0)
                break;
            done += some;
        }
        return done;
    }
    /* Write all of it. */
    void write(const void *data, std::size_t bytes)
    {
        std::size_t done = 0;
        while (done < bytes)
            done += static_cast<std::size_t>(
                detail::checked(rouse_send_until(fd_, static_cast<const char *>(data) + done,
                                                 bytes - done, 0, deadline_ns_),
                                "write"));
    }
    void write(const std::string &text)
    {
        write(text.data(), text.size());
    }
    /* Send no more: the other side reads to the end. */
    void shutdown_write()
    {
        detail::checked(rouse_shutdown(fd_, SHUT_WR), "shutdown");
    }

  private:
    socket(const std::string &host, const std::string &service, std::uint64_t deadline_ns)
    {
        addrinfo hints = {}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        int error = rouse_getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
        if (error)
            throw std::system_error(EHOSTUNREACH, std::generic_category(),
                                    host + ": " + gai_strerror(error));
        std::unique_ptr<addrinfo, void (*)(addrinfo *)> owned(found, freeaddrinfo);
        int result = -EHOSTUNREACH;
        for (const addrinfo *one = found; one; one = one->ai_next) {
            socket attempt(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            result = attempt ? rouse_connect_until(attempt.fd_, one->ai_addr, one->ai_addrlen,
                                                   deadline_ns)
                             : -errno;
            if (result == 0) {
                fd_ = attempt.release();
                return;
            }
            if (result == -ECANCELED || result == -ETIMEDOUT)
                break;
        }
        detail::fail(-result, "connect");
    }

    int fd_ = -1;
    std::uint64_t deadline_ns_ = ROUSE_FOREVER;
};

/* Accepts connections by TCP. */
class listener
{
  public:
    /* port 0: a free one. address: of this host, for example "127.0.0.1"; empty: all of them, by IPv4. */
    explicit listener(std::uint16_t port, const std::string &address = "", int backlog = 511)
    {
        addrinfo hints = {}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
        std::string service = std::to_string(port);
        const char *node = address.empty() ? nullptr : address.c_str();
        int error = getaddrinfo(node, service.c_str(), &hints, &found);
        if (error)
            throw std::system_error(EADDRNOTAVAIL, std::generic_category(),
                                    address + ": " + gai_strerror(error));
        std::unique_ptr<addrinfo, void (*)(addrinfo *)> owned(found, freeaddrinfo);
        int yes = 1;
        fd_ = socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!fd_ || setsockopt(fd_.native_handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
            bind(fd_.native_handle(), found->ai_addr, found->ai_addrlen) ||
            listen(fd_.native_handle(), backlog))
            detail::fail(errno, "listen");
    }
    /* Wait for a connection. */
    socket accept()
    {
        return socket(
            detail::checked(rouse_accept(fd_.native_handle(), nullptr, nullptr), "accept"));
    }
    /* An empty socket: the time passed first. */
    template <typename Rep, typename Period>
    socket accept_for(const std::chrono::duration<Rep, Period> &time)
    {
        int fd =
            rouse_accept_until(fd_.native_handle(), nullptr, nullptr, detail::deadline_in(time));
        return fd == -ETIMEDOUT ? socket() : socket(detail::checked(fd, "accept"));
    }
    std::uint16_t port() const
    {
        sockaddr_storage at = {};
        socklen_t bytes = sizeof at;
        if (getsockname(fd_.native_handle(), reinterpret_cast<sockaddr *>(&at), &bytes))
            detail::fail(errno, "getsockname");
        return ntohs(at.ss_family == AF_INET6
                         ? reinterpret_cast<const sockaddr_in6 *>(&at)->sin6_port
                         : reinterpret_cast<const sockaddr_in *>(&at)->sin_port);
    }
    int native_handle() const noexcept
    {
        return fd_.native_handle();
    }
    void close() noexcept
    {
        fd_.close();
    }

  private:
    socket fd_;
};

} /* namespace rouse */

template <> struct std::hash<rouse::thread::id> {
    std::size_t operator()(rouse::thread::id one) const noexcept
    {
        return std::hash<std::uint64_t>()(one.number_);
    }
};

#endif
