/* SPDX-License-Identifier: MIT */
/* ctx.c - the first frame of a new stack. */
#include "ctx/ctx.h"

#include <pthread.h>

/* Unwinding ends here, because the return address is declared undefined. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl rsi_ctx_start\n"
        ".hidden rsi_ctx_start\n"
        ".type rsi_ctx_start, @function\n"
        "rsi_ctx_start:\n"
        ".cfi_startproc\n"
        ".cfi_undefined rip\n"
        "movq %rbp, %rax\n"
        "xorl %ebp, %ebp\n"
        "callq *%rax\n"
        "ud2\n"
        ".cfi_endproc\n"
        ".size rsi_ctx_start, .-rsi_ctx_start\n");
#else
__asm__(".text\n"
        ".globl rsi_ctx_start\n"
        ".hidden rsi_ctx_start\n"
        ".type rsi_ctx_start, %function\n"
        "rsi_ctx_start:\n"
        ".cfi_startproc\n"
        ".cfi_undefined x30\n"
        "mov x9, x29\n"
        "mov x29, xzr\n"
        "mov x30, xzr\n"
        "blr x9\n"
        "brk #0\n"
        ".cfi_endproc\n"
        ".size rsi_ctx_start, .-rsi_ctx_start\n");
#endif

void rsi_ctx_init(struct rsi_ctx *ctx, void *low, void *high,
                  void (*entry)(void *value, struct rsi_ctx *left))
{
    (void)low;
    rsi_store_relaxed(&ctx->sp, high);
    ctx->ip = (void *)rsi_ctx_start;
    ctx->fp = (void *)entry;
#ifdef RSI_ASAN
    ctx->asan_low = low;
    ctx->asan_bytes = (size_t)((char *)high - (char *)low);
    ctx->asan_fake = NULL;
#endif
#ifdef RSI_TSAN
    /* The fiber is kept with the stack: TSan supports 8,128 fibers and does not reuse them. */
    void **fiber = (void **)high - 2;
    if (!*fiber)
        *fiber = __tsan_create_fiber(0);
    ctx->tsan_fiber = *fiber;
    rsi_store_relaxed(&ctx->sp, (void *)((char *)high - 32));
#endif
}

void rsi_ctx_init_native(struct rsi_ctx *ctx)
{
    (void)ctx;
#ifdef RSI_ASAN
    pthread_attr_t attr;
    void *low;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &low, &ctx->asan_bytes);
        ctx->asan_low = low;
        pthread_attr_destroy(&attr);
    }
#endif
#ifdef RSI_TSAN
    ctx->tsan_fiber = __tsan_get_current_fiber();
#endif
}
