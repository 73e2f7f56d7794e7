/* SPDX-License-Identifier: MIT */
/*
 * file.c - creates, maps and grows the shared file.
 *
 * The file and its mapping have their maximal length from the start, and memory only where a chunk was allocated.
 * That memory is requested (MADV_POPULATE_WRITE, Linux 5.14) before it is touched, since a store to a page for
 * which the file system has no room raises SIGBUS. This needs no open descriptor, which would take one of the
 * program's numbers (fallocate would need one).
 */
#include "obs/cpu_time.h"
#include "obs/earlier.h"
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
#define FOLD_PAGES 64u /* may still be allocated while the mapping is folded */
#define MIB_MOST (int)(RSI_STORE_BYTES_MAX >> 20)

struct rsi_store_head *rsi_file_head;
uint32_t rsi_site_depth = 1;

/*
 * Kinds of chunks that found no room, one bit each. No more of them are requested, so a failed request costs one
 * load, and the counts in the head do not grow without limit. Belongs to the process, not the file; any thread
 * adds.
 */
static uint32_t refused;

/* When rsi_file_tick_tsc reads the clock next. Relaxed: any thread. */
static uint64_t tick_due_tsc;

/*
 * Most pages of the file, and of its mapping unless folded; from ROUSE_OBS_MIB. Limited because the address space
 * of a program may be limited too. Written while nothing is mapped.
 */
static uint64_t pages_most = RSI_STORE_BYTES_MAX / RSI_PAGE;

/*
 * Folding unmaps the end of the mapping for a while. folds is odd meanwhile, and a futex; pages_mapped is the
 * mapped part.
 *
 * Invariant: pages that a thread has allocated and then found to be below pages_mapped stay mapped.
 *   allocate:  A1 page_count += n (acq_rel);       A2 load pages_mapped
 *   fold:      F1 pages_mapped = fewer;            F2 page_count += 0 (acq_rel);   F3 unmap the pages beyond both
 * If A1 comes before F2, F2 reads a count that covers those pages. If it comes after F2, A2 sees F1: the pages are
 * among the fewer, or the thread waits until more are mapped. Pages that were beyond pages_mapped before F1 had no
 * room.
 */
static uint64_t pages_mapped;
static uint32_t folds;

static char file_path[320];    /* absolute, since the program may change its working directory */
static uint64_t pid_namespace; /* 0: unknown */
static bool is_kept;           /* ROUSE_OBS_KEEP: this file and others in its folder are kept */
static struct rsi_earlier earlier;

static uint64_t own_namespace(void)
{
    struct stat status;
    if (stat("/proc/self/ns/pid", &status) == 0)
        return status.st_ino;
    return errno == ENOENT ? RSI_STORE_INITIAL_PIDS : 0; /* a kernel without PID namespaces */
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

/*
 * Field 22 of /proc/self/stat. The second field, a name in parentheses, may contain any character.
 */
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

void rsi_file_time_stamps(struct rsi_store_head *head)
{
    uint64_t begin = rsi_tsc(), end = begin, known = rsi_load_relaxed(&head->stamps_ticks);
    for (unsigned i = 0; i < RSI_STORE_STAMPS; i++)
        end = rsi_tsc();
    if (known == 0 || end - begin < known)
        rsi_store_relaxed(&head->stamps_ticks, end - begin);
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
    for (unsigned tries = 0; tries < 4; tries++)
        rsi_file_time_stamps(head);
    head->page_count = RSI_STORE_CHUNKS / RSI_PAGE;
    head->site_depth = rsi_load_relaxed(&rsi_site_depth);
    head->cpus = rsi_cpu_affinity();
    head->earlier_programs = earlier.programs;
    head->earlier_cpu_ns = earlier.cpu_ns;
    head->earlier_system_ns = earlier.system_ns;
    read_boot_id(head->boot_id);
    ssize_t length = readlink("/proc/self/exe", head->program, sizeof head->program - 1);
    head->program[length > 0 ? length : 0] = 0;
    read_text("/proc/self/cmdline", head->command, sizeof head->command);
    gethostname(head->host, sizeof head->host - 1);
    /* pairs with the acquire of readers, which then see the rest */
    rsi_store_release(&head->magic, RSI_STORE_MAGIC);
}

uint64_t rsi_file_bytes_most(void)
{
    return pages_most * RSI_PAGE;
}

static bool may_be_long(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= rsi_file_bytes_most();
}

/* Allocate memory for a part of the mapping. False: no memory. */
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
    size_t length = (size_t)rsi_file_bytes_most();
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

/*
 * Check that the lock is still there. On some network file systems it ends when the descriptor is closed, not with
 * the mapping.
 */
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
    earlier = (struct rsi_earlier){ 0 }; /* a forked process has none */
    if (is_kept)
        rsi_earlier_keep(folder, name + 1, start_ticks(), &earlier);
    /* left by an earlier process with this PID, or by this process before an exec */
    unlinkat(folder, name + 1, 0);
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
    const char *text = secure_getenv("ROUSE_OBS_MIB");
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
    pid_namespace = own_namespace(); /* a child may be in another namespace than its parent */
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

/* Whether the first `pages` pages are mapped. Waits if unfold is about to map them. */
static bool is_mapped(uint64_t pages)
{
    for (;;) {
        uint32_t seen = rsi_load_acquire(&folds); /* pairs with unfold: the mapping is visible */
        if (pages <= rsi_load_acquire(&pages_mapped)) /* as above, and with fold: folds is odd */
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
        return NULL; /* smaller requests may still fit */
    uint32_t index = rsi_fetch_add_relaxed(&head->chunk_count, 1u);
    uint64_t page = rsi_fetch_add_acq_rel(&head->page_count, (uint64_t)pages); /* pairs with fold */
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
    /* Pairs with the acquire of readers, which then see the head. */
    rsi_store_release(&directory(head)[index], (uint32_t)page);
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
 * A page of the directory has memory once one of its chunks was requested. Reading a page without memory would
 * request it too, and raise SIGBUS if there is none. A page that can have no memory has no chunks either.
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
        /* pairs with the unfold of another thread */
        else if (rsi_cas_acquire(&folds, &seen, seen + 1))
            break;
    }
    uint64_t before = rsi_load_relaxed(&pages_mapped);
    uint64_t kept = rsi_load_relaxed(&head->page_count) + FOLD_PAGES;
    kept = kept < before ? kept : before;
    rsi_store_release(&pages_mapped, kept); /* pairs with is_mapped: folds is odd */
    /* pairs with chunk_new */
    uint64_t taken = rsi_fetch_add_acq_rel(&head->page_count, UINT64_C(0));
    taken = taken < before ? taken : before;
    kept = kept > taken ? kept : taken;
    rsi_store_release(&pages_mapped, kept); /* as above */
    if (kept < before)
        rsi_unmap((char *)head + kept * RSI_PAGE, (size_t)(before - kept) * RSI_PAGE);
    return true;
}

/*
 * The mapping grows in place, since pointers into it exist. Mappings that were made behind it meanwhile stay, and
 * leave less room.
 */
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
    rsi_store_release(&pages_mapped, pages); /* pairs with is_mapped */
    /* the same, and with the fold of another thread */
    rsi_store_release(&folds, rsi_load_relaxed(&folds) + 1);
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
    __atomic_thread_fence(__ATOMIC_RELEASE); /* a reader that sees the later stores sees it odd */
    rsi_store_relaxed(&head->tick_monotonic_ns, rsi_now_ns());
    rsi_store_relaxed(&head->tick_tsc, rsi_tsc());
    /* pairs with the reader's first load of tick_seq */
    rsi_store_release(&head->tick_seq, seq + 2);
    rsi_guard_unlock(&head->tick_guard);
}

void rsi_file_tick_tsc(uint64_t tsc)
{
    const struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (rsi_likely(tsc < rsi_load_relaxed(&tick_due_tsc)) || !head || tsc < head->tsc)
        return;
    uint64_t now_ns = rsi_now_ns(), ns = now_ns - head->monotonic_ns;
    /* at most as many as have passed: the rate is not known better */
    uint64_t ticks = tsc - head->tsc;
    rsi_file_tick(now_ns);
    rsi_store_relaxed(&tick_due_tsc, tsc + ticks / (ns / TICK_NS + 1));
}

void rsi_file_end(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head || head->pid != getpid())
        return;
    rsi_cpu_time_note();
    rsi_file_tick(UINT64_MAX);
    /* Workers of many servers change their command after the fork. */
    char command[sizeof head->command];
    size_t length = read_text("/proc/self/cmdline", command, sizeof command);
    if (length)
        memcpy(head->command, command, length + 1);
    rsi_store_release(&head->ended, 1u); /* release: a reader that sees it sees all counts */
    if (!is_kept)
        unlink(file_path);
}

void rsi_file_alone(void)
{
    void (*step_aside)(void) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "rouse_preload_step_aside");
    if (found) {
        /* ISO C has no cast from object to function pointers */
        memcpy(&step_aside, &found, sizeof found);
        step_aside();
    }
}

/* The bytes that the child of a fork has mapped from head on. */
static size_t bytes_inherited(const struct rsi_store_head *head)
{
    struct rsi_span span = { 0, 0 };
    size_t length = (size_t)rsi_load_relaxed(&pages_mapped) * RSI_PAGE;
    /* another thread was folding: ask the kernel for the size */
    if (rsi_load_relaxed(&folds) % 2 != 0)
        rsi_mapping_find((uintptr_t)head, &span);
    rsi_store_relaxed(&folds, 0u);
    return span.high ? span.high - (uintptr_t)head : length;
}

void rsi_file_detach(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head)
        return;
    size_t bytes = bytes_inherited(head);
    size_t used = (size_t)rsi_load_relaxed(&head->page_count) * RSI_PAGE;
    void *copy = rsi_map(bytes);
    if (!copy)
        return; /* what the child goes on to write is then in the parent's file */
    memcpy(copy, head, used < bytes ? used : bytes);
    rsi_syscall5(SYS_mremap, copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, head);
}

void rsi_file_child(void)
{
    struct rsi_store_head *head = rsi_load_relaxed(&rsi_file_head);
    if (!head)
        return;
    rsi_store_relaxed(&rsi_file_head, NULL);
    rsi_store_relaxed(&refused, 0u);
    rsi_store_relaxed(&tick_due_tsc, UINT64_C(0));
    rsi_unmap(head, bytes_inherited(head));
}
