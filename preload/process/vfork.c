/* SPDX-License-Identifier: MIT */
/*
 * vfork.c - vfork: its child shares our memory. It runs there and on its parent's stack until it runs another program
 * or exits.
 *
 * The child's waits are not its parent's, so its thread is treated as one that has exited. The descriptors that it
 * closes or adds to an epoll set are its own too, so nothing is recorded of their numbers.
 *
 * The call returns twice, and the child's calls overwrite the return address on the shared stack. So the system call
 * is made here, with the return address in a register, as libc does. posix_spawn, system and popen have such a child
 * too, but call none of our functions in it.
 */
#include "process/linkage.h"
#include "process/self.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)

/* Reached by a jump from vfork: there is no child. */
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
