/* SPDX-License-Identifier: MIT */
/*
 * vfork.c - vfork, whose child runs in its parent's memory and on its stack until it runs another program or ends: what
 * it waits for is not its parent's, so its thread is taken for one that has ended; and what it closes, or
 * puts into an epoll set, is not its parent's either: its numbers are its own, and nothing is learnt of them.
 *
 * The call returns twice, and what the child calls meanwhile overwrites the place where the first return came from; so it
 * is made here, in registers, as libc makes it. posix_spawn, system and popen have a child of the same sort, but call
 * nothing of ours in it.
 */
#include "preload.h"

#include <sys/syscall.h>

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

/* Jumped to by vfork: there is no child. */
pid_t rpi_vfork_failed(int error);
RSI_NOINLINE pid_t rpi_vfork_failed(int error)
{
    errno = error;
    return -1;
}

/* clang-format off */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl vfork\n"
        ".type vfork, %function\n"
        ".hidden rpi_vfork_failed\n"
        ".hidden rpi_self\n"
        ".hidden rpi_self_is_closed\n"
        "vfork:\n"
        ".cfi_startproc\n"
#if defined(__x86_64__)
        "endbr64\n"
        "popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        ".cfi_register %rip, %rdi\n"
        "movq rpi_self@gottpoff(%rip), %rsi\n"
        "movq rpi_self_is_closed@gottpoff(%rip), %rdx\n"
        "movq %fs:(%rsi), %r8\n"
        "movzbl %fs:(%rdx), %r9d\n"
        "movq $0, %fs:(%rsi)\n"
        "movb $" NUMBER(RPI_SELF_VFORKED) ", %fs:(%rdx)\n"
        "movl $" NUMBER(__NR_vfork) ", %eax\n"
        "syscall\n"
        "pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_offset %rip, -8\n"
        "testl %eax, %eax\n"
        "je 1f\n"
        "movq %r8, %fs:(%rsi)\n"
        "movb %r9b, %fs:(%rdx)\n"
        "testl %eax, %eax\n"
        "js 2f\n"
        "1: ret\n"
        "2: negl %eax\n"
        "movl %eax, %edi\n"
        "jmp rpi_vfork_failed\n"
#else
        "hint #34\n" /* bti c */
        "mrs x9, tpidr_el0\n"
        "adrp x10, :gottprel:rpi_self\n"
        "ldr x10, [x10, #:gottprel_lo12:rpi_self]\n"
        "adrp x11, :gottprel:rpi_self_is_closed\n"
        "ldr x11, [x11, #:gottprel_lo12:rpi_self_is_closed]\n"
        "add x10, x9, x10\n"
        "add x11, x9, x11\n"
        "ldr x12, [x10]\n"
        "ldrb w13, [x11]\n"
        "mov w14, #" NUMBER(RPI_SELF_VFORKED) "\n"
        "str xzr, [x10]\n"
        "strb w14, [x11]\n"
        "mov x0, #0x4111\n" /* CLONE_VFORK, CLONE_VM, SIGCHLD */
        "mov x1, #0\n"
        "mov x2, #0\n"
        "mov x3, #0\n"
        "mov x4, #0\n"
        "mov x8, #" NUMBER(__NR_clone) "\n"
        "svc #0\n"
        "cbz w0, 1f\n"
        "str x12, [x10]\n"
        "strb w13, [x11]\n"
        "tbnz w0, #31, 2f\n"
        "1: ret\n"
        "2: neg w0, w0\n"
        "b rpi_vfork_failed\n"
#endif
        ".cfi_endproc\n"
        ".size vfork, . - vfork\n");
/* clang-format on */
