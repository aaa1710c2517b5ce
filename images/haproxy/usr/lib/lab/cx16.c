/* Executes `lock cmpxchg16b` where the processor of the guest lacks it.
 *
 * HAProxy uses that instruction for its random numbers. QEMU before version 8 executes it wrongly when
 * it translates code, so such guests do not have it. HAProxy has one thread here, and no other process
 * shares its memory, so no other access can come in between. Compiled by tcc, without headers.
 */
typedef unsigned long word;
typedef unsigned char byte;

enum { RBX = 11, RDX = 12, RAX = 13, RCX = 14, RIP = 16, FLAGS = 17 }; /* sys/ucontext.h */
enum { ZERO = 0x40, SIGILL = 4, SA_SIGINFO = 4, DEFAULT = 0 };

struct action {
    void *handler;
    byte mask[128];
    int flags;
    void *restorer;
};
int sigaction(int signal, const struct action *action, struct action *old);

static void illegal(int signal, void *info, void *context)
{
    word *registers = (word *)((byte *)context + 40);
    byte *at = (byte *)registers[RIP];
    struct action none = {0};
    word *memory;

    (void)info;
    /* lock rex.w cmpxchg16b, of an address relative to the next instruction */
    if (at[0] != 0xf0 || at[1] != 0x48 || at[2] != 0x0f || at[3] != 0xc7 || at[4] != 0x0d) {
        sigaction(signal, &none, 0); /* it ends, as it would have without us */
        return;
    }
    registers[RIP] += 9;
    memory = (word *)(registers[RIP] + *(int *)(at + 5));
    if (memory[0] == registers[RAX] && memory[1] == registers[RDX]) {
        memory[0] = registers[RBX];
        memory[1] = registers[RCX];
        registers[FLAGS] |= ZERO;
    } else {
        registers[RAX] = memory[0];
        registers[RDX] = memory[1];
        registers[FLAGS] &= ~(word)ZERO;
    }
}

__attribute__((constructor)) static void install(void)
{
    struct action ours = {0};

    ours.handler = illegal;
    ours.flags = SA_SIGINFO;
    sigaction(SIGILL, &ours, 0);
}
