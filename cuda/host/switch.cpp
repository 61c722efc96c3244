// Fiber switch: sterna_simt_switch (declared in runtime.cpp) for each architecture.

#if defined(__APPLE__)
#define SYMBOL "_sterna_simt_switch"
#else
#define SYMBOL "sterna_simt_switch"
#endif

#if defined(__x86_64__)
__asm__(".text\n.globl " SYMBOL "\n" SYMBOL ":\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
#elif defined(__aarch64__)
__asm__(".text\n.balign 4\n.globl " SYMBOL "\n" SYMBOL ":\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n stp d8, d9, [sp, #96]\n "
        "stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
        "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
        "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n ldp d8, d9, [sp, #96]\n "
        "ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\n ret\n");
#else
#error "the host SIMT driver knows x86-64 and aarch64"
#endif
