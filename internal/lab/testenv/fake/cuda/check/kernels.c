/* The bodies, for the fake, of the kernels in main.c. */
#include <time.h>

#include "fake.h"

#define KERNEL __attribute__((visibility("default"))) void

KERNEL fill(const penstock_fake_cuda_launch *l) {
    uint32_t value = *(uint32_t *)l->params[1], n = *(uint32_t *)l->params[2];
    uint32_t *p = l->view(l, *(uint64_t *)l->params[0], (size_t)n * 4, 1);
    if (p == NULL) return;
    for (uint32_t i = 0; i < n; i++) p[i] = value;
}

__attribute__((visibility("default"))) const int echo_resident = 1;

KERNEL echo(const penstock_fake_cuda_launch *l) {
    uint32_t *bell = l->view(l, *(uint64_t *)l->params[0], 8, 1);
    if (bell == NULL) return;
    for (;;) {
        uint32_t v = __atomic_load_n(&bell[0], __ATOMIC_ACQUIRE);
        __atomic_store_n(&bell[1], v, __ATOMIC_RELEASE);
        if (v == 0xffffffff || l->stopping(l)) return;
        nanosleep(&(struct timespec){0, 20000}, NULL); /* a CPU has fewer threads than a GPU: leave it to others */
    }
}
