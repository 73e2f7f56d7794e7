/* SPDX-License-Identifier: MIT */
/*
 * file.c - makes, maps and grows the shared file.
 *
 * The file and its mapping are as long as they may ever be, and have memory only where something was allotted: it is asked for
 * (MADV_POPULATE_WRITE, Linux 5.14) before it is touched, since a store to a page that the file system has no room
 * for is a SIGBUS. So no descriptor is kept: they are the program's. (fallocate would need one.)
 */
#include "obs/folder.h"
#include "obs/mapping.h"
#include "obs/site.h"

#include "os/os.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS 1000000000u
#define FOLD_PAGES 64u /* that others may still allot while the mapping is folded */
#define MIB_MOST (int)(RSI_STORE_BYTES_MAX >> 20)

struct rsi_store_head *rsi_file_head;
uint32_t rsi_site_depth = 1;

/*
 * Kinds of chunks that found no room, a bit each: no other of them is asked for, so that what has no room costs
 * a look, and the head's counts do not run away. Of the process, not of the file; any thread adds.
 */
static uint32_t refused;

static uint64_t
    tick_due_tsc; /* when rsi_file_tick_tsc looks at the clock next; relaxed: any thread */

/*
 * That the file may have, and its mapping unless it is folded; from ROUSE_OBS_MIB. Not more, since the address space of
 * a program may be limited too. Written while nothing is mapped.
 */
static uint64_t pages_most = RSI_STORE_BYTES_MAX / RSI_PAGE;

/*
 * Folding: the end of the mapping goes for a while. folds is odd meanwhile, and a futex; pages_mapped are there.
 *
 * Invariant: pages that a thread has found to be within pages_mapped, after it took them, stay mapped.
 *   allot:  A1 page_count += n (acq_rel);       A2 load pages_mapped
 *   fold:   F1 pages_mapped = fewer;            F2 page_count += 0 (acq_rel);   F3 unmap what is beyond both
 * Either A1 comes before F2, which then reads a count that covers those pages, or after it, and A2 sees F1: they are
 * among the fewer, or the thread waits until there are more again. Those that were beyond before F1 had no room.
 */
static uint64_t pages_mapped;
static uint32_t folds;

static char file_path[320];    /* absolute: the program may change its folder */
static uint64_t pid_namespace; /* 0: not known */
static bool is_kept;           /* it stays, and so do others of its folder: ROUSE_OBS_KEEP */

static uint64_t own_namespace(void)
{
    struct stat status;
    if (stat("/proc/self/ns/pid", &status) == 0)
        return status.st_ino;
    return errno == ENOENT ? RSI_STORE_INITIAL_PIDS : 0; /* of a kernel that has only one */
}

static size_t read_text(const char *path, char *to, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, to, bytes - 1);
    if (fd >= 0)
        close(fd);
    to[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* Field 22 of /proc/self/stat; the second, a name in parentheses, may hold anything. */
static uint64_t start_ticks(void)
{
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    char *at = strrchr(text, ')');
    for (unsigned field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static void read_boot_id(uint8_t id[16])
{
    char text[64];
    size_t digits = 0;
    read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
    for (const char *c = text; *c && digits < 32; c++) {
        int value = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;
        if (value >= 0) {
            id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | value);
            digits++;
        }
    }
}

static uint64_t realtime_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/*
 * What time stamps cost on this machine, whose hypervisor may have a say in it: the least of a few tries, since others
 * may come between. Most of what recording costs is time stamps.
 */
static uint64_t stamps_ticks(void)
{
    uint64_t least = UINT64_MAX;
    for (unsigned tries = 0; tries < 4; tries++) {
        uint64_t begin = rsi_tsc(), end = begin;
        for (unsigned i = 0; i < RSI_STORE_STAMPS; i++)
            end = rsi_tsc();
        if (end - begin < least)
            least = end - begin;
    }
    return least;
}

static void head_fill(struct rsi_store_head *head)
{
    head->version = RSI_STORE_VERSION;
#if defined(__x86_64__)
    head->machine = EM_X86_64;
#else
    head->machine = EM_AARCH64;
#endif
    head->pid = getpid();
    head->pid_namespace = pid_namespace;
    head->uid = geteuid();
    head->start_ticks = start_ticks();
    head->monotonic_ns = head->tick_monotonic_ns = rsi_now_ns();
    head->tsc = head->tick_tsc = rsi_tsc();
    head->realtime_ns = realtime_ns();
    head->stamps_ticks = stamps_ticks();
    head->page_count = RSI_STORE_CHUNKS / RSI_PAGE;
    head->site_depth = rsi_load_relaxed(&rsi_site_depth);
    read_boot_id(head->boot_id);
    ssize_t length = readlink("/proc/self/exe", head->program, sizeof head->program - 1);
    head->program[length > 0 ? length : 0] = 0;
    read_text("/proc/self/cmdline", head->command, sizeof head->command);
    gethostname(head->host, sizeof head->host - 1);
    rsi_store_release(&head->magic, RSI_STORE_MAGIC); /* a reader that sees it sees the rest */
}

static size_t bytes_most(void)
{
    return (size_t)pages_most * RSI_PAGE;
}

static bool may_be_long(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes_most();
}

/* Memory for a part of the mapping. False: there is none. */
static bool allot(void *at, size_t bytes)
{
    return rsi_syscall3(SYS_madvise, at, bytes, MADV_POPULATE_WRITE) == 0;
}

static int map(int fd, char *reason, size_t bytes)
{
    if (!may_be_long()) {
        rsi_format(reason, bytes, "files may not be as long as the record needs (ulimit -f)");
        return -EFBIG;
    }
    size_t length = bytes_most();
    if (ftruncate(fd, (off_t)length) != 0)
        return rsi_folder_failed(reason, bytes, "cannot lengthen", file_path);
    void *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED)
        return rsi_folder_failed(reason, bytes, "cannot map", file_path);
    if (!allot(base, RSI_STORE_DIRECTORY + RSI_PAGE)) {
        rsi_unmap(base, length);
        rsi_format(reason, bytes, "no room for %s, or the kernel is older than 5.14", file_path);
        return -ENOSPC;
    }
    madvise(base, length, MADV_DONTDUMP);
    head_fill(base);
    rsi_store_relaxed(&pages_mapped, pages_most);
    rsi_store_release(&rsi_file_head, (struct rsi_store_head *)base); /* pairs with its readers */
    return 0;
}

/* Not every file system leaves it with the mapping: one of the network takes it away with the descriptor. */
static void note_lock(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (rsi_folder_has_lock(fd))
        rsi_store_relaxed(&rsi_file_head->is_locked, 1u);
    close(fd);
}

static int file_new(int folder, char *reason, size_t bytes)
{
    char link[32], name[RSI_FOLDER_NAME_BYTES];
    rsi_format(link, sizeof link, "/proc/self/fd/%d", folder);
    if (pid_namespace == RSI_STORE_INITIAL_PIDS)
        rsi_format(name, sizeof name, "/%d.rouse", getpid());
    else
        rsi_format(name, sizeof name, "/%d-%" PRIu64 ".rouse", getpid(), pid_namespace);
    ssize_t length = readlink(link, file_path, sizeof file_path - sizeof name);
    if (length <= 0)
        return rsi_folder_failed(reason, bytes, "cannot read", link);
    memcpy(file_path + length, name, sizeof name);
    unlinkat(folder, name + 1, 0); /* of an earlier process of this number, or before an exec */
    int fd = openat(folder, name + 1, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return rsi_folder_failed(reason, bytes, "cannot make", file_path);
    (void)flock(fd, LOCK_EX | LOCK_NB);
    int error = map(fd, reason, bytes);
    close(fd);
    if (error)
        unlinkat(folder, name + 1, 0);
    else
        note_lock(folder, name + 1);
    return error;
}

static int most_read(char *reason, size_t bytes)
{
    const char *text = getenv("ROUSE_OBS_MIB");
    if (!text || !*text)
        return 0;
    uint64_t most = 0;
    for (const char *c = text; *c; c++)
        most = *c >= '0' && *c <= '9' && most <= MIB_MOST ? 10 * most + (uint64_t)(*c - '0')
                                                          : MIB_MOST + 1;
    if (most < 1 || most > MIB_MOST) {
        rsi_format(reason, bytes, "ROUSE_OBS_MIB is \"%s\"; give a number from 1 to %d", text,
                   MIB_MOST);
        return -EINVAL;
    }
    pages_most = (most << 20) / RSI_PAGE;
    return 0;
}

int rsi_file_open(char *reason, size_t reason_bytes)
{
    int wrong = most_read(reason, reason_bytes);
    if (wrong)
        return wrong;
    int folder = rsi_folder_open(reason, reason_bytes);
    if (folder < 0)
        return folder;
    pid_namespace = own_namespace(); /* a child may have another than its parent */
    const char *keep = secure_getenv("ROUSE_OBS_KEEP");
    if (keep)
        is_kept = strcmp(keep, "1") == 0;
    if (!is_kept)
        rsi_folder_clean(folder, pid_namespace);
    int error = file_new(folder, reason, reason_bytes);
    close(folder);
    return error;
}

static uint32_t *directory(struct rsi_store_head *head)
{
    return (uint32_t *)(void *)((char *)head + RSI_STORE_DIRECTORY);
}

/* Whether so many pages are mapped; if they will be, it waits for that. */
static bool is_mapped(uint64_t pages)
{
    for (;;) {
        uint32_t seen = rsi_load_acquire(&folds); /* pairs with unfold: what it mapped is seen */
        if (pages <= rsi_load_acquire(&pages_mapped)) /* the same; and with fold: folds is odd */
            return true;
        if (seen % 2 == 0 && rsi_load_relaxed(&folds) == seen)
            return false;
        if (pages > pages_most)
            return false;
        if (seen % 2 != 0)
            (void)rsi_futex_wait(&folds, seen, UINT64_MAX);
    }
}

static struct rsi_store_chunk *chunk_new(struct rsi_store_head *head, enum rsi_store_kind kind,
                                         size_t entry_bytes, unsigned pages, uint32_t writer)
{
    if (!is_mapped(rsi_load_relaxed(&head->page_count) + pages))
        return NULL; /* what is left is for others that ask for less */
    uint32_t index = rsi_fetch_add_relaxed(&head->chunk_count, 1u);
    uint64_t page =
        rsi_fetch_add_acq_rel(&head->page_count, (uint64_t)pages); /* pairs with fold's */
    uint64_t offset = page * RSI_PAGE, bytes = (uint64_t)pages * RSI_PAGE;
    uint64_t word = RSI_STORE_DIRECTORY + UINT64_C(4) * index;
    if (index >= RSI_STORE_CHUNKS_MAX || !is_mapped(page + pages) ||
        !allot((char *)head + (word & ~(uint64_t)(RSI_PAGE - 1)), RSI_PAGE) ||
        !allot((char *)head + offset, bytes))
        return NULL;
    struct rsi_store_chunk *chunk = (void *)((char *)head + offset);
    chunk->kind = kind;
    chunk->bytes = (uint32_t)bytes;
    chunk->entry_bytes = (uint32_t)entry_bytes;
    chunk->capacity = (uint32_t)((bytes - RSI_STORE_CHUNK_HEAD) / entry_bytes);
    chunk->writer = writer;
    rsi_store_release(&directory(head)[index],
                      (uint32_t)page); /* a reader that sees it sees the head */
    return chunk;
}

struct rsi_store_chunk *rsi_file_chunk(enum rsi_store_kind kind, size_t entry_bytes, unsigned pages,
                                       uint32_t writer)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with map */
    uint32_t bit = 1u << kind;
    if (rsi_load_relaxed(&refused) & bit)
        return NULL;
    struct rsi_store_chunk *chunk = chunk_new(head, kind, entry_bytes, pages, writer);
    if (!chunk && !(rsi_fetch_or_relaxed(&refused, bit) & bit))
        rsi_fetch_add_relaxed(&head->lost_chunks, UINT64_C(1));
    return chunk;
}

/*
 * The directory's pages have memory once a chunk of theirs was asked for, and reading one that has none would ask for
 * it too, with SIGBUS for an answer where there is none. One that can have none has no chunk either.
 */
void rsi_file_visit(enum rsi_store_kind kind, void (*visit)(const void *entry, void *sum),
                    void *sum)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with rsi_file_open */
    const uint32_t page_words = RSI_PAGE / sizeof(uint32_t);
    uint32_t count = head ? rsi_load_relaxed(&head->chunk_count) : 0;
    for (uint32_t i = 0; i < count && i < RSI_STORE_CHUNKS_MAX; i++) {
        if (i % page_words == 0 && i && !allot(directory(head) + i, RSI_PAGE))
            return;
        uint32_t page = rsi_load_acquire(&directory(head)[i]); /* pairs with rsi_file_chunk */
        struct rsi_store_chunk *chunk = (void *)((char *)head + (size_t)page * RSI_PAGE);
        if (page == 0 || chunk->kind != (uint32_t)kind)
            continue;
        uint32_t used = rsi_load_acquire(&chunk->used); /* pairs with rsi_chunk_add */
        for (uint32_t n = 0; n < used; n++)
            visit(rsi_chunk_entry(chunk, n), sum);
    }
}

bool rsi_file_fold(void)
{
    struct rsi_store_head *head = rsi_load_acquire(&rsi_file_head); /* pairs with map */
    if (!head)
        return false;
    for (uint32_t seen = rsi_load_relaxed(&folds);; seen = rsi_load_relaxed(&folds)) {
        if (seen % 2 != 0)
            (void)rsi_futex_wait(&folds, seen, UINT64_MAX);
        else if (rsi_cas_acquire(&folds, &seen, seen + 1)) /* pairs with unfold of another */
            break;
    }
    uint64_t before = rsi_load_relaxed(&pages_mapped);
    uint64_t kept = rsi_load_relaxed(&head->page_count) + FOLD_PAGES;
    kept = kept < before ? kept : before;
    rsi_store_release(&pages_mapped, kept); /* pairs with is_mapped: folds is odd */
    uint64_t taken = rsi_fetch_add_acq_rel(&head->page_count, UINT64_C(0)); /* and chunk_new's */
    taken = taken < before ? taken : before;
    kept = kept > taken ? kept : taken;
    rsi_store_release(&pages_mapped, kept); /* as above */
    if (kept < before)
        rsi_unmap((char *)head + kept * RSI_PAGE, (size_t)(before - kept) * RSI_PAGE);
    return true;
}

/* It grows where it is, since others point into it. What stands in the way by now stays there, and leaves less room. */
void rsi_file_unfold(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    uint64_t pages = rsi_load_relaxed(&pages_mapped), more = pages_most - pages;
    rsi_syscall2(SYS_munlock, head, pages * RSI_PAGE);
    while (more > 0) {
        if (rsi_syscall4(SYS_mremap, head, pages * RSI_PAGE, (pages + more) * RSI_PAGE, 0) > 0)
            pages += more;
        else
            more /= 2;
        more = more < pages_most - pages ? more : pages_most - pages;
    }
    rsi_store_release(&pages_mapped, pages);                 /* pairs with is_mapped */
    rsi_store_release(&folds, rsi_load_relaxed(&folds) + 1); /* the same, and fold of another */
    rsi_futex_wake(&folds, INT_MAX);
}

void rsi_file_tick(uint64_t now_ns)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head || now_ns - rsi_load_relaxed(&head->tick_monotonic_ns) < TICK_NS ||
        !rsi_guard_try(&head->tick_guard))
        return;
    uint64_t seq = head->tick_seq;
    rsi_store_relaxed(&head->tick_seq, seq + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a reader that sees what follows sees it odd */
    rsi_store_relaxed(&head->tick_monotonic_ns, rsi_now_ns());
    rsi_store_relaxed(&head->tick_tsc, rsi_tsc());
    rsi_store_release(&head->tick_seq, seq + 2); /* pairs with the reader's first look */
    rsi_guard_unlock(&head->tick_guard);
}

void rsi_file_tick_tsc(uint64_t tsc)
{
    const struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (rsi_likely(tsc < rsi_load_relaxed(&tick_due_tsc)) || !head || tsc < head->tsc)
        return;
    uint64_t now_ns = rsi_now_ns(), ns = now_ns - head->monotonic_ns;
    uint64_t ticks = tsc - head->tsc; /* no more than have been: their rate is not known better */
    rsi_file_tick(now_ns);
    rsi_store_relaxed(&tick_due_tsc, tsc + ticks / (ns / TICK_NS + 1));
}

void rsi_file_end(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head || head->pid != getpid())
        return;
    rsi_file_tick(UINT64_MAX);
    rsi_store_release(&head->ended, 1u); /* all that was counted is there */
    if (!is_kept)
        unlink(file_path);
}

void rsi_file_alone(void)
{
    void (*step_aside)(void) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "rouse_preload_step_aside");
    if (found) {
        memcpy(&step_aside, &found, sizeof found); /* ISO C has no cast for it */
        step_aside();
    }
}

void rsi_file_child(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head)
        return;
    rsi_store_relaxed(&rsi_file_head, NULL);
    rsi_store_relaxed(&refused, 0u);
    rsi_store_relaxed(&tick_due_tsc, UINT64_C(0));
    struct rsi_span span = { 0, 0 };
    size_t length = (size_t)rsi_load_relaxed(&pages_mapped) * RSI_PAGE;
    if (rsi_load_relaxed(&folds) % 2 != 0) /* another thread was at it: the kernel knows how far */
        rsi_mapping_find((uintptr_t)head, &span);
    rsi_store_relaxed(&folds, 0u);
    rsi_unmap(head, span.high ? span.high - (uintptr_t)head : length);
}
