/* SPDX-License-Identifier: MIT */
/*
 * deadlock_test.c - the check that determines whether every thread waits for another is not misled
 * by threads that begin meanwhile. tests/e2e/deadlock_report_test.py tests its results, right and
 * wrong ones.
 */
#include "unit/core/core_test.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static struct rouse_sem sem = ROUSE_SEM_INIT(0);
static pthread_t early, late;
static uint32_t looker; /* the kernel thread that ran the check when the late thread was parked */

static void *wait_for_unit(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&sem), 0);
    return unused;
}

/* Whether the check has opened fd to count the process's kernel threads. */
static bool is_of_look(unsigned fd)
{
    char link[64], path[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%u", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return length > 5 && strncmp(path, "/proc/", 6) == 0 && strcmp(path + length - 5, "/stat") == 0;
}

/* Replaces close(2). The check holds no lock that the start of a thread needs. */
static void on_close(int number, siginfo_t *info, void *value)
{
    static uint32_t is_done;
    ucontext_t *context = value;
    (void)number;
    (void)info;
#if defined(__x86_64__)
    greg_t *result = &context->uc_mcontext.gregs[REG_RAX];
    unsigned fd = (unsigned)context->uc_mcontext.gregs[REG_RDI];
#else
    __typeof__(&context->uc_mcontext.regs[0]) result = &context->uc_mcontext.regs[0];
    unsigned fd = (unsigned)*result;
#endif
    if (is_of_look(fd) && !rsi_exchange_acquire(&is_done, 1u)) {
        CHECK(pthread_create(&late, NULL, wait_for_unit, NULL) == 0);
        while (rsi_load_seq_cst(&rsi_rt.kernel_parked) != 2)
            sched_yield();
        rsi_store_release(&looker, (uint32_t)rsi_gettid());
    }
    *result = syscall(SYS_close_range, fd, fd, 0);
}

static bool trap_close(void)
{
    struct sigaction action = { .sa_sigaction = on_close, .sa_flags = SA_SIGINFO | SA_NODEFER };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { LENGTH(code), code };
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static char state_of(uint32_t tid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%u/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd); /* trapped, after the check's close */
    const char *end = strrchr(text, ')');
    CHECK(end);
    return end[2];
}

/*
 * main() does not use rouse before the check is over: it is the one thread that rouse does not
 * know.
 */
static void one_begins_while_another_looks(void)
{
    if (!trap_close()) {
        fputs("not run: this process may not trap its system calls (seccomp)\n", stderr);
        return;
    }
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0); /* creating its file reads /proc too */
    CHECK(pthread_create(&early, NULL, wait_for_unit, NULL) == 0);
    while (rsi_load_acquire(&looker) == 0)
        sched_yield();
    while (state_of(looker) != 'S')
        sched_yield();
    for (int i = 0; i < 2; i++)
        CHECK_EQUAL(rouse_sem_post(&sem), 0);
    CHECK(pthread_join(early, NULL) == 0 && pthread_join(late, NULL) == 0);
    _exit(0); /* the filter would trap a leak checker's calls */
}

static void a_thread_that_begins_is_not_mistaken_for_an_unknown_one(void **state)
{
    (void)state;
    static struct outcome outcome;
#if defined(RSI_TSAN)
    puts("not run: the thread sanitizer has a kernel thread of its own");
    return;
#endif
    scenario_run("one_begins_while_another_looks", "ROUSE_WORKERS=1", &outcome);
    bool is_right = outcome.status == 0 && strstr(outcome.output, "rouse:") == NULL;
    if (!is_right)
        scenario_show("one_begins_while_another_looks", &outcome);
    CHECK(is_right);
    if (strstr(outcome.output, "not run"))
        fputs(outcome.output, stdout);
}

static void *nothing(void *unused)
{
    return unused;
}

static void create_a_thread(void)
{
    join(start(ROUSE_KIND_USER, nothing, NULL));
}

static void tell_who_is_known(void)
{
    struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER, .detached = true };
    CHECK_EQUAL(rsi_rt.kernel_known, 0);
    CHECK_EQUAL(rouse_thread_create(NULL, &attr, nothing, NULL), 0);
    CHECK_EQUAL(rsi_rt.kernel_known, 1);
}

static void *create_on_a_helper(void *unused)
{
    create_a_thread();
    CHECK_EQUAL(rsi_rt.kernel_known, 2);
    return unused;
}

static void *call_a_helper(void *unused)
{
    CHECK_EQUAL(rouse_blocking(create_on_a_helper, NULL, NULL), 0);
    return unused;
}

/* A helper thread that stayed known would count as a running one for ever. */
static void use_a_helper(void)
{
    join(start(ROUSE_KIND_USER, call_a_helper, NULL));
    CHECK_EQUAL(rsi_rt.kernel_known, 1);
}

static void the_creator_of_a_thread_is_known(void **state)
{
    (void)state;
    scenario_exits("tell_who_is_known", NULL, 0);
    scenario_exits("use_a_helper", NULL, 0);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "one_begins_while_another_looks", one_begins_while_another_looks },
        { "tell_who_is_known", tell_who_is_known },
        { "use_a_helper", use_a_helper },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_begins_is_not_mistaken_for_an_unknown_one),
        cmocka_unit_test(the_creator_of_a_thread_is_known),
    };
    static const struct program program = { 30,        false,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
