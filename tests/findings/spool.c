/* SPDX-License-Identifier: MIT */
/*
 * spool.c - five processes that append to a file. Fault: they lock the file while a slow server gives them the number
 * of the entry.
 *
 * Repair: they ask for the number without the lock.
 */
#include "findings.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PROCESSES = 5, NUMBER_US = 300, ENTRY_BYTES = 10000 };

static uint64_t next_number(uint64_t entry)
{
    usleep(NUMBER_US); /* the server answers */
    return entry + 1;
}

static void append_entry(int spool, uint64_t entry)
{
    uint64_t number = is_fixed ? next_number(entry) : 0;
    check(flock(spool, LOCK_EX) == 0);
    if (!is_fixed)
        number = next_number(entry);
    check(write(spool, &number, sizeof number) == WHOLE(number));
    check(flock(spool, LOCK_UN) == 0);
}

static unsigned long append_entries(const char *path)
{
    FILE *spool = fopen(path, "a"); /* of its own: an inherited one would share the lock */
    unsigned long ops = 0;
    check(spool != NULL);
    for (; !is_over(); ops++)
        append_entry(fileno(spool), digest(ops, ENTRY_BYTES));
    fclose(spool);
    return ops;
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/rouse-spool-XXXXXX";
    begin(argc, argv);
    int made = mkstemp(path);
    check(made >= 0);
    unsigned long *ops = mmap(NULL, PROCESSES * sizeof *ops, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(ops != MAP_FAILED);
    for (unsigned i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        check(child >= 0);
        if (child == 0) {
            ops[i] = append_entries(path);
            exit(0);
        }
    }
    unsigned long sum = 0;
    while (wait(NULL) > 0)
        continue;
    for (unsigned i = 0; i < PROCESSES; i++)
        sum += ops[i];
    unlink(path);
    close(made);
    finish(sum);
    return 0;
}
