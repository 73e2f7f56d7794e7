/* SPDX-License-Identifier: MIT */
/*
 * module.c - records a module when a site in it is first used.
 *
 * A reader of a live process could use /proc/PID/maps, but a later reader, or one on another machine, could not. A
 * module that is unloaded stays recorded. If another is then mapped at its address, that one is recorded after it,
 * and readers use the later entry.
 */
#include "obs/module.h"

#include "os/os.h"

#include <dlfcn.h>
#include <elf.h>
#include <string.h>
#include <sys/auxv.h>

#define MODULES_MAX 256u

static struct {
    uint32_t lock; /* rsi_own_lock */
    struct rsi_store_chunk *chunk;
    uint32_t count; /* release under lock, acquire by is_noted */
    struct {
        uint64_t start, end;
    } ranges[MODULES_MAX];
} modules;

static bool is_noted(uint64_t address)
{
    uint32_t count = rsi_load_acquire(&modules.count); /* pairs with add_locked */
    for (uint32_t i = 0; i < count; i++)
        if (address >= modules.ranges[i].start && address < modules.ranges[i].end)
            return true;
    return false;
}

/*
 * The program's own headers come from the kernel, since the part that was found may be a segment without them.
 */
struct rsi_module_headers rsi_module_headers_of(const struct dl_find_object *found)
{
    const struct link_map *map = found->dlfo_link_map;
    if (!map->l_name || !map->l_name[0])
        return (struct rsi_module_headers){ (const void *)getauxval(AT_PHDR), getauxval(AT_PHNUM) };
    const ElfW(Ehdr) *header = found->dlfo_map_start;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return (struct rsi_module_headers){ NULL, 0 };
    return (struct rsi_module_headers){ (const void *)((const char *)header + header->e_phoff),
                                        header->e_phnum };
}

/*
 * Widen the range to all segments. The loader lists those of a program one by one if there are gaps between them,
 * as for large pages.
 */
static void widen(struct rsi_store_module *module, const struct rsi_module_headers *headers)
{
    uint64_t start = UINT64_MAX, end = 0;
    for (size_t i = 0; i < headers->count; i++) {
        const ElfW(Phdr) *segment = &headers->first[i];
        if (segment->p_type != PT_LOAD)
            continue;
        uint64_t low = module->bias + segment->p_vaddr, high = low + segment->p_memsz;
        start = low < start ? low : start;
        end = high > end ? high : end;
    }
    module->start = start < module->start ? start : module->start;
    module->end = end > module->end ? end : module->end;
}

/* From the notes that are mapped with the module. */
static void read_build_id(struct rsi_store_module *module, const struct rsi_module_headers *headers)
{
    for (size_t i = 0; i < headers->count; i++) {
        if (headers->first[i].p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(module->bias + headers->first[i].p_vaddr);
        const char *end = at + headers->first[i].p_memsz;
        while (end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const void *)at;
            size_t name_bytes = rsi_round_up(note->n_namesz, 4);
            const char *name = at + sizeof *note;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(name, "GNU", 4) &&
                note->n_descsz <= sizeof module->build_id) {
                memcpy(module->build_id, name + name_bytes, note->n_descsz);
                module->build_id_bytes = note->n_descsz;
                return;
            }
            at = name + name_bytes + rsi_round_up(note->n_descsz, 4);
        }
    }
}

static void fill(struct rsi_store_module *module, const struct dl_find_object *found)
{
    const struct link_map *map = found->dlfo_link_map;
    const struct rsi_module_headers headers = rsi_module_headers_of(found);
    module->start = (uintptr_t)found->dlfo_map_start;
    module->end = (uintptr_t)found->dlfo_map_end;
    module->bias = map->l_addr;
    /*
     * The program has no name in the link map. Its path was read early: by now the program may have another root
     * directory or no /proc.
     */
    const char *path = map->l_name && map->l_name[0] ? map->l_name : rsi_file_head->program;
    rsi_format(module->path, sizeof module->path, "%s", path);
    widen(module, &headers);
    read_build_id(module, &headers);
}

static void add_locked(struct rsi_writer *writer, const struct dl_find_object *found)
{
    struct rsi_store_module *module = rsi_chunk_next(modules.chunk);
    if (!module && modules.count < MODULES_MAX) {
        struct rsi_store_chunk *fresh =
            rsi_file_chunk(RSI_STORE_MODULES, sizeof *module, 1, UINT32_MAX);
        modules.chunk = fresh ? fresh : modules.chunk;
        module = fresh ? rsi_chunk_next(fresh) : NULL;
    }
    if (!module || modules.count == MODULES_MAX) {
        rsi_count(writer->shared->lost_modules, 1);
        return;
    }
    fill(module, found);
    rsi_chunk_add(modules.chunk);
    modules.ranges[modules.count].start = module->start;
    modules.ranges[modules.count].end = module->end;
    rsi_store_release(&modules.count, modules.count + 1); /* pairs with is_noted */
}

void rsi_module_note(struct rsi_writer *writer, uint64_t site)
{
    struct dl_find_object found;
    if (!site || site & RSI_SITE_STACK || is_noted(site) ||
        _dl_find_object((void *)(uintptr_t)site, &found) != 0)
        return;
    rsi_own_lock(&modules.lock);
    if (!is_noted(site))
        add_locked(writer, &found);
    rsi_own_unlock(&modules.lock);
}

void rsi_modules_child(void)
{
    rsi_store_relaxed(&modules.lock, 0u);
    modules.chunk = NULL;
    modules.count = 0;
}
