/* SPDX-License-Identifier: MIT */
/*
 * ctx.h - the switch itself: saves one stack's registers and continues on another stack.
 *
 * core/switch.h decides which stack comes next. The switch is inline assembly that declares every register
 * clobbered, so the compiler saves only what is live at that place. It ends in an indirect jump and not in
 * ret, which the CPU's return predictor would mispredict. mxcsr and the x87 control word stay with the
 * worker. The frame-address register cannot be declared as clobbered, so the assembly saves it. Unwinding
 * needs no special support: at the resume label the frame is the one that the compiler described.
 */
#ifndef RSI_CTX_CTX_H
#define RSI_CTX_CTX_H

#include "base/base.h"

#if defined(__SANITIZE_ADDRESS__)
#define RSI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RSI_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define RSI_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RSI_TSAN 1
#endif
#endif

#ifdef RSI_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef RSI_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* A stack that is not running. The assembly below and tools/rouse-gdb.py know the offsets. */
struct rsi_ctx {
    void *sp;
    void *ip;
    void *fp;
#ifdef RSI_ASAN
    const void *asan_low;
    size_t asan_bytes;
    void *asan_fake;
#endif
#ifdef RSI_TSAN
    void *tsan_fiber;
#endif
};

/*
 * The first code on a new stack: calls the function that rsi_ctx_init stored in fp, with the value passed by
 * the switch.
 */
void rsi_ctx_start(void);

/*
 * Set up a context that will call entry(value, left) on the stack [low, high). entry must not return. high is
 * 16-byte aligned.
 */
void rsi_ctx_init(struct rsi_ctx *ctx, void *low, void *high,
                  void (*entry)(void *value, struct rsi_ctx *left));

/* Describe the calling kernel thread's own stack, so that sanitizers can switch back to it. */
void rsi_ctx_init_native(struct rsi_ctx *ctx);

RSI_INLINE void rsi_ctx_before(struct rsi_ctx *from, struct rsi_ctx *to)
{
    (void)from;
    (void)to;
#ifdef RSI_ASAN
    __sanitizer_start_switch_fiber(&from->asan_fake, to->asan_low, to->asan_bytes);
#endif
#ifdef RSI_TSAN
    __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
}

/* Called on the new stack before anything else. ctx is the context now running. */
RSI_INLINE void rsi_ctx_after(struct rsi_ctx *ctx)
{
    (void)ctx;
#ifdef RSI_ASAN
    __sanitizer_finish_switch_fiber(ctx->asan_fake, NULL, NULL);
#endif
}

/*
 * Switch from the current stack, saved in *from, to *to. Returns when another context switches back: *value
 * is then the value it passed, and the result is the context that it left. Nothing derived from thread-local
 * storage before the switch may be used after it.
 */
RSI_INLINE struct rsi_ctx *rsi_ctx_switch(struct rsi_ctx *from, struct rsi_ctx *to, void **value)
{
    struct rsi_ctx *self = from;
    void *passed = *value;
    rsi_ctx_before(from, to);
#if defined(__x86_64__)
    __asm__ volatile("leaq 1f(%%rip), %%rax\n\t"
                     "movq %%rsp, 0(%%rsi)\n\t"
                     "movq %%rax, 8(%%rsi)\n\t"
                     "movq %%rbp, 16(%%rsi)\n\t"
                     "movq 16(%%rdx), %%rbp\n\t"
                     "movq 0(%%rdx), %%rsp\n\t"
                     "jmpq *8(%%rdx)\n\t"
                     "1:\n\t"
                     : "+D"(passed), "+S"(from), "+d"(to)
                     :
                     : "rax", "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                       "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#ifdef __AVX512F__
                       "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",
                       "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1",
                       "k2", "k3", "k4", "k5", "k6", "k7",
#endif
                       "memory", "cc");
#else
    register void *x0 __asm__("x0") = passed;
    register struct rsi_ctx *x1 __asm__("x1") = from;
    register struct rsi_ctx *x2 __asm__("x2") = to;
    __asm__ volatile("adr x9, 1f\n\t"
                     "mov x10, sp\n\t"
                     "stp x10, x9, [x1]\n\t"
                     "str x29, [x1, #16]\n\t"
                     "ldp x10, x9, [x2]\n\t"
                     "ldr x29, [x2, #16]\n\t"
                     "mov sp, x10\n\t"
                     "br x9\n\t"
                     "1:\n\t"
                     : "+r"(x0), "+r"(x1), "+r"(x2)
                     :
                     : "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
                       "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25",
                       "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
                       "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18",
                       "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
                       "v30", "v31", "memory", "cc");
    passed = x0;
    from = x1;
#endif
    rsi_ctx_after(self);
    *value = passed;
    return from;
}

#endif
