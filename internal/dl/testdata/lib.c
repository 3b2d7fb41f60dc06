// The library that the tests of package dl call.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

uintptr_t nothing(void) { return 42; }

// Every argument counts with its place, so that two that changed places give another result.
uintptr_t weigh6(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) { return a + 3 * b + 5 * c + 7 * d + 11 * e + 13 * f; }

uintptr_t weigh15(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h, uintptr_t i, uintptr_t j,
	uintptr_t k, uintptr_t l, uintptr_t m, uintptr_t n, uintptr_t o) {
	return weigh6(a, b, c, d, e, f) + 17 * g + 19 * h + 23 * i + 29 * j + 31 * k + 37 * l + 41 * m + 43 * n + 47 * o;
}

int minus(int a) { return -a; }

// A variadic function looks at the register that says how many vector registers hold arguments.
uintptr_t variadic(int n, ...) {
	va_list ap;
	va_start(ap, n);
	uintptr_t sum = 0;
	for (int i = 0; i < n; i++)
		sum = sum * 3 + va_arg(ap, uintptr_t);
	va_end(ap);
	return sum;
}

// fail sets errno to e, lets other threads run, and returns -1; with e = 0 it leaves errno alone.
int fail(int e) {
	if (e == 0)
		return 0;
	errno = e;
	sched_yield();
	return -1;
}

// stack is aligned to 16 bytes when a function is called; vector instructions of real libraries need it.
int misaligned(void) {
	volatile double d[2] __attribute__((aligned(16)));
	return ((uintptr_t)__builtin_frame_address(0)) & 15;
}

// deep uses kb KiB of stack, each byte of it, and returns their sum.
uintptr_t deep(int kb) {
	volatile unsigned char here[1024];
	memset((void *)here, 1, sizeof here);
	uintptr_t sum = kb > 1 ? deep(kb - 1) : 0;
	for (unsigned i = 0; i < sizeof here; i++)
		sum += here[i];
	return sum;
}

// add adds delta to each of the n words at p.
void add(uint64_t *p, uintptr_t n, uint64_t delta) {
	for (uintptr_t i = 0; i < n; i++)
		p[i] += delta;
}

// pass gives a token through memory that C keeps: the registered callee-saved registers of the caller must survive it.
uintptr_t clobber(uintptr_t a) {
#ifdef __x86_64__
	__asm__ volatile("" ::: "rbx", "r12", "r13", "r14", "r15", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm15");
#endif
	return a + 1;
}

// block waits until *flag is not 0, and says how often it looked.
uintptr_t block(volatile int *flag) {
	uintptr_t n = 0;
	while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {
		n++;
		sched_yield();
	}
	return n;
}

// twice exists in two versions, see lib.map.
int twice_old(int a) { return 2 * a; }
int twice_new(int a) { return 2 * a + 1; }
__asm__(".symver twice_old,twice@PENSTOCK_1.0");
__asm__(".symver twice_new,twice@@PENSTOCK_1.1");

const char *words(void) { return "said by C"; }

static void *held;
void hold(void *p) { held = p; }
void *give(void) { return held; }
