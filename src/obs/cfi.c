/* SPDX-License-Identifier: MIT */
/*
 * cfi.c - reads .eh_frame.
 *
 * The sorted table of .eh_frame_hdr leads to the description (FDE) of the function around an address. Its program
 * is run up to the address, after the program that it shares with others (CIE). Information that cannot be decoded
 * is treated as absent.
 * Source: DWARF 5, section 6.4; Linux Standard Base, "Exception Frames".
 */
#include "obs/cfi.h"

#include <dlfcn.h>
#include <string.h>

/* A row takes 300 bytes, and compilers nest remembered rows one deep. */
#define REMEMBERED_MAX 2

struct description {
    uint64_t code_align;
    int64_t data_align;
    uint64_t return_register;
    uint8_t pointer_encoding;
    bool has_augmentation;
    bool is_signal_frame;
    struct rsi_bytes common, own; /* programs: of the CIE, of the FDE */
    uint64_t first_ip, past_ip;
};

struct program {
    const struct description *of;
    struct rsi_cfi_row *row;
    struct rsi_cfi_row initial;
    struct rsi_cfi_row remembered[REMEMBERED_MAX];
    unsigned remembered_count;
    uint64_t at_ip;
};

uint64_t rsi_bytes_take(struct rsi_bytes *b, unsigned bytes)
{
    uint64_t value = 0;
    if ((size_t)(b->end - b->at) < bytes) {
        b->at = b->end;
        b->is_bad = true;
        return 0;
    }
    memcpy(&value, b->at, bytes); /* both machines are little-endian */
    b->at += bytes;
    return value;
}

int64_t rsi_bytes_signed(struct rsi_bytes *b, unsigned bytes)
{
    unsigned unused = 64 - 8 * bytes;
    return (int64_t)(rsi_bytes_take(b, bytes) << unused) >> unused;
}

uint64_t rsi_bytes_uleb(struct rsi_bytes *b)
{
    uint64_t value = 0, byte;
    unsigned shift = 0;
    do {
        byte = rsi_bytes_take(b, 1);
        if (shift < 64)
            value |= (byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    return value;
}

int64_t rsi_bytes_sleb(struct rsi_bytes *b)
{
    uint64_t value = 0, byte;
    unsigned shift = 0;
    do {
        byte = rsi_bytes_take(b, 1);
        if (shift < 64)
            value |= (byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (shift < 64 && byte & 0x40)
        value |= ~UINT64_C(0) << shift;
    return (int64_t)value;
}

void rsi_bytes_skip(struct rsi_bytes *b, uint64_t bytes)
{
    if (bytes > (uint64_t)(b->end - b->at)) {
        b->at = b->end;
        b->is_bad = true;
    } else {
        b->at += bytes;
    }
}

/* A pointer in one of the DW_EH_PE encodings that .eh_frame uses for code. */
static uint64_t take_pointer(struct rsi_bytes *b, uint8_t encoding)
{
    uint64_t place = (uintptr_t)b->at, value = 0;
    switch (encoding & 0x0f) {
    case 0x0:
    case 0x4:
    case 0xc: value = rsi_bytes_take(b, 8); break;
    case 0x1: value = rsi_bytes_uleb(b); break;
    case 0x2: value = rsi_bytes_take(b, 2); break;
    case 0x3: value = rsi_bytes_take(b, 4); break;
    case 0x9: value = (uint64_t)rsi_bytes_sleb(b); break;
    case 0xa: value = (uint64_t)rsi_bytes_signed(b, 2); break;
    case 0xb: value = (uint64_t)rsi_bytes_signed(b, 4); break;
    default: b->is_bad = true; break;
    }
    if ((encoding & 0x70) == 0x10)
        value += place;
    else if ((encoding & 0x70) != 0)
        b->is_bad = true;
    return value;
}

/* The address of the description for ip, or NULL. .eh_frame_hdr is a table sorted by address. */
static const uint8_t *find_place(const struct dl_find_object *object, uint64_t ip)
{
    const uint8_t *header = object->dlfo_eh_frame;
    /*
     * .eh_frame_hdr version 1; .eh_frame's address in 4 bytes; the count in 4; pairs of 4-byte offsets from the
     * header
     */
    if (!header || header[0] != 1 || (header[1] & 0x0f) != 0xb || header[2] != 0x03 ||
        header[3] != 0x3b)
        return NULL;
    uint32_t count;
    memcpy(&count, header + 8, sizeof count);
    const int32_t *table = (const int32_t *)(const void *)(header + 12);
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)header + (uint64_t)(int64_t)table[2 * middle] <= ip)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? header + table[2 * (low - 1) + 1] : NULL;
}

/* The bytes of the entry at place, after its length. */
static struct rsi_bytes entry_at(const uint8_t *place, const struct dl_find_object *object)
{
    struct rsi_bytes b = { place, object->dlfo_map_end, false };
    if (place < (const uint8_t *)object->dlfo_map_start || place >= b.end) {
        b.at = b.end;
        b.is_bad = true;
        return b;
    }
    uint64_t length = rsi_bytes_take(&b, 4);
    if (length == UINT32_MAX)
        length = rsi_bytes_take(&b, 8);
    const uint8_t *start = b.at;
    rsi_bytes_skip(&b, length);
    b.end = b.at;
    b.at = start;
    return b;
}

static bool parse_cie(struct rsi_bytes b, struct description *d)
{
    rsi_bytes_take(&b, 4); /* the CIE id */
    uint64_t version = rsi_bytes_take(&b, 1);
    const char *augmentation = (const char *)b.at;
    while (rsi_bytes_take(&b, 1))
        ;
    d->code_align = rsi_bytes_uleb(&b);
    d->data_align = rsi_bytes_sleb(&b);
    d->return_register = version == 1 ? rsi_bytes_take(&b, 1) : rsi_bytes_uleb(&b);
    d->pointer_encoding = 0;
    d->is_signal_frame = false;
    d->has_augmentation = augmentation[0] == 'z';
    if (d->has_augmentation) {
        uint64_t bytes = rsi_bytes_uleb(&b);
        struct rsi_bytes data = b;
        rsi_bytes_skip(&b, bytes);
        for (const char *a = augmentation + 1; *a; a++) {
            if (*a == 'R')
                d->pointer_encoding = (uint8_t)rsi_bytes_take(&data, 1);
            else if (*a == 'P')
                take_pointer(&data, (uint8_t)(rsi_bytes_take(&data, 1) & 0x1f));
            else if (*a == 'L')
                rsi_bytes_take(&data, 1);
            else if (*a == 'S')
                d->is_signal_frame = true;
        }
    }
    d->common = b;
    return !b.is_bad && (d->has_augmentation || augmentation[0] == 0);
}

/* Find the description of the code at ip. */
static bool describe(uint64_t ip, struct description *d)
{
    struct dl_find_object object;
    if (_dl_find_object((void *)(uintptr_t)ip, &object) != 0)
        return false;
    const uint8_t *place = find_place(&object, ip);
    /*
     * If a program has gaps between its segments, the table can be in another mapping than the code.
     */
    if (!place || _dl_find_object((void *)(uintptr_t)place, &object) != 0)
        return false;
    struct rsi_bytes b = entry_at(place, &object);
    const uint8_t *offset_place = b.at;
    uint64_t cie_offset = rsi_bytes_take(&b, 4);
    if (b.is_bad || cie_offset == 0 || !parse_cie(entry_at(offset_place - cie_offset, &object), d))
        return false;
    d->first_ip = take_pointer(&b, d->pointer_encoding);
    d->past_ip = d->first_ip + take_pointer(&b, d->pointer_encoding & 0x0f);
    if (d->has_augmentation)
        rsi_bytes_skip(&b, rsi_bytes_uleb(&b));
    d->own = b;
    return !b.is_bad && ip >= d->first_ip && ip < d->past_ip;
}

static void set_rule(struct program *p, uint64_t reg, enum rsi_rule kind, int64_t value)
{
    if (reg >= RSI_REGS)
        return; /* vector registers and the like */
    p->row->kind[reg] = (uint8_t)kind;
    p->row->value[reg] = value;
}

static void set_initial(struct program *p, uint64_t reg)
{
    if (reg < RSI_REGS)
        set_rule(p, reg, p->initial.kind[reg], p->initial.value[reg]);
}

/* Skip a block and return the address of its length. */
static const uint8_t *take_block(struct rsi_bytes *b)
{
    const uint8_t *place = b->at;
    rsi_bytes_skip(b, rsi_bytes_uleb(b));
    return place;
}

static void remember(struct program *p, struct rsi_bytes *b)
{
    if (p->remembered_count == REMEMBERED_MAX)
        b->is_bad = true;
    else
        p->remembered[p->remembered_count++] = *p->row;
}

static void restore(struct program *p, struct rsi_bytes *b)
{
    if (p->remembered_count == 0)
        b->is_bad = true;
    else
        *p->row = p->remembered[--p->remembered_count];
}

/* The instructions that define the CFA. False: opcode is not one of them. */
static bool run_cfa(struct program *p, struct rsi_bytes *b, uint8_t opcode)
{
    struct rsi_cfi_row *row = p->row;
    int64_t align = p->of->data_align;
    switch (opcode) {
    case 0x0c: /* DW_CFA_def_cfa */
        row->cfa_register = rsi_bytes_uleb(b);
        row->cfa_offset = (int64_t)rsi_bytes_uleb(b);
        row->cfa_expression = NULL;
        return true;
    case 0x0d: /* def_cfa_register */
        row->cfa_register = rsi_bytes_uleb(b);
        row->cfa_expression = NULL;
        return true;
    case 0x0e: row->cfa_offset = (int64_t)rsi_bytes_uleb(b); return true; /* def_cfa_offset */
    case 0x0f: row->cfa_expression = take_block(b); return true;          /* def_cfa_expression */
    case 0x12:                                                            /* def_cfa_sf */
        row->cfa_register = rsi_bytes_uleb(b);
        row->cfa_offset = rsi_bytes_sleb(b) * align;
        row->cfa_expression = NULL;
        return true;
    case 0x13: row->cfa_offset = rsi_bytes_sleb(b) * align; return true; /* def_cfa_offset_sf */
    default: return false;
    }
}

/* The instructions whose first operand is a register. */
static void run_register(struct program *p, struct rsi_bytes *b, uint8_t opcode)
{
    uint64_t reg = rsi_bytes_uleb(b);
    int64_t align = p->of->data_align;
    switch (opcode) {
    case 0x05: set_rule(p, reg, RSI_RULE_AT_CFA, (int64_t)rsi_bytes_uleb(b) * align); break;
    case 0x06: set_initial(p, reg); break;                     /* restore_extended */
    case 0x07: set_rule(p, reg, RSI_RULE_UNDEFINED, 0); break; /* undefined */
    case 0x08: set_rule(p, reg, RSI_RULE_SAME, 0); break;      /* same_value */
    case 0x09: set_rule(p, reg, RSI_RULE_REGISTER, (int64_t)rsi_bytes_uleb(b)); break;
    case 0x10: set_rule(p, reg, RSI_RULE_AT_EXPRESSION, (int64_t)(intptr_t)take_block(b)); break;
    case 0x11:
        set_rule(p, reg, RSI_RULE_AT_CFA, rsi_bytes_sleb(b) * align);
        break; /* offset_extended_sf */
    case 0x14:
        set_rule(p, reg, RSI_RULE_IS_CFA, (int64_t)rsi_bytes_uleb(b) * align);
        break; /* val_offset */
    case 0x15: set_rule(p, reg, RSI_RULE_IS_CFA, rsi_bytes_sleb(b) * align); break;
    case 0x16: set_rule(p, reg, RSI_RULE_IS_EXPRESSION, (int64_t)(intptr_t)take_block(b)); break;
    case 0x2f: set_rule(p, reg, RSI_RULE_AT_CFA, -(int64_t)rsi_bytes_uleb(b) * align); break;
    default: b->is_bad = true; break;
    }
}

static void run_other(struct program *p, struct rsi_bytes *b, uint8_t opcode)
{
    uint64_t align = p->of->code_align;
    switch (opcode) {
    case 0x00: break;                                                      /* nop */
    case 0x01: p->at_ip = take_pointer(b, p->of->pointer_encoding); break; /* set_loc */
    case 0x02: p->at_ip += rsi_bytes_take(b, 1) * align; break;
    case 0x03: p->at_ip += rsi_bytes_take(b, 2) * align; break;
    case 0x04: p->at_ip += rsi_bytes_take(b, 4) * align; break;
    case 0x0a: remember(p, b); break;
    case 0x0b: restore(p, b); break;
    case 0x2d: p->row->is_signed_return = !p->row->is_signed_return; break; /* AArch64 */
    case 0x2e: rsi_bytes_uleb(b); break;                                    /* GNU_args_size */
    default:
        if (!run_cfa(p, b, opcode))
            run_register(p, b, opcode);
    }
}

/* Run a program up to the row that holds at ip. False: it cannot be decoded. */
static bool run_program(struct program *p, struct rsi_bytes b, uint64_t ip)
{
    while (b.at < b.end && p->at_ip <= ip) {
        uint8_t opcode = (uint8_t)rsi_bytes_take(&b, 1), operand = opcode & 0x3f;
        switch (opcode >> 6) {
        case 1: p->at_ip += operand * p->of->code_align; break;
        case 2:
            set_rule(p, operand, RSI_RULE_AT_CFA, (int64_t)rsi_bytes_uleb(&b) * p->of->data_align);
            break;
        case 3: set_initial(p, operand); break;
        default: run_other(p, &b, opcode);
        }
    }
    return !b.is_bad;
}

bool rsi_cfi_find(uint64_t ip, struct rsi_cfi_row *row)
{
    struct description d;
    struct program p;
    memset(row, 0, sizeof *row);
    if (!describe(ip, &d))
        return false;
    p.of = &d;
    p.row = row;
    p.remembered_count = 0;
    p.at_ip = d.first_ip;
    if (!run_program(&p, d.common, ip))
        return false;
    p.initial = *row;
    row->return_register = d.return_register;
    row->is_signal_frame = d.is_signal_frame;
    return run_program(&p, d.own, ip);
}
