/* Bodies, for the fake driver, of the kernels of kernels.ptx. */
#include <string.h>

#include "fake.h"

#define KERNEL __attribute__((visibility("default"))) void

/* arguments(out, a, b, c, d): out is 16 words of 64 bits. Says what it was launched with. */
KERNEL arguments(const penstock_fake_cuda_launch *l) {
    uint64_t *out = l->view(l, *(uint64_t *)l->params[0], 16 * 8, 1);
    if (out == NULL) return;
    memset(out, 0, 16 * 8);
    for (int i = 0; i < 3; i++) {
        out[i] = l->grid[i];
        out[3 + i] = l->block[i];
    }
    out[6] = l->shared;
    out[7] = l->nparams;
    out[8] = *(uint8_t *)l->params[1];
    out[9] = *(uint16_t *)l->params[2];
    out[10] = *(uint32_t *)l->params[3];
    out[11] = *(uint64_t *)l->params[4];
}

/* increment(p, n): adds 1 to n words of 32 bits. */
KERNEL increment(const penstock_fake_cuda_launch *l) {
    uint32_t n = *(uint32_t *)l->params[1];
    uint32_t *p = l->view(l, *(uint64_t *)l->params[0], (size_t)n * 4, 1);
    if (p == NULL) return;
    for (uint32_t i = 0; i < n; i++) p[i]++;
}

KERNEL remember(const penstock_fake_cuda_launch *l) {
    uint32_t *answer = l->global(l, "answer", NULL);
    if (answer != NULL) *answer = 42;
}
